"""Attention by locality-sensitive hashing: a token looks only at those that a hash finds near it, n·log n and not n².

Kitaev et al. 2020 (arXiv 2001.04451), section 2. Queries and keys are one vector, at unit length where it is a key; so
a query's largest products are with its neighbours on the sphere, and those share its bucket, most of the time. Tokens
are sorted by bucket and cut into chunks, a chunk looks at itself and at the one before, and what one round of hashing
misses another finds: the rounds are averaged, each weighted by how much of the softmax it has seen.

    attention = LSHAttention(dim=64, heads=4, chunk=64, rounds=4, causal=True)
    attention(x)                                                # [B, T, 64], T of any length
    attend_all(q, v, causal=True)                               # what it comes near to, in n² and readable

A token sees itself only where it sees nothing else, for it is always its own nearest. "Causal" is a matter of values:
no token's vector enters that of an earlier one, but where the sorted tokens are cut depends on all of them.

Shapes: B rows, T tokens, H heads, d width of a head, D model width, R rounds; c tokens of a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peftlab.layers.linear import Linear
from peftlab.layers.local import FORBIDDEN, attend_chunks, in_chunks, tolls
from peftlab.layers.site import Route, hide_empty_sites

LAST_RESORT = 1e4
"""taken from the score of a token with itself"""


class LSHAttention(nn.Module):
    """Multi-head attention from x to what its hashes find; it has no place for keys from outside."""

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int | None = None,
        chunk: int = 64,
        rounds: int = 4,
        buckets: tuple[int, ...] | None = None,
        causal: bool = False,
        seed: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        inner = heads * (head_dim or dim // heads)
        self.heads, self.chunk, self.rounds, self.buckets = heads, chunk, rounds, buckets
        self.causal, self.seed, self.dropout = causal, seed, dropout
        self.q = Linear(dim, inner, bias=False)  # the keys, too
        self.v = Linear(dim, inner, bias=False)
        self.o = Linear(inner, dim, bias=False)

    def forward(
        self, x: Tensor, route: Route | None = None, mask: Tensor | None = None, hashed: Hashed | None = None
    ) -> Tensor:
        """x [B, T, D] → [B, T, D]; mask [B, T] is True at real tokens. What was hashed before is not hashed again."""
        T, hashed = x.shape[1], hashed or Hashed(self.seed)
        x, mask, chunk = in_chunks(x, mask, self.chunk)
        q, v = (linear(x, route).unflatten(-1, (self.heads, -1)) for linear in (self.q, self.v))
        if hashed.order is None:
            hashed.order = self.order(q.detach(), mask, hashed.seed)
        mixed = attend_sorted(q, v, hashed.order, chunk, mask, self.causal, self.dropout if self.training else 0.0)
        return self.o(mixed[:, :T].flatten(2), route)

    def order(self, q: Tensor, mask: Tensor | None, seed: int) -> Tensor:
        """[B, H, R, T] the tokens by bucket and in a bucket by position, padding last; in one chunk as they stand."""
        B, T, H, _ = q.shape
        if self.chunk >= T:
            return torch.arange(T, dtype=torch.int32, device=q.device).expand(B, H, 1, T)
        found = buckets_of(q, self.rounds, self.buckets or usual_buckets(T, self.chunk), seed)
        if mask is not None:
            found = found.masked_fill(~mask[:, None, None], int(found.max()) + 1)
        return found.argsort(dim=-1, stable=True).int()

    def extra_repr(self) -> str:
        return f"heads={self.heads}, chunk={self.chunk}, rounds={self.rounds}, causal={self.causal}"

    __repr__ = hide_empty_sites


class Hashed:
    """What one layer's hashing found in a pass, for whoever goes through it again: rounding would flip a bucket."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        """of the rotations"""
        self.order: Tensor | None = None
        """[B, H, R, T] once it is known"""


def attend_all(q: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """Full attention with shared queries and keys, softmax(Q·unit(Q)ᵀ) V, step by step; all [B, T, H, d]."""
    T = q.shape[1]
    scores = torch.einsum("bihd,bjhd->bhij", q, unit(q))
    scores = scores.masked_fill(torch.eye(T, dtype=torch.bool, device=q.device), -LAST_RESORT)
    if causal:
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1), -FORBIDDEN)
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], -FORBIDDEN)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)


def unit(q: Tensor) -> Tensor:
    """The same directions at length one: what a query is as a key."""
    return q * (q.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * q.shape[-1] ** -0.5


def usual_buckets(T: int, chunk: int) -> tuple[int, ...]:
    """About two for each chunk, so that a bucket fits into one; many are made of two hashes, or to find them were n².

    >>> usual_buckets(1024, 64), usual_buckets(65536, 64)
    ((32,), (32, 64))
    """
    power = (2 * (T // chunk)).bit_length() - 1
    return (2**power,) if 2**power <= 2 * chunk else (2 ** (power // 2), 2 ** (power - power // 2))


def buckets_of(q: Tensor, rounds: int, factors: tuple[int, ...], seed: int) -> Tensor:
    """Angular LSH (Andoni et al. 2015, arXiv 1509.02897): h(x) = argmax([xR; −xR]), in each round with another random
    R; of several factors, one such digit for each. [B, T, H, d] → [B, H, R, T].
    """
    B, T, H, d = q.shape
    halves = [factor // 2 for factor in factors]
    draw = torch.Generator().manual_seed(seed)
    rotations = torch.randn(H, d, rounds, sum(halves), generator=draw, dtype=q.dtype).to(q.device)
    rotated = torch.einsum("bthd,hdre->bhtre", q, rotations)
    found, below = torch.zeros(B, H, T, rounds, dtype=torch.long, device=q.device), 1
    for part, half in zip(rotated.split(halves, -1), halves, strict=True):
        high, low = part.max(-1), part.min(-1)
        found += below * torch.where(high.values >= -low.values, high.indices, low.indices + half)
        below *= 2 * half
    return found.transpose(2, 3).contiguous()


def attend_sorted(
    q: Tensor, v: Tensor, order: Tensor, chunk: int, mask: Tensor | None, causal: bool, dropout: float
) -> Tensor:
    """Sort, attend in chunks, sort back, sum over the rounds; q, v [B, T, H, d], order [B, H, R, T] → [B, T, H, d]."""
    B, T, H, d = q.shape
    R = order.shape[2]
    there, back, again = rows(order)
    place = order.reshape(B * H, -1, chunk)
    toll = tolls(place, mask, LAST_RESORT / FORBIDDEN)
    q, k, v = (Take.apply(t.reshape(-1, d), there, back).view(B * H, -1, chunk, d) for t in (q, unit(q), v))
    mixed, masses = attend_chunks(q, k, v, place, toll, causal, dropout)
    mixed = Take.apply(mixed.view(-1, d), back.flatten(), again).view(B, T, H, R, d)
    if R == 1:
        return mixed[..., 0, :]
    masses = Take.apply(masses.view(-1, 1), back.flatten(), again).view(B, T, H, R, 1)
    return (masses.softmax(-2).to(mixed) * mixed).sum(-2)


def rows(order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where everything goes, with the rows (b, t, h) of tokens and the places (b, h, r, s) in the sorted sequences
    counted from 0: the row for each place [B·H·R·T], the R places of each row [B·T·H, R], and for each place which of
    those it is [B·H·R·T, 1].
    """
    B, H, R, T = order.shape
    order = order.long()
    count = torch.arange(B * H * R * T, device=order.device).view(B, H, R, T)
    places = torch.empty_like(count).scatter_(3, order, count)
    b, h, r = (torch.arange(n, device=order.device) for n in (B, H, R))
    there = (b.view(-1, 1, 1, 1) * T + order) * H + h.view(-1, 1, 1)
    return there.flatten(), places.permute(0, 3, 1, 2).reshape(-1, R), (there * R + r.view(-1, 1)).view(-1, 1)


class Take(torch.autograd.Function):
    """y = x[there], where the way back is known: the gradient of a row is the sum of those of its copies, which is read
    and not, as torch would, scattered.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return x.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return F.embedding_bag(back, gradient, mode="sum"), None, None
