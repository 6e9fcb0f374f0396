"""Attention: softmax(score(Q, K)) V, over several heads, from one sequence to itself or to another.

Vaswani et al. 2017 (arXiv 1706.03762), section 3.2; the three scores after Luong et al. 2015 (arXiv 1508.04025).
`attend` reads like the equation and gives every intermediate; unless somebody looks, `forward` takes a fused kernel:
our own on a processor (layers/fused.py), else torch's, which on a processor drops no weights (layers/dropped.py). One
query a row needs neither, nor keys and values (layers/one_query.py).

    python -m pytest tests/layers/test_attention.py

Shapes: B rows, T tokens (Tq of the queries, Tk of the keys), D model width, H heads, d = D / H.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peftlab import native
from peftlab.errors import UserError
from peftlab.layers.cache import Fixed, Growing
from peftlab.layers.dropout import dropout as drop
from peftlab.layers.dropout import in_65536
from peftlab.layers.dropped import attend_dropped
from peftlab.layers.fused import attend_fused
from peftlab.layers.linear import Linear
from peftlab.layers.masks import weigh
from peftlab.layers.one_query import attend_one
from peftlab.layers.site import KVSite, Route, hide_empty_sites


class Dot(nn.Module):
    """score = QKᵀ."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.scale = 1.0

    def forward(self, q: Tensor) -> Tensor:
        return q


class Scaled(Dot):
    """score = QKᵀ / √d, so that its variance does not grow with d."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__(heads, width)
        self.scale = width**-0.5


class Weighted(Dot):
    """score = (QW)Kᵀ, the bilinear form with a matrix W [d, d] a head that is learned."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__(heads, width)
        self.weight = nn.Parameter(torch.eye(width).repeat(heads, 1, 1) * width**-0.5)

    def forward(self, q: Tensor) -> Tensor:
        return q @ self.weight


SCORES: dict[str, Callable[[int, int], Dot]] = {"dot": Dot, "scaled": Scaled, "weighted": Weighted}


class Look(NamedTuple):
    """Everything that attention computes on its way, for those who look."""

    q: Tensor
    """[B, H, Tq, d] queries"""
    k: Tensor
    """[B, H, Tk, d] keys; those of a prefix come first"""
    v: Tensor
    """[B, H, Tk, d] values"""
    scores: Tensor
    """[B, H, Tq, Tk] before the softmax; the smallest number there is where the mask forbids"""
    weights: Tensor
    """[B, H, Tq, Tk] after it; each row sums to 1, or to 0 where nothing may be seen"""
    mixed: Tensor
    """[B, H, Tq, d] the weighted sums of the values"""


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None, dropout: float = 0.0) -> Look:
    """softmax(QKᵀ · scale) V, step by step. A query that may see nothing yields zeros, not NaN."""
    scores, weights = weigh(q @ k.transpose(-2, -1) * scale, mask)
    return Look(q, k, v, scores, weights, drop(weights, dropout) @ v)


def split(t: Tensor, heads: int) -> Tensor:
    """[B, T, D] → [B, H, T, d]: head h takes the h-th slice of the width."""
    return t.view(*t.shape[:-1], heads, -1).transpose(1, 2)


def side_by_side(t: Tensor) -> Tensor:
    """[B, H, T, d] → [B, T, D]: the way back."""
    return t.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Multi-head attention: from x to itself, or to `memory` (cross-attention)."""

    def __init__(self, dim: int, heads: int, score: str = "scaled", dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        if dim % heads:
            raise UserError(f"{heads} heads do not divide a width of {dim}: the width must be a multiple of the heads")
        self.heads, self.dropout = heads, dropout
        self.q = Linear(dim, dim, bias)
        self.k = Linear(dim, dim, bias)
        self.v = Linear(dim, dim, bias)
        self.score = SCORES[score](heads, dim // heads)
        self.kv = KVSite()
        self.o = Linear(dim, dim, bias)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        route: Route | None = None,
        looks: list[Look] | None = None,
        kept: Growing | Fixed | None = None,
    ) -> Tensor:
        """x [B, Tq, D], memory [B, Tk, D], mask [B, 1, Tq or 1, Tk] → [B, Tq, D].

        With a list for `looks` the slow path runs and leaves its `Look` there. With `kept` the keys and values of
        earlier calls are seen too; those of a prefix are never among them.
        """
        q = self.q(x, route)
        if looks is None and kept is None and (found := self.one_query(q, memory, mask, route)) is not None:
            return self.o(found, route)
        k, v = self.keys_values(x if memory is None else memory, route, kept)
        if not self.kv.idle(route):
            k, v, mask = self.kv(k, v, mask, route)
        q, k, v = (split(t, self.heads) for t in (q, k, v))
        q = self.score(q)
        dropout = self.dropout if self.training else 0.0
        if looks is not None:
            looks.append(attend(q, k, v, self.score.scale, mask, dropout))
            mixed = looks[-1].mixed
        elif native.fits(q, k):
            mixed = attend_fused(q, k, v, self.score.scale, mask, dropout)
        elif in_65536(dropout) and x.device.type == "cpu" and not torch.compiler.is_compiling():
            mixed = attend_dropped(q, k, v, self.score.scale, mask, dropout)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout, scale=self.score.scale)
        return self.o(side_by_side(mixed), route)

    def one_query(self, q: Tensor, memory: Tensor | None, mask: Tensor | None, route: Route | None) -> Tensor | None:
        """[B, 1, D] of a query that is the only one of its row; None where keys and values must be made."""
        if memory is None or q.shape[1] != 1 or memory.shape[1] == 1 or not self.kv.idle(route):
            return None
        k, v = self.k.map(route), self.v.map(route)
        if k is None or v is None:
            return None
        dropout = self.dropout if self.training else 0.0
        q = self.score(split(q, self.heads))
        return side_by_side(attend_one(q, memory, k, v, self.score.scale, mask, dropout))

    def keys_values(self, memory: Tensor, route: Route | None, kept: Growing | Fixed | None) -> tuple[Tensor, Tensor]:
        """[B, Tk, D] each."""
        if kept is not None and kept.complete is not None:
            return kept.complete
        k, v = self.k(memory, route), self.v(memory, route)
        return (k, v) if kept is None else kept.add(k, v)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, dropout={self.dropout}"

    __repr__ = hide_empty_sites
