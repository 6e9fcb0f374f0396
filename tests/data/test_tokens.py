"""Text as tokens: ids against a tokenizer's own, and what is kept of them against mistakes, damage and interruption."""

from pathlib import Path

import pytest
import torch

from peftlab.data import files as files_module
from peftlab.data import tokens
from peftlab.data.tokenizer import Tokenizer
from peftlab.data.tokens import learn_vocabulary, tokenise
from peftlab.errors import UserError

LINES = ["A dog runs over the green grass.", "\u200b", "Two men </s> ", "ü 漢", "A woman reads a book in the park."]


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(tokens, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train_on(LINES, "bpe", vocab_size=300)


def files(cache: Path, name: str = "*") -> list[Path]:
    return [path for path in cache.rglob(name) if path.is_file()]


# Ids


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "bytes"])
@pytest.mark.parametrize("end", [None, 2])
def test_ids_are_those_of_each_line(cache, kind, end):
    tokenizer = Tokenizer.of_bytes() if kind == "bytes" else Tokenizer.train_on(LINES, kind, vocab_size=300)
    expected, starts = [] if end is None else [end], []
    for line in LINES:
        starts.append(len(expected))
        expected += tokenizer.ids(line) + ([] if end is None else [end])
    found = tokenise(tokenizer, LINES, end)
    assert found.ids.tolist() == expected
    assert found.starts.tolist() == starts
    assert tokenise(tokenizer, [], end).ids.tolist() == ([] if end is None else [end])


@pytest.mark.skipif(not Path("/proc/self/maps").is_file(), reason="only Linux tells what is mapped")
def test_ids_are_mapped_from_their_file(cache, tokenizer):
    found = tokenise(tokenizer, LINES)
    [file] = files(cache, "ids.bin")
    assert file.stat().st_size == 4 * len(found.ids)
    assert str(file) in Path("/proc/self/maps").read_text()


def test_a_text_is_tokenised_once(cache, tokenizer, monkeypatch):
    first = tokenise(tokenizer, LINES, 2)
    monkeypatch.setattr(Tokenizer, "ids", lambda self, text: pytest.fail("tokenised again"))
    again = tokenise(tokenizer, list(LINES), 2)
    assert torch.equal(again.ids, first.ids)
    assert torch.equal(again.starts, first.starts)


def test_what_ids_follow_from_makes_another_file(cache, tokenizer, tmp_path):
    Tokenizer.of_bytes().save(tmp_path / "bytes")
    config = tmp_path / "bytes" / "tokenizer_config.json"
    config.write_text(config.read_text().replace('"split_special_tokens": true', '"split_special_tokens": false'))
    asked = [
        (tokenizer, LINES, None),
        (tokenizer, LINES, 2),
        (tokenizer, LINES, 0),
        (tokenizer, [*LINES[:-1], "A man."], None),
        (tokenizer, [LINES[0] + LINES[1], *LINES[2:]], None),
        (Tokenizer.train_on(LINES, "bpe", vocab_size=290), LINES, None),
        (Tokenizer.of_bytes(), LINES, None),
        (Tokenizer.load(tmp_path / "bytes"), LINES, None),  # differs in what it makes of </s> alone
    ]
    for count, (how, lines, end) in enumerate(asked, 1):
        found = tokenise(how, lines, end).ids.tolist()
        marks = [] if end is None else [end]
        assert found == marks + [token for line in lines for token in how.ids(line) + marks]
        assert len(files(cache, "ids.bin")) == count


# What is kept is whole


def interrupted(self, text, ids=Tokenizer.ids):
    if text == LINES[3]:
        raise KeyboardInterrupt
    return ids(self, text)


def interrupt(path, mode):
    assert path.stat().st_size > 0
    raise KeyboardInterrupt


def test_what_is_interrupted_leaves_no_half_of_a_file(cache, tokenizer):
    with pytest.MonkeyPatch.context() as inside:
        inside.setattr(Tokenizer, "ids", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tokenise(tokenizer, LINES)
    assert files(cache) == []
    with pytest.MonkeyPatch.context() as inside:
        inside.setattr(files_module, "flush", interrupt)  # between what is written and its name
        with pytest.raises(KeyboardInterrupt):
            tokenise(tokenizer, LINES)
    assert files(cache) == []
    assert tokenise(tokenizer, LINES).ids.tolist() == [token for line in LINES for token in tokenizer.ids(line)]


@pytest.mark.parametrize("make", ["tokens", "vocabulary"])
def test_files_that_nothing_vouches_for_are_made_anew(cache, tokenizer, make):
    """As they are where a process was killed before the last of them, or the disk lost something."""

    def made() -> list[bytes]:
        if make == "tokens":
            tokenise(tokenizer, LINES)
        else:
            learn_vocabulary(LINES, "bpe", 280, False)
        return [path.read_bytes() for path in sorted(files(cache))]

    whole = made()
    for path in files(cache):
        [manifest] = files(cache, "*manifest.json")
        for gone in (path, manifest):
            path.write_bytes(path.read_bytes()[:-9])
            gone.unlink()
            assert made() == whole


def test_a_cache_that_cannot_be_written_is_told(cache, tokenizer):
    cache.write_text("a file")
    for make in (lambda: tokenise(tokenizer, LINES), lambda: learn_vocabulary(LINES, "bpe", 280, False)):
        with pytest.raises(UserError, match=r"cannot write the cache .* set PEFTLAB_CACHE to another folder") as caught:
            make()
        assert "\n" not in str(caught.value)


# The vocabulary


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_a_vocabulary_is_learned_once(cache, kind, lowercase, monkeypatch, tmp_path):
    expected = Tokenizer.train_on(LINES, kind, vocab_size=280, lowercase=lowercase)
    first = learn_vocabulary(LINES, kind, 280, lowercase)
    monkeypatch.setattr(Tokenizer, "train_on", lambda *texts, **settings: pytest.fail("learned again"))
    again = learn_vocabulary(list(LINES), kind, 280, lowercase)
    for name, tokenizer in {"expected": expected, "first": first, "again": again}.items():
        tokenizer.save(tmp_path / name)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert len({(tmp_path / name / file).read_bytes() for name in ("expected", "first", "again")}) == 1
    assert [again.ids(line) for line in LINES] == [expected.ids(line) for line in LINES]


def test_what_a_vocabulary_follows_from_makes_another(cache):
    asked = [
        (LINES, "bpe", 280, False),
        (LINES, "bpe", 280, True),
        (LINES, "bpe", 290, False),
        (LINES, "wordpiece", 280, False),
        (LINES[1:], "bpe", 280, False),
    ]
    for count, (lines, kind, size, lowercase) in enumerate(asked, 1):
        expected = Tokenizer.train_on(lines, kind, vocab_size=size, lowercase=lowercase)
        assert learn_vocabulary(lines, kind, size, lowercase).to_json() == expected.to_json()
        assert len(files(cache, "tokenizer.json")) == count


def test_a_vocabulary_that_cannot_be_learned_leaves_nothing(cache):
    with pytest.raises(UserError, match="vocab_size=20 is too small"):
        learn_vocabulary(LINES, "bpe", 20, False)
    assert not cache.exists()
