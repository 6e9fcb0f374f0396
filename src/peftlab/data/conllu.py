"""CoNLL-U, one sentence after the other, also packed as .gz or .bz2; every line is checked.

    sentences = read_conllu(Path("en_ewt-ud-dev.conllu.gz"))   # universaldependencies.org/format.html
    heads, relations = sentences[0].tree()
    write_conllu(Path("out.conllu"), [sentence.with_tree(...) for sentence in sentences])

A sentence is its lines: what is asked of it is read off them, and what is changed are columns of its words alone. So
comments, multi-word tokens (3-4), empty nodes (3.1) and every column that nobody touched come back as bytes; only a
byte-order mark before the first line is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from peftlab.data.blocks import blocks, full, lines_of
from peftlab.data.files import write_text
from peftlab.errors import UserError

COLUMNS = 10
ID, FORM, UPOS, XPOS, HEAD, DEPREL = 0, 1, 3, 4, 6, 7
TAGS = {"upos": UPOS, "xpos": XPOS}
"""the parts of speech that all languages share, and the language's own"""
NUMBER = "([0-9]{1,9})"
RANGE, EMPTY = re.compile(f"{NUMBER}-{NUMBER}"), re.compile(f"{NUMBER}[.]{NUMBER}")
BETWEEN = "\t\r\n"
"""what stands between words and lines, and so in none of them"""


class Tree(NamedTuple):
    """The head of each word, counted from 1, 0 at the root, and its relation to it."""

    heads: list[int]
    relations: list[str]


@dataclass(frozen=True)
class Sentence:
    """One sentence of a CoNLL-U file."""

    path: Path
    line: int
    """the number of its first line in the file"""
    lines: tuple[str, ...]
    """as they stand there, with their ends, and the blank ones behind them"""
    places: tuple[int, ...]
    """which of the lines are its words"""

    @classmethod
    def of(cls, words: Sequence[str], path: Path = Path(), line: int = 1) -> Sentence:
        """Words of which nothing is known yet."""
        assert not any(mark in word for word in words for mark in BETWEEN)
        lines = ["\t".join([str(i), word, *["_"] * (COLUMNS - 2)]) + "\n" for i, word in enumerate(words, 1)]
        return cls(path, line, (*lines, "\n"), tuple(range(len(words))))

    @property
    def words(self) -> list[str]:
        """Their forms."""
        return self.column(FORM)

    @property
    def text(self) -> str:
        """The lines as one."""
        return "".join(self.lines)

    @property
    def closed(self) -> str:
        """The same with the blank line at its end, which a file's last sentence may lack."""
        if self.text.endswith(("\n\n", "\n\r\n")):
            return self.text
        return self.text.rstrip("\r\n") + 2 * ("\r\n" if self.lines[0].endswith("\r\n") else "\n")

    def column(self, number: int) -> list[str]:
        """What each word has in a column."""
        return [self.lines[place].rstrip("\r\n").split("\t")[number] for place in self.places]

    def where(self, word: int) -> str:
        """The line of a word, counted from 0, for messages."""
        return f"{self.path}, line {self.line + self.places[word]}"

    def tags(self, column: str = "upos") -> list[str]:
        """The part of speech of each word."""
        tags, place = self.column(TAGS[column]), TAGS[column] + 1
        for word, tag in enumerate(tags):
            if tag in ("", "_"):
                problem = f"the word has no tag: column {place} ({column.upper()}) must hold one"
                raise UserError(f"{self.where(word)}: {problem}")
        return tags

    def tree(self) -> Tree:
        """The heads and relations, found to be a tree with one root."""
        cells, relations = self.column(HEAD), self.column(DEPREL)
        for word, (head, relation) in enumerate(zip(cells, relations, strict=True)):
            if not re.fullmatch(NUMBER, head) or int(head) > len(cells):
                problem = f"its head {head!r} is not a token"
                raise UserError(f"{self.where(word)}: {problem}: 0 or a word from 1 to {len(cells)} is needed")
            if relation in ("", "_"):
                raise UserError(f"{self.where(word)}: it has no relation: column {DEPREL + 1} (DEPREL) must hold one")
        heads = [int(head) for head in cells]
        roots = [word for word, head in enumerate(heads) if head == 0]
        if len(roots) != 1:
            problem = f"a second root, after word {roots[0] + 1}" if roots else "a sentence begins that has no root"
            raise UserError(f"{self.where(roots[1] if roots else 0)}: {problem}: exactly one word has the head 0")
        if cycle := find_cycle([0, *heads]):
            circle = " → ".join(map(str, [*cycle, cycle[0]]))
            raise UserError(f"{self.where(cycle[0] - 1)}: the heads {circle} form a cycle: they must lead to the root")
        return Tree(heads, relations)

    def with_tags(self, tags: Sequence[str]) -> Sentence:
        """The same sentence with these parts of speech."""
        return self._with({UPOS: tags})

    def with_tree(self, tree: Tree) -> Sentence:
        """The same sentence with this tree; an enhanced graph (DEPS) that it may have is another's work and stays."""
        return self._with({HEAD: [str(head) for head in tree.heads], DEPREL: tree.relations})

    def _with(self, columns: dict[int, Sequence[str]]) -> Sentence:
        assert all(len(values) == len(self.places) for values in columns.values())
        lines = list(self.lines)
        for word, place in enumerate(self.places):
            cells = lines[place].split("\t")  # the line's end is part of the last, which nobody changes
            for number, values in columns.items():
                cells[number] = values[word]
            lines[place] = "\t".join(cells)
        return replace(self, lines=tuple(lines))


def read_conllu(path: Path) -> list[Sentence]:
    """The sentences of a CoNLL-U file; whether their heads are trees is asked of each (`Sentence.tree`)."""
    return list(sentences_of(path, lines_of(path)))


def sentences_of(path: Path, lines: Iterable[str]) -> Iterator[Sentence]:
    """The same of lines of CoNLL-U with their ends; `path` is where they come from."""
    return (_sentence(path, start, block) for start, block in blocks(path, lines))


def write_conllu(path: Path, sentences: Iterable[Sentence]) -> None:
    """Write the whole file, or leave what was there."""
    write_text(path, "".join(sentence.text for sentence in sentences))


def find_cycle(heads: Sequence[int]) -> list[int]:
    """A cycle in the heads of words 1 … (place 0 stands for the root), each before its head; [] if there is none.

    >>> find_cycle([0, 3, 0, 4, 1])
    [1, 3, 4]
    """
    seen = [-1, *[0] * (len(heads) - 1)]
    for start in range(1, len(heads)):
        word = start
        while not seen[word]:
            seen[word] = start
            word = heads[word]
        if seen[word] == start:  # back on the way that this start took
            cycle = [word]
            while (word := heads[word]) != cycle[0]:
                cycle.append(word)
            return cycle
    return []


def _sentence(path: Path, start: int, lines: list[str]) -> Sentence:
    places: list[int] = []
    covered = empty = 0  # the last word of a multi-word token, and the empty nodes since the last word
    last = start
    for place, line in full(lines):
        last = start + place
        if line.startswith("#") and not places:
            continue
        where, cells = f"{path}, line {last}", line.rstrip("\r\n").split("\t")
        if len(cells) != COLUMNS:
            hint = "is there a tab inside a form?" if len(cells) > COLUMNS else "a column without content holds _"
            raise UserError(f"{where}: it has {len(cells)} columns, and a line of CoNLL-U has {COLUMNS}: {hint}")
        if not cells[FORM].strip():
            raise UserError(f"{where}: the form is empty: column {FORM + 1} must hold a word")
        due = len(places) + 1
        if cells[ID] == str(due):
            places.append(place)
            empty = 0
        elif (ends := RANGE.fullmatch(cells[ID])) and covered < int(ends[1]) == due <= int(ends[2]):
            covered = int(ends[2])
        elif (node := EMPTY.fullmatch(cells[ID])) and (int(node[1]), int(node[2])) == (due - 1, empty + 1):
            empty += 1
        else:
            raise UserError(f"{where}: its id is {cells[ID]!r} where {due} is due: ids count the words without a gap")
    if not places:
        raise UserError(f"{path}, line {last}: a sentence ends here that has no word")
    if covered > len(places):
        raise UserError(f"{path}, line {last}: the sentence ends at word {len(places)}, inside a multi-word token")
    return Sentence(path, start, tuple(lines), tuple(places))
