"""A file's lines as sentences: blank lines stand between them, in CoNLL-U and in the formats with a tag a word."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from peftlab.data.files import is_file
from peftlab.data.table import PACKINGS, BrokenRowError, decoded_lines
from peftlab.errors import UserError


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a text file with their ends."""
    if not is_file(path):
        raise UserError(f"there is no file {path}")
    number = 0
    try:
        with PACKINGS.get(path.suffix.lower(), open)(path, "rb") as file:
            for number, line in enumerate(decoded_lines(file), 1):  # noqa: B007 — said where a line is broken
                yield line
    except BrokenRowError as problem:
        raise UserError(f"{path}, line {number + 1}: {problem}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def blocks(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Lines as sentences, each with the number of its first line; the blank lines after it belong to it."""
    block: list[str] = []
    start = 1
    for number, line in enumerate(lines, 1):
        if block and blank(block[-1]) and not blank(line) and not all(map(blank, block)):
            yield start, block
            block, start = [], number
        block.append(line)
    if all(map(blank, block)):  # only where nothing but blank lines was read
        raise no_sentence(path)
    yield start, block


def full(lines: list[str]) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their places."""
    return ((place, line) for place, line in enumerate(lines) if not blank(line))


def blank(line: str) -> bool:
    """Whether it separates sentences; WNUT's own file ends in a byte-order mark."""
    return not line.strip("\ufeff \t\r\n")


def no_sentence(path: Path) -> UserError:
    """What to say of an empty file."""
    return UserError(f"{path} is empty: it holds no sentence")
