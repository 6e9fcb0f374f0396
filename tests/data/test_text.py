"""Text for language models: WikiText-2 against its published counts, own files against what was written into them."""

import bz2
import gzip
from pathlib import Path

import pytest

from peftlab.data.sources import fetch_data
from peftlab.data.text import Corpus, load_text
from peftlab.errors import UserError

LINES = [f"this is line {i}" for i in range(1, 41)]


def write(path: Path, lines: list[str]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def refusal(name: object) -> str:
    """The one sentence with which a text is refused."""
    with pytest.raises(UserError) as error:
        load_text(str(name))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.slow
def test_wikitext2_has_its_published_number_of_tokens():
    data = load_text("wikitext2")
    parts = {"train": data.train, "valid": data.validation, "test": data.tests["test"]}
    # Merity et al. count words, and an end for each line, also for those without words
    for (part, text), published in zip(parts.items(), (2_088_628, 217_646, 245_569), strict=True):
        with gzip.open(fetch_data("wikitext2") / f"{part}.raw.gz", "rt", encoding="utf-8", newline="\n") as file:
            lines = sum(1 for _ in file)
        assert sum(len(line.split()) for line in text.lines) + lines == published
    assert data.tests["test"].lines[0] == "= Robert Boulter ="


def test_what_has_no_file_is_the_end_of_the_training_lines(tmp_path):
    data = load_text(str(write(tmp_path / "mine.txt", LINES)))
    assert (data.name, list(data.tests)) == ("mine.txt", ["test"])
    assert data.train.lines == LINES[:36]
    assert (data.validation.lines, data.validation.rows) == (LINES[36:38], [37, 38])
    assert data.tests["test"].lines == LINES[38:]

    write(tmp_path / "folder" / "train.txt", LINES)
    write(tmp_path / "folder" / "dev.raw", ["for the choice"])
    data = load_text(str(tmp_path / "folder"))
    assert (data.train.lines, data.validation.lines) == (LINES[:38], ["for the choice"])
    assert data.tests["test"].lines == LINES[38:]

    write(tmp_path / "folder" / "test_b.txt", ["b"])
    write(tmp_path / "folder" / "test_a.txt", ["a"])
    data = load_text(str(tmp_path / "folder"))
    assert data.train.lines == LINES
    assert {name: part.lines for name, part in data.tests.items()} == {"test_a": ["a"], "test_b": ["b"]}


def test_a_folder_of_text_files_is_one_text_in_the_order_of_their_names(tmp_path):
    folder = tmp_path / "books"
    write(folder / "b.txt", ["", *LINES[10:]])
    write(folder / "a.txt", LINES[:5])
    (folder / "aa.txt.gz").write_bytes(gzip.compress("\n".join(LINES[5:10]).encode()))
    write(folder / "notes.md", ["no text"])
    (folder / "._a.txt").write_bytes(b"\xff")  # what a Mac leaves
    data, single = load_text(str(folder)), load_text(str(write(tmp_path / "all.txt", LINES)))
    assert data.fingerprint() == single.fingerprint()
    assert (data.train.lines, data.name) == (LINES[:36], "books")
    assert data.train.rows == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, *range(2, 28)], "each in its own file"
    write(folder / "test.txt", ["for the test"])
    assert f"there is no file {folder / 'train.txt'}" in refusal(folder), "where parts are named, all are"


def test_packed_files_and_lines_without_text(tmp_path):
    content = "\ufeff first  \r\n\n   \nzweite Zeile: ü 漢\n".encode() + b"more\n" * 30
    for name, packed in {"a.txt": content, "a.txt.gz": gzip.compress(content), "a.bz2": bz2.compress(content)}.items():
        (tmp_path / name).write_bytes(packed)
        data = load_text(str(tmp_path / name))
        assert data.train.lines[:3] == ["first", "zweite Zeile: ü 漢", "more"]
        assert data.train.rows[:3] == [1, 4, 5]


def test_the_fingerprint_is_that_of_the_lines(tmp_path):
    def fingerprint(lines: list[str], name: str = "a.txt") -> str:
        return load_text(str(write(tmp_path / name, lines))).fingerprint()

    assert fingerprint(LINES) == fingerprint(LINES, "b.txt")
    assert fingerprint(LINES) != fingerprint([*LINES[:-1], "another"])
    data = load_text(str(write(tmp_path / "a.txt", LINES)))
    moved = Corpus(data.name, data.train[:-1], data.validation, data.tests)
    assert moved.fingerprint() != data.fingerprint()


def test_mistakes_are_one_sentence_each(tmp_path):
    assert "neither a path that exists" in refusal(tmp_path / "nowhere.txt")
    (tmp_path / "broken.txt").write_bytes(b"fine\n" * 6 + b"a \xff b\n")
    assert "broken.txt, line 7: byte 0xff is not UTF-8" in refusal(tmp_path / "broken.txt")
    (tmp_path / "blank.txt").write_text("\n  \n")
    assert "blank.txt is empty: it holds no line of text" in refusal(tmp_path / "blank.txt")
    assert "too few lines of text to take a test part from" in refusal(write(tmp_path / "one.txt", ["alone"]))
    assert "too few lines of text to take a validation part from" in refusal(write(tmp_path / "two.txt", LINES[:2]))
    (tmp_path / "half.txt.gz").write_bytes(gzip.compress(b"a line\n" * 999)[:-9])
    assert "half.txt.gz cannot be read" in refusal(tmp_path / "half.txt.gz")
    folder = tmp_path / "folder"
    folder.mkdir()
    assert refusal(folder) == f"there is no file {folder / 'train.txt'}"
    write(folder / "trian.txt", LINES)
    write(folder / "test.txt", LINES)
    assert refusal(folder) == f"there is no file {folder / 'train.txt'}: did you mean 'trian.txt'?"
    write(folder / "train.txt", LINES)
    write(folder / "val.txt", LINES)
    write(folder / "valid.txt", LINES)
    assert refusal(folder) == f"{folder} has val.txt and valid.txt: leave one of them there"
