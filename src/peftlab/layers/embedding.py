"""Embedding: token + position + segment vectors, then norm, dropout and, where the widths differ, a projection.

Positions are fixed sinusoids (Vaswani et al. 2017, section 3.5), a learned table (Devlin et al. 2018), or none.

Shapes: B rows, T tokens, n virtual tokens, E embedding width, D model width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from peftlab.data.batch import Batch
from peftlab.errors import UserError
from peftlab.layers.dropout import Dropout
from peftlab.layers.linear import Linear
from peftlab.layers.residual import Absent
from peftlab.layers.site import Route, TokensSite, hide_empty_sites


def sinusoids(count: int, dim: int) -> Tensor:
    """[count, dim]: sin(t / 10000^(2i/dim)) at the even places, cos at the odd ones."""
    t = torch.arange(count, dtype=torch.float64, device="cpu")[:, None]
    rate = 10_000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)
    return torch.stack([torch.sin(t * rate), torch.cos(t * rate)], -1).flatten(1)[:, :dim].float()


def halves(count: int, dim: int) -> Tensor:
    """[count, dim]: the same numbers, all sines before all cosines."""
    table = sinusoids(count, dim)
    return torch.cat([table[:, 0::2], table[:, 1::2]], 1)


class Table(nn.Embedding):
    """A learned vector for each number."""

    def reset_parameters(self) -> None:
        """As `Linear.reset_parameters`."""
        if not self.weight.is_meta:
            super().reset_parameters()


class SinusoidalPositions(nn.Module):
    """Fixed: not a parameter and not part of a checkpoint."""

    def __init__(self, count: int, dim: int, make: Callable[[int, int], Tensor] = sinusoids) -> None:
        super().__init__()
        self.count = count
        self.register_buffer("table", make(count, dim), persistent=False)
        self.table: Tensor

    def forward(self, positions: Tensor, mask: Tensor | None) -> Tensor | float:
        """[B, T] → [B, T, E]."""
        return self.table[positions]

    def extra_repr(self) -> str:
        return f"{self.count}, {self.table.shape[1]}"


class LearnedPositions(Table):
    """A table. With `offset` k its first k rows are reserved, the last of them for padding (RoBERTa: k = 2)."""

    def __init__(self, count: int, dim: int, offset: int = 0) -> None:
        super().__init__(offset + count, dim)
        self.count, self.offset = count, offset

    def forward(self, positions: Tensor, mask: Tensor | None) -> Tensor:  # type: ignore[override]
        """[B, T] → [B, T, E]; mask [B, T] is True at real tokens, None where all are."""
        if self.offset:
            positions = positions + self.offset
            positions = positions if mask is None else torch.where(mask, positions, self.offset - 1)
        return super().forward(positions)


class NoPositions(nn.Module):
    """The ablation: a bag of words."""

    def __init__(self, count: int, dim: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, positions: Tensor, mask: Tensor | None) -> Tensor | float:
        return 0.0


POSITIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "learned": LearnedPositions,
    "sinusoidal": SinusoidalPositions,
    "halves": partial(SinusoidalPositions, make=halves),
    "none": NoPositions,
}


def no_tokenizer(text: str) -> list[int]:
    """In the place of a tokenizer, which a model gets when it is loaded with one."""
    raise UserError(f"{text!r} can't become tokens: this model was built without a tokenizer")


class Embedded(NamedTuple):
    """What the blocks are given."""

    x: Tensor
    """[B, n + T, D]"""
    mask: Tensor
    """[B, n + T] True at real and at used virtual tokens"""
    full: bool
    """no padding in `mask`"""
    virtual: int
    """n"""
    first: Tensor
    """[B] the place that a head reads as the row's first"""
    shift: Tensor | None
    """[B] by how much virtual tokens move the positions of the real ones"""


def outside(ids: Tensor | None, table: Table | None) -> int | None:
    """A number that the table has no vector for; None if it has one for each, or where one of the two is missing."""
    if ids is None or table is None:
        return None
    low, high = int(ids.min()), int(ids.max())
    return low if low < 0 else high if high >= table.num_embeddings else None


class Embedding(nn.Module):
    """Token ids to vectors. It receives its parts; a part that a family lacks is None or passes its input on."""

    def __init__(
        self,
        words: Table,
        positions: nn.Module,
        segments: Table | None,
        norm: nn.Module,
        dropout: float,
        project: Linear | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.words = words
        self.scale = scale
        self.tokens = TokensSite()
        self.positions = positions
        self.segments = segments
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.project = project or Absent()
        self.tokenise = no_tokenizer

    def forward(self, batch: Batch, route: Route | None = None) -> Embedded:
        B, T = batch.ids.shape
        virtual = self.tokens(B, route)
        if not torch.compiler.is_compiling():
            self.check(batch, 0 if virtual is None else int(virtual.shift.max()))
        x, mask, full, n = self.vectors(batch.ids), batch.mask, batch.full, 0
        # positions count from the row's first real token, so that padding on the left changes nothing
        start = mask.int().argmax(1)
        positions = torch.arange(T, device=x.device)[None]
        if not full:
            positions = (positions - start[:, None]).clamp(min=0)
        if self.segments is not None:
            x = x + (self.segments.weight[0] if batch.segments is None else self.segments(batch.segments))
        if virtual is None:
            x, first = x + self.positions(positions, mask), start
        else:
            n = virtual.vectors.shape[1]
            x = x + self.positions(positions + virtual.shift[:, None], mask)
            slots = (virtual.placed.cumsum(1) - 1).clamp(0, self.positions.count - 1)  # type: ignore[operator]
            vectors = virtual.vectors + (0.0 if self.segments is None else self.segments.weight[0])
            vectors = vectors + virtual.placed[..., None] * self.positions(slots, virtual.mask)
            x = torch.cat([vectors.to(x.dtype), x], 1)
            mask, full = torch.cat([virtual.mask, mask], 1), full and virtual.full
            first = torch.where(virtual.placed.any(1), virtual.placed.int().argmax(1) if n else n + start, n + start)
        x = self.project(self.dropout(self.norm(x, mask, route)), route)
        return Embedded(x, mask, full, n, first, None if virtual is None else virtual.shift)

    @property
    def room(self) -> int:
        """How many tokens a text may have: the positions, less those that active virtual tokens take."""
        taken = sum(addition.moves for name in self.tokens.active if (addition := self.tokens.get(name)) is not None)
        return int(self.positions.count) - taken  # type: ignore[arg-type]

    def at(self, ids: Tensor, positions: Tensor, route: Route | None = None) -> Tensor:
        """Real tokens at given positions, [B, T] each → [B, T, D]: how a decoder goes on with a text."""
        x = self.vectors(ids) + (0.0 if self.segments is None else self.segments.weight[0])
        x = x + self.positions(positions, None)
        return self.project(self.dropout(self.norm(x, None, route)), route)

    def drawn(self, count: int) -> Tensor:
        """[count, E] the vectors of words that are drawn from the vocabulary, for virtual tokens to start as."""
        words = self.words.weight.detach()
        return words[torch.randint(words.shape[0], (count,), device=words.device)].clone()

    def vectors(self, ids: Tensor) -> Tensor:
        """[B, T] → [B, T, E]."""
        x = self.words(ids)
        return x if self.scale == 1.0 else x * self.scale

    def check(self, batch: Batch, moved: int) -> None:
        """The user's mistakes that a lookup would answer with an index error."""
        if (wrong := outside(batch.ids, self.words)) is not None:
            raise UserError(
                f"token id {wrong} is outside the vocabulary: ids go from 0 to {self.words.num_embeddings - 1}"
            )
        if (wrong := outside(batch.segments, self.segments)) is not None:
            count = 0 if self.segments is None else self.segments.num_embeddings
            raise UserError(f"segment {wrong} is outside the model's {count} segment(s): give segments=None")
        T = batch.ids.shape[1]
        if T + moved > self.positions.count:  # type: ignore[operator]
            extra = f", moved by {moved} virtual ones," if moved else ""
            raise UserError(
                f"a text of {T} tokens{extra} is longer than the model's {self.positions.count} positions: "
                "shorten it, or encode it with truncate=True"
            )

    __repr__ = hide_empty_sites
