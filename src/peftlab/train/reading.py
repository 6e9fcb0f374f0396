"""What a finished run is given to answer: texts, or sentences that are split already.

read_lines(["a film"], None, pair=False)                          # arguments; none or -: standard input
read_lines(None, Path("mine.txt"), pair=False)                    # a text a line
read_lines(None, Path("mine.conll.gz"), pair=False, words=True)   # sentences of a file that a tagger is trained on
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from peftlab.data.conllu import COLUMNS, sentences_of
from peftlab.data.files import is_file
from peftlab.data.table import PACKINGS
from peftlab.data.tagged import KINDS, kind_of, read_words
from peftlab.errors import UserError
from peftlab.train.annotate import Given
from peftlab.train.config import read_config_file


def answers_words(folder: Path) -> bool:
    """Whether a run is a tagger or a parser; what is no run is told where it is opened."""
    path = folder / "config.toml"
    if not is_file(path):
        return False
    config = read_config_file(path)
    return config.tag is not None or config.parse is not None


def read_lines(texts: Sequence[str] | None, file: Path | None, pair: bool, words: bool = False) -> Iterator[Given]:
    """Texts from arguments, a file, or standard input, in that order; with `pair` two texts with a tab between them.

    Of a file of CoNLL-U its sentences. Where `words` are answered, also of the other files that `train` reads, and of
    lines that are CoNLL-U under another name or on standard input.
    """
    if file is not None and texts:
        raise UserError(f"texts and --file {file} are given: give one of them")
    if file is not None and not is_file(file):
        raise UserError(f"{file} is missing: give a file with one text a line")
    if file is not None and kind_of(file) in (KINDS if words else KINDS[:1]):
        yield from read_words(file)
        return
    if file is not None and file.suffix.lower() in PACKINGS:
        raise UserError(f"{file} is packed: unpack it, and give a file with one text a line")
    given = [] if file is not None or texts is None or list(texts) == ["-"] else list(texts)
    lines = iter(given) if given else decoded_lines(file)
    if words and not given:
        first, lines = begin(lines)
        if first.count("\t") == COLUMNS - 1:
            yield from sentences_of(file or Path("standard input"), lines)
            return
    for number, line in enumerate(lines, 1):
        text = line if given else line.rstrip("\r\n")
        parts = text.split("\t")
        if pair and len(parts) != 2:
            raise UserError(f"line {number} has {len(parts)} texts: with --pair each has two, with a tab between them")
        yield (parts[0], parts[1]) if pair else text


def begin(lines: Iterator[str]) -> tuple[str, Iterator[str]]:
    """The first line that is neither blank nor a comment of CoNLL-U, "" if there is none; and all lines again."""
    read = []
    for line in lines:
        read.append(line)
        if line.strip() and not line.startswith("#"):
            return line, chain(read, lines)
    return "", iter(read)


def decoded_lines(file: Path | None) -> Iterator[str]:
    """The lines of a file or of standard input with their ends; bytes that are no UTF-8 are told and become U+FFFD."""
    with sys.stdin.buffer if file is None else file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                warnings.warn(f"line {number} is not UTF-8 (byte {error.start}): read without it", stacklevel=2)
                yield line.decode("utf-8", "replace")
