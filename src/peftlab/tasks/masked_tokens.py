"""Masked tokens (N→N): guess the tokens that were hidden, from those on both sides of them.

Devlin et al. 2018 (arXiv 1810.04805), section 3.1: 15 % of a row's tokens are to be guessed; of these 80 % are replaced
by [MASK], 10 % by a token that is drawn, and 10 % stay. Marks such as [CLS] are neither guessed nor drawn. With whole
words all pieces of a word are chosen, or none.

Every row has as many places, so that only these go through the last block and are scored against the vocabulary. All
that is drawn comes with the batch: in training from torch's own generator, whose state a checkpoint keeps, so that a
row is masked in another way each time it is seen, and a training that was interrupted sees what one sees that was not;
to test on, always the same way.

Shapes: B rows, T tokens, k places of a row, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from peftlab.data.batch import Batch
from peftlab.data.tokenizer import Tokenizer
from peftlab.data.tokens import TokenRows
from peftlab.errors import UserError
from peftlab.tasks.next_token import IGNORED
from peftlab.tasks.task import Task

DRAWS = 4
"""numbers that are drawn for each token: whether it is chosen, what becomes of it, which token it becomes, and which
one a generator fills in"""


@dataclass(frozen=True)
class Masked:
    """A batch with tokens to guess."""

    batch: Batch
    """what is given"""
    places: Tensor
    """[B, k] where to guess"""
    chance: Tensor
    """[B, k] numbers from 0 to 1 by which a generator chooses a token"""

    def __len__(self) -> int:
        return len(self.batch)

    def to(self, device: torch.device | str) -> Masked:
        """The same on a device."""
        return Masked(self.batch.to(device), self.places.to(device), self.chance.to(device))


@dataclass(frozen=True)
class Masking:
    """What is hidden of a row, and how."""

    mask: int
    """the id of [MASK]"""
    special: Tensor
    """[V] True at marks"""
    share: float = 0.15
    """of the tokens that is to be guessed"""
    masked: float = 0.8
    """share of these that becomes [MASK]"""
    drawn: float = 0.1
    """share of these that becomes any token"""
    inner: Tensor | None = None
    """[V] True at tokens that go on with a word, where words are chosen as a whole"""

    def count(self, tokens: int) -> int:
        """k, of so many tokens of a text."""
        return max(1, round(self.share * tokens))

    def __call__(self, ids: Tensor, k: int, draws: Tensor) -> tuple[Masked, Tensor]:
        """ids [B, T] and numbers from 0 to 1 [B, 4, T] → what to guess, and the right answers [B, k].

        An answer is −100 where no token is left to be guessed: at a mark, or in a word that would be cut.
        """
        chosen, fate, token, chance = draws.unbind(1)
        special, first = self.special[ids], self.first(ids)
        score = chosen.gather(1, first).masked_fill(special, -1.0)  # a word's pieces have one score
        order = score.topk(k + 1).indices
        places, beyond = order[:, :k], order[:, k:]
        cut = first.gather(1, places) == first.gather(1, beyond)
        old = ids.gather(1, places)
        labels = old.masked_fill(special.gather(1, places) | cut, IGNORED)
        fate, chance = fate.gather(1, places), chance.gather(1, places)
        ordinary = (~self.special).nonzero()[:, 0]
        any_token = ordinary[(token.gather(1, places) * len(ordinary)).long()]
        new = torch.where(fate < self.masked, self.mask, torch.where(fate < self.masked + self.drawn, any_token, old))
        given = ids.scatter(1, places, torch.where(labels == IGNORED, old, new))
        return Masked(Batch(given, torch.ones_like(given)), places, chance), labels

    def first(self, ids: Tensor) -> Tensor:
        """[B, T] the place where the word of each token begins; where words are not asked for, each is one."""
        places = torch.arange(ids.shape[1]).expand_as(ids)
        if self.inner is None:
            return places
        special = self.special[ids]
        begins = ~self.inner[ids] | special
        begins[:, 1:] |= special[:, :-1]  # a row may begin inside a word
        return torch.where(begins, places, 0).cummax(1).values


def masking(tokenizer: Tokenizer, share: float, whole_words: bool, masked: float = 0.8, drawn: float = 0.1) -> Masking:
    """For the vocabulary of a tokenizer."""
    if tokenizer.mask is None:
        raise UserError("this tokenizer has no [MASK]: give one that has, or none, and it is learned from the text")
    marks = (tokenizer.pad, tokenizer.unk, tokenizer.mask, tokenizer.cls, tokenizer.sep, tokenizer.bos, tokenizer.eos)
    special = torch.zeros(tokenizer.vocab_size, dtype=torch.bool)
    special[[mark for mark in marks if mark is not None]] = True
    return Masking(tokenizer.mask, special, share, masked, drawn, inner_pieces(tokenizer) if whole_words else None)


def inner_pieces(tokenizer: Tokenizer) -> Tensor:
    """[V] True at tokens that go on with a word: ##s of WordPiece."""
    inner = torch.tensor([name.startswith("##") for name in tokenizer.tokens(range(tokenizer.vocab_size))])
    if not inner.any():
        raise UserError("whole_words: this tokenizer does not tell where a word begins; give one of the kind WordPiece")
    return inner


@dataclass(frozen=True)
class MaskedRows:
    """The rows of a text, masked batch by batch."""

    text: TokenRows
    masking: Masking
    fixed: bool = False
    """always masked in the same way, to test on"""

    @property
    def rows(self) -> list[int]:
        """The number of each row, counted from 1: it is no line."""
        return list(range(1, len(self) + 1))

    @property
    def places(self) -> int:
        """k."""
        return self.masking.count(self.text.room)

    def __len__(self) -> int:
        return len(self.text)

    def lengths(self) -> list[int]:
        """The number of tokens of each row."""
        return [self.text.length] * len(self)

    def weight(self, rows: Sequence[int]) -> int:
        """Each place counts once, also one of a word that would be cut, of which there is at most one a row."""
        return len(rows) * self.places

    def batch(self, rows: Sequence[int]) -> tuple[Masked, Tensor]:
        """These rows, and the tokens [B, k] that are to be guessed."""
        shape = (DRAWS, self.text.length)
        if self.fixed:
            draws = torch.stack([torch.rand(shape, generator=torch.Generator().manual_seed(row)) for row in rows])
        else:
            draws = torch.rand(len(rows), *shape)
        return self.masking(self.text[rows], self.places, draws)


class Guessed(NamedTuple):
    """Of a row."""

    nats: float
    """−log p of the tokens that were to be guessed"""
    places: int
    """how many these were"""


class MaskedTokens(Task):
    """The cross-entropy at the masked places; to choose by, the geometric mean of the probabilities there."""

    def loss(self, model: Any, inputs: Masked, labels: Tensor) -> Tensor:
        return masked_loss(model(inputs.batch, inputs.places).float(), labels)

    def judge(self, model: Any, inputs: Masked, labels: Tensor) -> Sequence[Guessed]:
        nats = each_nats(model(inputs.batch, inputs.places).float(), labels)
        counts = (labels != IGNORED).sum(1)
        return [Guessed(*row) for row in zip(nats.sum(1).tolist(), counts.tolist(), strict=True)]

    def score(self, judged: Sequence[Guessed], rows: Any) -> float:
        return 1 / self.measures(judged)["perplexity"]

    def measures(self, judged: Sequence[Guessed]) -> dict[str, float]:
        return {"perplexity": perplexity(sum(row.nats for row in judged), sum(row.places for row in judged))}


def each_nats(logits: Tensor, labels: Tensor) -> Tensor:
    """−log p [B, k] of the labels, 0 where there is none."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none").view_as(
        labels
    )


def masked_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean of −log p over the labels; 0, and not a division by it, where there is none."""
    return each_nats(logits, labels).sum() / (labels != IGNORED).sum().clamp(min=1)


def perplexity(nats: float, places: int) -> float:
    """exp of the mean, as far as a number can hold it."""
    return math.exp(min(nats / max(places, 1), 690.0))
