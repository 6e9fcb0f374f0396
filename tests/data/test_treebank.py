"""A data set of sentences: which file is which part, what is drawn, and what is wrong."""

import gzip
from pathlib import Path

import pytest

from peftlab.data.conllu import Sentence, read_conllu, write_conllu
from peftlab.data.tagged import read_tagged
from peftlab.data.treebank import drawn, load_sentences
from peftlab.errors import UserError


def write(folder: Path, name: str, count: int) -> None:
    write_conllu(folder / name, [Sentence.of([f"{name[0]}{i}"]).with_tags(["X"]) for i in range(count)])


def words(part) -> list[str]:
    return [sentence.words[0] for sentence in part]


def test_a_treebanks_names_say_the_parts_also_packed(tmp_path):
    for part, count in (("train", 5), ("dev", 2), ("test", 3)):
        write(tmp_path, f"xx_mine-ud-{part}.conllu", count)
        plain = tmp_path / f"xx_mine-ud-{part}.conllu"
        (tmp_path / f"{plain.name}.gz").write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    (tmp_path / "README.md").write_text("not a part")
    found = load_sentences(str(tmp_path), read_conllu)
    sizes = (len(found.train), len(found.validation), {name: len(part) for name, part in found.tests.items()})
    assert sizes == (5, 2, {"test": 3})
    assert found.name == tmp_path.name


def test_what_has_no_file_is_drawn_once_from_the_training_sentences(tmp_path):
    write(tmp_path, "mine.conllu", 50)
    found = load_sentences(str(tmp_path / "mine.conllu"), read_conllu)
    parts = [words(part) for part in (found.train, found.validation, found.tests["test"])]
    assert [len(part) for part in parts] == [41, 4, 5]
    assert sorted(word for part in parts for word in part) == sorted(words(read_conllu(tmp_path / "mine.conllu")))
    again = load_sentences(str(tmp_path / "mine.conllu"), read_conllu)
    assert again == found


def test_a_limit_draws_from_everywhere_and_keeps_the_order():
    rows = list(range(1000))
    some = drawn(rows, 100)
    assert some == sorted(some) == drawn(rows, 100)
    assert len(set(some)) == 100
    assert 350 < sum(some) / 100 < 650  # not the first hundred
    assert drawn(rows, None) is drawn(rows, 1000) is rows


def test_a_fingerprint_is_of_what_counts(tmp_path):
    write(tmp_path, "mine.conllu", 12)
    found = load_sentences(str(tmp_path / "mine.conllu"), read_tagged)
    (tmp_path / "other.conllu").write_text("# a comment\n" + (tmp_path / "mine.conllu").read_text())
    other = load_sentences(str(tmp_path / "other.conllu"), read_tagged)

    def content(sentence):
        return [sentence.words, sentence.tags]

    assert found.fingerprint(content) == other.fingerprint(content)
    (tmp_path / "other.conllu").write_text((tmp_path / "mine.conllu").read_text().replace("m7", "mm"))
    changed = load_sentences(str(tmp_path / "other.conllu"), read_tagged)
    assert changed.fingerprint(content) != found.fingerprint(content)


def test_mistakes(tmp_path):
    write(tmp_path, "train.conllu", 1)
    with pytest.raises(UserError, match="too few sentences to draw a test part from"):
        load_sentences(str(tmp_path), read_conllu)
    write(tmp_path, "xx-train.conllu", 1)
    with pytest.raises(UserError, match=r"has train.conllu and xx-train.conllu: leave one of them there"):
        load_sentences(str(tmp_path), read_conllu)
    (tmp_path / "mine.txt").write_text("words")
    with pytest.raises(UserError, match=r"mine.txt has no tags: its name must end in .conllu, .conll, .jsonl"):
        load_sentences(str(tmp_path / "mine.txt"), read_tagged)
