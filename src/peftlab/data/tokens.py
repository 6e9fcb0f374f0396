"""Text as rows of equally many tokens, none of them padding: what an encoder is pretrained on.

The lines stand one behind the other; a row takes the next tokens and is framed by the marks that the tokenizer puts
around a text. What is left at the end is too little for a row and left out.

    a row     [CLS] a line another line and the beg [SEP]
    the next  [CLS] ##inning of a third one a fourt [SEP]

A text is tokenised once: its ids are kept in the cache under the hash of text and tokenizer, and mapped into memory, so
that processes share them.

Shapes: N tokens of the text, B rows, T tokens of a row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from peftlab.data.files import check_manifest, replace_file, write_manifest
from peftlab.data.sources import cache_folder
from peftlab.data.text import Text
from peftlab.data.tokenizer import Tokenizer
from peftlab.data.words import marks_around
from peftlab.errors import UserError

FILE = "ids.bin"
"""[N] as whole numbers of 32 bits"""


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
    rows = TokenRows(token_ids(tokenizer, text), length, before, after)
    if not len(rows):
        raise UserError(f"{what} has {len(rows.ids)} tokens, fewer than a row of {length} holds: give more text")
    return rows


def token_ids(tokenizer: Tokenizer, text: Text) -> Tensor:
    """The ids [N] of all lines, from the cache where they are there and whole."""
    digest = hashlib.sha256(json.dumps([tokenizer.to_json(), text.lines]).encode()).hexdigest()
    folder = cache_folder() / "tokens" / digest
    if not is_whole(folder):
        ids = np.fromiter((token for line in text.lines for token in tokenizer.ids(line)), np.int32)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with replace_file(folder / FILE) as temporary:
                ids.tofile(temporary)
            write_manifest(folder, [FILE])
        except OSError as error:
            raise UserError(f"cannot write the cache {folder} ({error}): set PEFTLAB_CACHE to another folder") from None
    path = folder / FILE
    size = path.stat().st_size // 4
    return torch.from_file(str(path), shared=False, size=size, dtype=torch.int32) if size else torch.empty(0).int()


def is_whole(folder: Path) -> bool:
    """Whether the ids are there as they were written; what was damaged since is made anew."""
    try:
        return FILE in check_manifest(folder)
    except UserError:
        return False
