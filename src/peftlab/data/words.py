"""Words to subwords and back: sentences that are split already, and which token speaks for which word.

The first subword of a word speaks for it (Devlin et al. 2018, arXiv 1810.04805, section 5.3). A word that becomes no
subword at all, such as a lone control character, is given the unknown token. What is longer than a model's positions is
cut behind a word, and the words that are lost are counted.

    words          The      unbelievable           end
    tokens  [CLS]  the   un  ##bel  ##ie  ##vable  end  [SEP]
    firsts         1     2                         6

Shapes: B sentences, T tokens of the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from peftlab.data.batch import Batch
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError

NO_WORD = -100
"""the label of a token that speaks for no word: marks, further subwords, padding"""
UNKNOWN = -1
"""the label of a word whose label is not known, or was not among those of the training"""


@dataclass(frozen=True)
class Subwords:
    """Tokenised sentences, ragged: padding is decided batch by batch."""

    ids: list[list[int]]
    """the tokens of each, with the marks around them"""
    firsts: list[list[int]]
    """the place of each word's first subword among them; a cut sentence has fewer than it had words"""
    pad: int
    lost: int
    """how many words were cut off"""
    blank: int
    """how many became no subword, and stand as the unknown token"""

    def __len__(self) -> int:
        return len(self.ids)

    def lengths(self) -> list[int]:
        """The number of tokens of each."""
        return [len(row) for row in self.ids]

    def weight(self, rows: Sequence[int]) -> int:
        """Each word that is left counts once."""
        return sum(len(self.firsts[row]) for row in rows)

    def batch(self, rows: Sequence[int]) -> Batch:
        """These sentences, padded to the longest of them."""
        ids = pad_sequence([torch.tensor(self.ids[row]) for row in rows], batch_first=True, padding_value=self.pad)
        return Batch(ids, torch.arange(ids.shape[1]) < torch.tensor([[len(self.ids[row])] for row in rows]))

    def labels(self, rows: Sequence[int], values: Sequence[Sequence[int]]) -> Tensor:
        """[B, T] the value of each word of these sentences at the token that speaks for it, −100 elsewhere."""
        labels = torch.full((len(rows), max(len(self.ids[row]) for row in rows)), NO_WORD)
        for b, row in enumerate(rows):
            labels[b, self.firsts[row]] = torch.tensor(values[row])
        return labels


@dataclass(frozen=True)
class OnSubwords:
    """Tokenised sentences with something to learn of each word; what that is a subclass adds."""

    words: Subwords
    rows: list[int]
    """the number of each sentence's first line in the file it came from, for messages"""
    unseen: int
    """how many words have a label that is not among the names"""
    fixed: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.rows)

    def lengths(self) -> list[int]:
        """The number of tokens of each."""
        return self.words.lengths()

    def weight(self, rows: Sequence[int]) -> int:
        """Each word counts once."""
        return self.words.weight(rows)


def encode_words(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], max_length: int) -> Subwords:
    """Tokenise once; a sentence that would have more than `max_length` tokens with its marks loses its last words."""
    before, after = marks_around(tokenizer)
    room = max_length - len(before) - len(after)
    if room < 1:
        least = len(before) + len(after) + 1
        raise UserError(f"max_length={max_length} leaves no room for a word: it must be at least {least}")

    @cache
    def subwords(text: str) -> list[int]:
        return tokenizer.ids(text)

    ids, firsts = [], []
    lost = blank = 0
    for words in sentences:
        assert words
        row: list[int] = []
        places: list[int] = []
        for word in words:
            # each word as it stands in a text: a byte-level vocabulary writes the space before it into its first token
            pieces = subwords(f" {word}" if places else word)
            if not pieces:
                blank += 1
                pieces = [_unknown(tokenizer, word)]
            if places and len(row) + len(pieces) > room:
                break
            places.append(len(before) + len(row))
            row += pieces[:room]
        lost += len(words) - len(places)
        ids.append([*before, *row, *after])
        firsts.append(places)
    return Subwords(ids, firsts, tokenizer.pad or 0, lost, blank)


def marks_around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that stand before and after a text, as `Tokenizer.encode` has them."""
    text = "a"
    inner, row = tokenizer.ids(text), tokenizer.encode(text).ids[0].tolist()
    start = next(i for i in range(len(row)) if row[i : i + len(inner)] == inner)
    return row[:start], row[start + len(inner) :]


def _unknown(tokenizer: Tokenizer, word: str) -> int:
    if tokenizer.unk is None:
        raise UserError(f"the word {word!r} becomes no token, and this tokenizer has no unknown token: leave it out")
    return tokenizer.unk
