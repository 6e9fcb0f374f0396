"""Parallel data: the real Multi30k against its counts, own files against what was written into them."""

import gzip
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from peftlab.data.files import write_manifest
from peftlab.data.parallel import Pairs, Parallel, joined, load_parallel, split
from peftlab.data.sources import DATASETS
from peftlab.data.table import LONGEST_LINE
from peftlab.errors import UserError

ENGLISH, GERMAN = [f"a dog {i}" for i in range(40)], [f"ein Hund {i}" for i in range(40)]


def write(folder: Path, **parts: tuple[list[str], list[str]]) -> Path:
    """A folder with part.en and part.de for each part."""
    folder.mkdir(exist_ok=True)
    for part, sides in parts.items():
        for language, lines in zip(("en", "de"), sides, strict=True):
            (folder / f"{part}.{language}").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole data set: 30 pairs to train on, 5 for validation, 5 to test."""
    cuts = {"train": slice(30), "val": slice(30, 35), "test": slice(35, 40)}
    return write(tmp_path / "mine", **{part: (ENGLISH[cut], GERMAN[cut]) for part, cut in cuts.items()})


def refusal(name: object, direction: str | None = None) -> str:
    """The one sentence with which data is refused, without the folder that a test writes to."""
    with pytest.raises(UserError) as error:
        load_parallel(str(name), direction)
    assert "\n" not in str(error.value)
    return str(error.value)


# The published data


def test_multi30k_in_both_directions(shared):
    path = str(shared / "data" / "multi30k")
    data, back = load_parallel(path), load_parallel(path, "de-en")
    assert (len(data.train), len(data.validation)) == (29_000, 1_014)
    assert list(data.tests) == ["test_2016_flickr", "test_2017_flickr"]
    assert [len(part) for part in data.tests.values()] == [1000, 1000]
    assert data.name == "multi30k en-de"
    assert data.train.sources[0] == "Two young, White males are outside near many bushes."
    assert data.train.targets[0] == "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche."
    assert (back.train.sources, back.train.targets) == (data.train.targets, data.train.sources)
    assert data.fingerprint() != back.fingerprint()
    with gzip.open(shared / "data" / "multi30k" / "val.de.gz", "rt", encoding="utf-8") as file:
        assert data.validation.targets == [line.strip() for line in file]


def test_the_hubs_files_are_jsonl_with_a_key_for_each_language(tmp_path, monkeypatch, folder):
    monkeypatch.setenv("PEFTLAB_CACHE", str(tmp_path / "cache"))
    cached = tmp_path / "cache" / "data" / "multi30k"
    cached.mkdir(parents=True)
    ours = load_parallel(str(folder))
    for file, part in zip(DATASETS["multi30k"].files, (ours.train, ours.validation, ours.tests["test"]), strict=True):
        lines = [json.dumps({"de": de, "en": en}) for en, de in zip(part.sources, part.targets, strict=True)]
        (cached / file).write_text("\n".join(lines))
    write_manifest(cached, DATASETS["multi30k"].files)
    theirs = load_parallel("multi30k")
    assert theirs.fingerprint() == ours.fingerprint()
    assert theirs.name == "multi30k en-de"
    assert load_parallel("multi30k", "de-en").fingerprint() == load_parallel(str(folder), "de-en").fingerprint()
    message = refusal("multi30k", "en-fr")
    assert message.endswith("train.jsonl, row 1: unknown column 'fr': (there are de, en)")


# Folders and files


def test_a_folders_parts_by_their_names_packed_or_not(folder):
    plain = load_parallel(str(folder))
    assert plain.tests == {"test": Pairs(ENGLISH[35:], GERMAN[35:], [1, 2, 3, 4, 5])}
    assert plain.validation.sources == ENGLISH[30:35]
    for path in list(folder.iterdir()):
        name = path.name.replace("val.", "dev.") + ".gz"
        (folder / name).write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    (folder / "README.md").write_text("what this is")
    assert load_parallel(str(folder)).fingerprint() == plain.fingerprint()


def test_two_files_are_read_in_their_order_and_the_missing_parts_drawn(folder):
    data = load_parallel(f"{folder}/train.de, {folder}/train.en")
    parts = [data.train, data.validation, data.tests["test"]]
    assert [len(part) for part in parts] == [27, 2, 1]  # 5 % of what is left, rounded
    assert sorted(row for part in parts for row in part.rows) == list(range(1, 31))
    for part in parts:
        assert part.sources == [GERMAN[row - 1] for row in part.rows]
        assert part.targets == [ENGLISH[row - 1] for row in part.rows]
    again, other = (load_parallel(f"{folder}/train.de,{folder}/train.en", seed=seed) for seed in (0, 1))
    assert again == data
    assert other.train != data.train
    assert "5% drawn as the validation part with seed 0" in data.about


def test_a_byte_order_mark_windows_line_ends_and_spaces_change_nothing(folder):
    plain = load_parallel(str(folder))
    text = "\ufeff" + "".join(f" {line}\t\r\n" for line in ENGLISH[:30]).removesuffix("\r\n")
    (folder / "train.en").write_bytes(text.encode())
    assert load_parallel(str(folder)) == plain


def test_only_a_line_feed_ends_a_line(folder):
    lines = ["one\u2028line", "and\x0banother\x85one", *ENGLISH[2:30]]
    (folder / "train.en").write_text("\n".join(lines), encoding="utf-8")
    assert load_parallel(str(folder)).train.sources == lines


# Mistakes


def test_a_line_with_an_empty_side_is_left_out_of_training_and_counts_in_a_test(folder):
    write(folder, train=([*ENGLISH[:2], "", "x", " "], [*GERMAN[:2], "y", "\u00a0", ""]), test=(["a", "b"], ["", "B"]))
    with pytest.warns(UserWarning, match="empty side") as told:
        data = load_parallel(str(folder))
    assert data.train == Pairs(ENGLISH[:2], GERMAN[:2], [1, 2])
    assert data.tests["test"] == Pairs(["a", "b"], ["", "B"], [1, 2])
    messages = sorted(str(warning.message).replace(f"{folder}/", "") for warning in told)
    assert messages == [
        "test.en and test.de: 1 of the 2 lines have an empty side, the first is line 1; they stay in the test part",
        "train.en and train.de: 3 of the 5 lines have an empty side, the first is line 3; training leaves them out",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "train.de is empty: it holds no line of text"),
        (b"\n \n", "train.de is empty: it holds no line of text"),
        (b"a\nb\nc", "train.en has 30 lines and train.de has 3: each line of one must be the translation of the same"),
        ("gut\nschön".encode("latin-1"), "train.de, line 2: byte 0xf6 is not UTF-8: save the file as UTF-8 text"),
        ("gut".encode("utf-16-le"), "train.de, line 1: it holds a NUL byte: save the file as UTF-8 text"),
        (b"a\n" + b"x" * 2**20, f"train.de, line 2: the line is longer than {LONGEST_LINE:,} bytes"),
    ],
    ids=["empty", "blank", "short", "latin-1", "utf-16", "long"],
)
@pytest.mark.parametrize("packed", [False, True])
def test_what_is_wrong_with_a_file_is_said_with_its_line(folder, content, message, packed):
    path = folder / "train.de"
    path.write_bytes(content)
    if packed:
        path = path.rename(folder / "train.de.gz")
        path.write_bytes(gzip.compress(content))
        message = message.replace("train.de", "train.de.gz")
    for name in (folder, f"{folder}/train.en,{path}"):
        assert refusal(name).replace(f"{folder}/", "").startswith(message)


def test_a_part_without_one_whole_pair_is_refused(folder):
    write(folder, train=(["a", ""], ["", "b"]))
    assert refusal(folder).endswith("train.de: not one of the 2 lines has text on both sides")
    write(folder, train=(["a"], ["b"]))
    assert "too few pairs to draw a validation part from" in refusal(f"{folder}/train.en,{folder}/train.de")


def test_a_missing_file_is_told_with_the_nearest_one(folder, tmp_path):
    message = refusal(f"{folder}/train.en,{folder}/trian.de")
    assert message == f"there is no file {folder}/trian.de: did you mean 'train.de'?"
    assert refusal(f"{folder}/train.en,{tmp_path}/no/x.de") == f"there is no file {tmp_path}/no/x.de"
    assert refusal(f"{folder}/train.en,{folder}") == f"there is no file {folder}"
    (folder / "val.de").rename(folder / "val.ed")
    message = refusal(folder)
    assert message == f"{folder}, validation part: unknown language 'de': (there are ed, en)"
    for language in ("en", "de"):
        (folder / f"train.{language}").rename(folder / f"trian.{language}")
    assert refusal(folder) == f"there is no file {folder}/train.en: did you mean 'trian.en'?"


def test_a_language_that_is_not_there_is_told_with_those_that_are(folder):
    assert refusal(folder, "en-fr") == f"{folder}, train part: unknown language 'fr': (there are de, en)"
    for direction in ("en", "en-", "en-de-fr", "en-en", "en de"):
        assert f"the direction {direction!r} does not name two languages" in refusal(folder, direction)


def test_what_is_neither_a_folder_nor_two_files(folder):
    en, de = folder / "train.en", folder / "train.de"
    assert "is one file: give two with a comma" in refusal(en)
    assert "must be two files" in refusal(f"{en},{de},{en}")
    assert "no direction is given" in refusal(f"{en},{de}", "de-en")
    assert "did you mean 'multi30k'" in refusal("multi30")


def test_two_files_for_one_side_are_refused(folder):
    (folder / "train.de.gz").write_bytes(gzip.compress(b"x"))
    assert refusal(folder) == f"{folder} has train.de and train.de.gz: leave one of them there"
    (folder / "train.de.gz").unlink()
    (folder / "valid.en").write_text("x")
    assert refusal(folder) == f"{folder} has val.en and valid.en: leave one of them there"


def test_a_damaged_packed_file_is_refused(folder):
    path = folder / "train.de"
    packed = gzip.compress(path.read_bytes())
    path.unlink()
    for broken in (packed[:-12], packed[:20] + b"\xff" * 20 + packed[40:], b"plain"):
        (folder / "train.de.gz").write_bytes(broken)
        assert refusal(folder).startswith(f"{folder}/train.de.gz cannot be read: ")


# Parts


@pytest.mark.parametrize("k", [1, 2, 3, 7, 40])
def test_joined_pairs_hold_each_pair_once_and_keep_both_sides_together(k):
    part = Pairs(ENGLISH, GERMAN, list(range(1, 41)))
    long = joined(part, k, seed=3)
    assert len(long) == 40 // k
    translation = dict(zip(ENGLISH, GERMAN, strict=True))
    words = [source.split() for source in long.sources]
    captions = [[" ".join(row[i : i + 3]) for i in range(0, len(row), 3)] for row in words]
    assert {len(row) for row in captions} == {k}
    assert max(Counter(caption for row in captions for caption in row).values()) == 1
    assert long.targets == [" ".join(translation[caption] for caption in row) for row in captions]
    assert long.rows == [ENGLISH.index(row[0]) + 1 for row in captions]
    assert joined(part, k, seed=3) == long != joined(part, k, seed=4)


@pytest.mark.parametrize("k", [0, -1, 41])
def test_a_number_that_joins_nothing_is_refused(k):
    with pytest.raises(UserError, match=f"k={k} does not join 40 pairs"):
        joined(Pairs(ENGLISH, GERMAN, list(range(1, 41))), k, seed=0)


def test_split_draws_what_random_samples():
    part = Pairs(ENGLISH, GERMAN, list(range(1, 41)))
    rest, drawn = split(part, 0.25, seed=5)
    expected = sorted(random.Random(5).sample(range(40), 10))
    assert drawn == part.take(expected)
    assert rest == part.take([i for i in range(40) if i not in expected])


def test_the_fingerprint_tells_data_apart():
    def fingerprint(source: str, target: str, test: str = "test", other: str = "v") -> str:
        part, held = Pairs([source, "b"], [target, "B"], [1, 2]), Pairs([other], ["V"], [1])
        return Parallel("x", part, held, {test: held}, "somewhere").fingerprint()

    same = fingerprint("a", "A")
    assert same == fingerprint("a", "A")
    assert len(same) == 64
    others = [("A", "a"), ("a", "B"), ("a", "A", "test_2016"), ("a", "A", "test", "w")]
    assert len({same, *(fingerprint(*other) for other in others)}) == 5
