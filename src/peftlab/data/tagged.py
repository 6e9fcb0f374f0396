"""Words with a tag each, from CoNLL-U, two-column CoNLL or JSONL, also packed as .gz or .bz2; every line is checked.

read_tagged(Path("train.conll.gz"))     # by the ending of the name
read_words(Path("mine.jsonl"))          # the same without tags, as sentences to be answered
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peftlab.data.blocks import blocks, full, lines_of, no_sentence
from peftlab.data.conllu import BETWEEN, Sentence, read_conllu
from peftlab.data.table import NO_TEXT, PACKINGS
from peftlab.errors import UserError

KINDS = (".conllu", ".conll", ".jsonl")
DOCUMENT = "-DOCSTART-"
"""the word that CoNLL-2003 puts between documents, as a sentence of its own"""


@dataclass(frozen=True)
class Tagged:
    """One sentence, a tag for each of its words."""

    words: list[str]
    tags: list[str]
    path: Path
    line: int
    """the number of its first line in the file"""


def kind_of(path: Path) -> str:
    """The ending of a file's name, without that of its packing."""
    return (Path(path.stem) if path.suffix.lower() in PACKINGS else path).suffix.lower()


def read_tagged(path: Path, column: str | None = None) -> list[Tagged]:
    """The words and tags of a file: UPOS or XPOS of a .conllu, the second column of a .conll, "tags" of a .jsonl."""
    kind = kind_of(path)
    if kind == ".conllu":
        sentences = read_conllu(path)
        return [Tagged(each.words, each.tags(column or "upos"), path, each.line) for each in sentences]
    if column is not None and kind in KINDS:
        raise UserError(f"{path} has one tag a word: leave out the column, {column!r}, which is one of CoNLL-U")
    if kind == ".conll":
        return _columns(path)
    if kind == ".jsonl":
        return [Tagged(words, tags, path, line) for line, (words, tags) in _records(path, "words", "tags")]
    raise UserError(f"{path} has no tags: its name must end in {', '.join(KINDS)}, or in .gz or .bz2 after these")


def read_words(path: Path) -> list[Sentence]:
    """The sentences of a file of one of the three kinds, to be answered; a .jsonl needs no tags."""
    kind = kind_of(path)
    assert kind in KINDS
    if kind == ".conllu":
        return read_conllu(path)
    if kind == ".conll":
        return [Sentence.of(each.words, path, each.line) for each in _columns(path)]
    return [Sentence.of(words, path, line) for line, (words,) in _records(path, "words")]


def _columns(path: Path) -> list[Tagged]:
    sentences = [(start, list(full(lines))) for start, lines in blocks(path, lines_of(path))]
    # one for the whole file: in a file with tabs a comment is not a word, a space and a tag
    tabs = any("\t" in line.rstrip() for _, rows in sentences for _, line in rows)
    found = []
    for start, rows in sentences:
        words, tags = [], []
        for place, line in rows:
            cells = line.rstrip().split("\t" if tabs else " ")
            if len(cells) != 2 or not all(map(_is_text, cells)):
                problem = f"{line.rstrip()!r:.60} is not a word and its tag"
                between = "a tab" if tabs else "a tab or a space"
                raise UserError(f"{path}, line {start + place}: {problem} with {between} between them")
            words.append(cells[0])
            tags.append(cells[1])
        if words != [DOCUMENT]:
            found.append(Tagged(words, tags, path, start))
    if not found:
        raise no_sentence(path)
    return found


def _records(path: Path, *keys: str) -> Iterator[tuple[int, list[list[str]]]]:
    """Of each line of a .jsonl its number, and its lists of texts under these names, all of one length."""
    form = ", ".join(f'"{key}": […]' for key in keys)
    for number, line in ((start + i, line) for start, block in blocks(path, lines_of(path)) for i, line in full(block)):
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: it is not JSON ({error})") from None
        lists: list[Any] = [record.get(key) if isinstance(record, dict) else None for key in keys]
        if not all(isinstance(values, list) and all(map(_is_text, values)) for values in lists):
            raise UserError(f"{where}: it is not {{{form}}} with texts that are not empty and in one line without tabs")
        if not lists[0] or len(set(map(len, lists))) > 1:
            problem = " and ".join(f"{len(values)} {key}" for key, values in zip(keys, lists, strict=True))
            raise UserError(f"{where}: it has {problem}: at least one word is needed, and a tag for each")
        yield number, lists


def _is_text(value: Any) -> bool:
    if not isinstance(value, str) or not value.strip() or NO_TEXT.search(value):
        return False
    return not any(mark in value for mark in BETWEEN)
