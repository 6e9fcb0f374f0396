"""Additions: what a method puts into a site, and what it is given and gives there (`layers/site.py` has the table).

Shapes: B rows, T tokens, D model width, E embedding width, n virtual tokens, L labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn


class States(NamedTuple):
    """What a head reads."""

    first: Tensor
    """[B, D] the hidden state of each row's first token (of its first virtual token where the layout says so)"""
    hidden: Tensor
    """[B, T, D] the real tokens' hidden states"""
    mask: Tensor
    """[B, T] True at real tokens"""
    pooled: Tensor | None
    """[B, D] what the base's own pooler makes of `first`"""


class Virtual(NamedTuple):
    """Virtual tokens to stand before the real ones, left-padded where rows have different numbers of them."""

    vectors: Tensor
    """[B, n, E] in the space of the token embedding"""
    mask: Tensor
    """[B, n] True where a slot is used"""
    placed: Tensor
    """[B, n] True where a virtual token takes a position, the first ones; the head reads the first of them"""
    shift: Tensor
    """[B] by how much the positions of the real tokens move"""
    full: bool
    """every slot is used, so that no mask is needed"""


class KeysValues(NamedTuple):
    """Keys and values to stand before those of the tokens."""

    keys: Tensor
    """[B, n, D]"""
    values: Tensor
    """[B, n, D]"""
    mask: Tensor | None
    """[B, n] True where a slot is used; None: all are"""


class LowRank(NamedTuple):
    """A change of a weight [out, in] that is a product of two thin matrices, scale · BA."""

    A: Tensor
    """[r, in]"""
    B: Tensor
    """[out, r]"""
    scale: float


class Thin(NamedTuple):
    """A thin network that learns and is added to what it reads: y + scale · (W₂ · gelu(W₁y + b₁) + b₂)."""

    down: Tensor
    """[w, D] W₁"""
    down_bias: Tensor
    up: Tensor
    """[D, w] W₂"""
    up_bias: Tensor
    scale: float


class Logits(NamedTuple):
    """What a head gives, for rows that may have different numbers of labels."""

    scores: Tensor
    """[B, L] L is the largest number of labels of any row; beyond a row's own they mean nothing"""
    counts: Tensor | None
    """[B] how many labels each row has, 0 without a head; None: all have L"""


class Addition(nn.Module):
    """What a method puts into a site: a module that is called as its site's kind says."""

    reads_first: bool = False
    """of a head: it reads the first token and no other"""

    @property
    def group(self) -> Any:
        """Additions of equal group can be stacked into one; whatever is not a tensor belongs into it."""
        return type(self)

    @property
    def size(self) -> int:
        """The dimension that differs between members of a group (a rank, a width, a number of tokens)."""
        return 0

    def mixed(self, rows: Sequence[Any], size: int) -> Callable[..., Any]:
        """One addition that treats row b as `rows[b]` does, or not at all where that is None; padded to `size`.

        The rows are members of this addition's group; it lends their shapes where no row is.
        """
        raise NotImplementedError(type(self).__name__)

    def merged(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The weight and bias that do the same without this addition; only where `mergeable`."""
        raise NotImplementedError(type(self).__name__)

    mergeable: ClassVar[bool] = False
    """whether it is a change of a weight or a bias, which `merged` can make"""
    moves: int = 0
    """by how much it moves the positions of the real tokens"""

    def low_rank(self) -> LowRank | None:
        """The thin matrices of a change of a weight that is nothing else: a linear map takes them in one step, and does
        not call it.
        """
        return None

    def bias_shift(self) -> Tensor | None:
        """[out] of a change of a bias that is nothing else: a linear map adds it there, and does not call it."""
        return None

    def thin(self) -> Thin | None:
        """The network of a change of a sublayer's output that is nothing else: a block takes it in one step with the
        sublayer, and does not call it.
        """
        return None

    def combine(self, parts: Sequence[Any], weights: Sequence[float]) -> None:
        """Become the weighted sum of others of its kind."""
        raise NotImplementedError(type(self).__name__)

    def probed(self, given: Tensor) -> Tensor:
        """Of a head: from what it gave for the probes, what is kept of it; a change of any weight must show there."""
        return given

    def folded(self) -> Addition:
        """The same addition without what only training needs."""
        return self


def stack(rows: Sequence[Tensor | None], like: Tensor, size: int | None = None, dim: int = 0) -> Tensor:
    """[B, …] from one tensor a row, zeros where there is none; dimension `dim` is padded with zeros to `size`."""
    shape = list(like.shape)
    shape[dim] = shape[dim] if size is None else size
    empty = like.new_zeros(shape)

    def padded(row: Tensor) -> Tensor:
        missing = list(shape)
        missing[dim] -= row.shape[dim]
        return torch.cat([row, row.new_zeros(missing)], dim)

    whole = shape[dim]
    return torch.stack([empty if row is None else row if row.shape[dim] == whole else padded(row) for row in rows])
