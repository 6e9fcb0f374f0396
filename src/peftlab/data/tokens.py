"""Text as tokens: a vocabulary learned from it, its ids in one piece, and rows of equally many, none of them padding.

    learn_vocabulary(lines, "wordpiece", 8000, lowercase=False)       a tokenizer
    tokenise(tokenizer, lines)                the ids of all lines, one behind the other
    tokenise(tokenizer, lines, end)           the same with an end mark in front and behind each line

Both are made once and kept in the cache, under the hash of all that they follow from; the ids are mapped into memory,
so that processes share them.

An encoder is pretrained on rows: a row takes the next tokens and is framed by the marks that the tokenizer puts around
a text. What is left at the end is too little for a row and left out.

    a row     [CLS] a line another line and the beg [SEP]
    the next  [CLS] ##inning of a third one a fourt [SEP]

Shapes: N tokens of the text, L lines, B rows, T tokens of a row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peftlab.data.files import check_manifest, replace_file, write_manifest
from peftlab.data.sources import cache_folder
from peftlab.data.text import Text
from peftlab.data.tokenizer import Tokenizer
from peftlab.data.words import marks_around
from peftlab.errors import UserError

IDS, STARTS = "ids.bin", "starts.bin"
"""[N] as whole numbers of 32 bits, [L] of 64"""


@dataclass(frozen=True)
class Tokens:
    """Those of a text, mapped from their files."""

    ids: Tensor
    """[N]"""
    starts: Tensor
    """[L] the place of each line's first"""


@dataclass(frozen=True)
class TokenRows:
    """The rows of a text."""

    ids: Tensor
    """[N]"""
    length: int
    """tokens of a row, its marks included"""
    before: list[int]
    """the marks in front"""
    after: list[int]
    """and behind"""

    @property
    def room(self) -> int:
        """Tokens of the text in a row."""
        return self.length - len(self.before) - len(self.after)

    def __len__(self) -> int:
        return len(self.ids) // self.room

    def __getitem__(self, rows: Sequence[int]) -> Tensor:
        """[B, T]."""
        before, after = (torch.tensor(marks).expand(len(rows), -1) for marks in (self.before, self.after))
        inner = torch.stack([self.ids[row * self.room : (row + 1) * self.room] for row in rows])
        return torch.cat([before, inner.long(), after], 1)


def token_rows(tokenizer: Tokenizer, text: Text, length: int, what: str) -> TokenRows:
    """The rows of `length` tokens of a text; `what` it is, for messages."""
    before, after = marks_around(tokenizer)
    if length <= len(before) + len(after):
        raise UserError(f"rows of {length} tokens hold none of the text, only marks: make them longer")
    rows = TokenRows(tokenise(tokenizer, text.lines).ids, length, before, after)
    if not len(rows):
        raise UserError(f"{what} has {len(rows.ids)} tokens, fewer than a row of {length} holds: give more text")
    return rows


def tokenise(tokenizer: Tokenizer, lines: Sequence[str], end: int | None = None) -> Tokens:
    """The tokens of all lines; where there is an end mark, it stands in front of them and behind each."""
    marks = [] if end is None else [end]

    def write(folder: Path) -> list[str]:
        sizes: list[int] = []

        def each() -> Iterator[int]:
            yield from marks
            for line in lines:
                ids = [*tokenizer.ids(line), *marks]
                sizes.append(len(ids))
                yield from ids

        ids = np.fromiter(each(), np.int32)
        starts = np.cumsum([len(marks), *sizes], dtype=np.int64)[:-1]
        folder.mkdir(parents=True, exist_ok=True)
        files: dict[str, NDArray[np.integer]] = {IDS: ids, STARTS: starts}
        for name, numbers in files.items():
            with replace_file(folder / name) as temporary:
                numbers.tofile(temporary)
        return list(files)

    folder = kept("tokens", [tokenizer.to_json(), tokenizer.splits_marks, end], lines, write)
    return Tokens(mapped(folder / IDS, torch.int32), mapped(folder / STARTS, torch.int64))


def learn_vocabulary(lines: Sequence[str], kind: str, size: int, lowercase: bool) -> Tokenizer:
    """A tokenizer of that kind and of at most that size, as `Tokenizer.train_on` makes it."""

    def write(folder: Path) -> list[str]:
        return Tokenizer.train_on(lines, kind, vocab_size=size, lowercase=lowercase).save(folder)

    return Tokenizer.load(kept("vocabularies", [kind, size, lowercase], lines, write))


def kept(what: str, how: list[object], lines: Sequence[str], write: Callable[[Path], list[str]]) -> Path:
    """The folder in the cache of what follows from `how` and the lines; `write` is called where it is not there or not
    whole, and gives the names of the files that it wrote.
    """
    digest = hashlib.sha256(json.dumps(how).encode())
    for line in lines:
        digest.update(json.dumps(line).encode())
    folder = cache_folder() / what / digest.hexdigest()
    if not is_whole(folder):
        try:
            write_manifest(folder, write(folder))
        except OSError as error:
            raise UserError(f"cannot write the cache {folder} ({error}): set PEFTLAB_CACHE to another folder") from None
    return folder


def is_whole(folder: Path) -> bool:
    """Whether its files are there as they were written; what was damaged since is made anew."""
    try:
        return bool(check_manifest(folder))
    except UserError:
        return False


def mapped(path: Path, dtype: torch.dtype) -> Tensor:
    """The numbers in a file; an empty one can't be mapped."""
    size = path.stat().st_size // dtype.itemsize
    return torch.from_file(str(path), shared=False, size=size, dtype=dtype) if size else torch.empty(0, dtype=dtype)
