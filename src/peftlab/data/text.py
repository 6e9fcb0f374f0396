"""Raw text to train a language model on: WikiText-2 (Merity et al. 2016, arXiv 1609.07843) or one's own files.

    load_text("wikitext2")                 articles of the English Wikipedia, fetched and checked
    load_text("book.txt")                  one file, also as .gz or .bz2
    load_text("data/letters")              a folder with train.txt, valid.txt (or val, validation, dev) and test.txt,
                                           or with any text files (*.txt): one text, in the order of their names

A line is a text of its own; the spaces around it and lines without text are left out. What there is no file for is
taken from the end of the training lines: the last 5 % are the test, the 5 % before them the validation. Whatever is
wrong with a line is said before anything runs.
"""

import difflib
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from peftlab.data.files import is_file
from peftlab.data.sources import fetch_data
from peftlab.data.table import PACKINGS, BrokenRowError, decoded_lines
from peftlab.errors import UserError

PART = re.compile(r"(train|val|valid|validation|dev|test\w*)\.(\w+)")
ENDINGS = ("txt", "raw")
ANY = re.compile(r"([^.].*)\.(txt)")
"""what a folder is read from where no file is named as a part"""
TAKEN = 0.05
"""share of the training lines that a missing validation or test part takes"""


@dataclass(frozen=True)
class Text:
    """Lines with words, in their order."""

    lines: list[str]
    rows: list[int]
    """The number of each line in the file it came from, counted from 1, for messages."""

    def __post_init__(self) -> None:
        assert len(self.lines) == len(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> "Text":
        return Text(self.lines[part], self.rows[part])


@dataclass(frozen=True)
class Corpus:
    """What to train a language model on, what to choose the best checkpoint by, and what to report."""

    name: str
    train: Text
    validation: Text
    tests: dict[str, Text]
    """The text to report, by the name of its file."""

    def fingerprint(self) -> str:
        """The SHA-256 of all lines, in hexadecimal: equal for equal data, wherever it was read from."""
        parts = [("train", self.train), ("validation", self.validation), *sorted(self.tests.items())]
        return hashlib.sha256(json.dumps([(name, part.lines) for name, part in parts]).encode()).hexdigest()


def load_text(name: str) -> Corpus:
    """The text of a short name, a file or a folder, checked and split."""
    path = fetch_data(name)
    files = _parts(path) if path.is_dir() else {"train": [path]}
    parts = {part: read_text(*paths) for part, paths in files.items()}
    train = parts.pop("train")
    count = max(1, round(TAKEN * len(train)))
    for part in ("test", "validation"):
        if not any(other.startswith(part) for other in parts):
            if len(train) <= count:
                raise UserError(f"{path}: there are too few lines of text to take a {part} part from")
            train, parts[part] = train[:-count], train[-count:]
    return Corpus(path.resolve().name, train, parts.pop("validation"), parts)


def read_text(*paths: Path) -> Text:
    """The lines of files that have text."""
    numbered = [(line, row) for path in paths for row, line in enumerate(read_lines(path), 1) if line]
    return Text([line for line, _ in numbered], [row for _, row in numbered])


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, also packed, without the spaces around them."""
    if not is_file(path):
        raise missing(path)
    lines: list[str] = []
    try:
        with PACKINGS.get(path.suffix.lower(), open)(path, "rb") as file:
            for line in decoded_lines(file):
                lines.append(line.strip())
    except BrokenRowError as problem:
        raise UserError(f"{path}, line {len(lines) + 1}: {problem}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not any(lines):
        raise UserError(f"{path} is empty: it holds no line of text")
    return lines


def part_files(folder: Path, pattern: re.Pattern[str] = PART) -> Iterator[tuple[str, str, Path]]:
    """The files of a folder that are parts by their names: train, validation or test…, the name's ending, the file."""
    for path in sorted(folder.iterdir()):
        if match := pattern.fullmatch(path.stem if path.suffix.lower() in PACKINGS else path.name):
            yield match[1] if match[1].startswith(("train", "test")) else "validation", match[2], path


def missing(path: Path) -> UserError:
    """The error for a file that is not there, with the nearest one that is."""
    try:
        names = sorted(other.name for other in path.parent.iterdir() if other.is_file())
    except (OSError, ValueError):  # no such folder, a NUL
        names = []
    near = difflib.get_close_matches(path.name, names, n=1)
    return UserError(f"there is no file {path}" + (f": did you mean {near[0]!r}?" if near else ""))


def _parts(folder: Path) -> dict[str, list[Path]]:
    """The files of each part of a folder: one by its name, or all that there are to train on, where none has one."""
    named, texts = list(part_files(folder)), [path for _, _, path in part_files(folder, ANY)]
    if texts and not named:
        return {"train": texts}
    found: dict[str, list[Path]] = {}
    for part, ending, path in named:
        if ending in ENDINGS:
            if part in found:
                raise UserError(f"{folder} has {found[part][0].name} and {path.name}: leave one of them there")
            found[part] = [path]
    if "train" not in found:
        raise missing(folder / "train.txt")
    return found
