"""Language modelling (N→next): after every token of a text the next one, by a model that sees those before it.

The text is tokenised once (`data/tokens.py`) and packed: its lines stand in one row, each with the end mark behind it,
and are cut into sequences of equal length, so that no token is padding but at the very end. Every token is predicted
once.

    the text       </s> a line </s> another one </s>
    a row is given </s> a line </s> another
    and is to say  a line </s> another one

Perplexity is exp of the mean −log p, per token and per word: another vocabulary has other tokens, the words stay.

Shapes: B rows, T tokens of the longest, N tokens that are to be predicted, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from peftlab.data.batch import Batch
from peftlab.data.text import Text
from peftlab.data.tokenizer import Tokenizer
from peftlab.data.tokens import tokenise
from peftlab.models.writer import Marks
from peftlab.tasks.next_token import IGNORED, NextToken, padded


@dataclass(frozen=True)
class Packed:
    """A text as rows of `length` tokens that follow each other; the last has what is left."""

    tokens: Tensor
    """[1 + N] an end mark, then each line with its end mark"""
    length: int
    rows: list[int]
    """the number of the line in which each row begins, for messages"""
    words: int
    """of the text; each line's end counts as one, as it is predicted too"""
    pad: int
    fixed: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.rows)

    def lengths(self) -> list[int]:
        """The number of tokens of each row."""
        return [self.size(row) for row in range(len(self))]

    def size(self, row: int) -> int:
        """The number of tokens of one of them."""
        return min(self.length, len(self.tokens) - 1 - row * self.length)

    def weight(self, rows: Sequence[int]) -> int:
        """Each token that is to be predicted counts once."""
        return sum(map(self.size, rows))

    def batch(self, rows: Sequence[int]) -> tuple[Batch, Tensor]:
        """These rows, and as labels [B, T] the token after each, −100 at padding."""
        given = [self.tokens[row * self.length : (row + 1) * self.length + 1].long() for row in rows]
        return padded([row[:-1] for row in given], self.pad), padded([row[1:] for row in given], IGNORED).ids


def pack(tokenizer: Tokenizer, text: Text, length: int, mark: Marks, lowercase: bool = False) -> Packed:
    """Tokenise once, and cut into rows of `length` tokens."""
    lines = [line.lower() if lowercase else line for line in text.lines]
    tokens = tokenise(tokenizer, lines, mark.end)
    firsts = torch.arange(1, len(tokens.ids), length)  # the place of what each row is to say first
    owners = torch.searchsorted(tokens.starts, firsts, right=True) - 1
    words = sum(len(line.split()) + 1 for line in lines)
    return Packed(tokens.ids, length, [text.rows[line] for line in owners.tolist()], words, mark.pad)


@dataclass(frozen=True)
class LanguageModel(NextToken):
    """Of a text, every token after those before it."""

    def states(self, model: Any, inputs: Batch, labels: Tensor) -> tuple[Tensor, Tensor]:
        real = labels != IGNORED
        return model.hidden(inputs)[real], labels[real]


def perplexities(judged: Sequence[float], tokens: int, words: int) -> dict[str, float | None]:
    """Per token and per word, from −log p of the rows; None where it is too large for a number.

    >>> perplexities([math.log(4), math.log(4)], tokens=4, words=2)
    {'perplexity': 2.0, 'word_perplexity': 4.0}
    """
    nats = {"perplexity": sum(judged) / tokens, "word_perplexity": sum(judged) / words}
    return {name: math.exp(mean) if mean < math.log(1e300) else None for name, mean in nats.items()}
