"""Local attention: the sequence is cut into chunks, and each attends to itself and to the one before.

The second kind of layer of the published Reformers (Kitaev et al. 2020, arXiv 2001.04451), and the inner part of the
first (`layers/lsh.py`), which sorts the tokens before. What is masked is masked by a token's original position.

    attention = LocalAttention(dim=64, heads=4, chunk=64, causal=True)
    attention(x)                                                # [B, T, 64], T of any length

Shapes: B rows, T tokens, H heads, d width of a head, D model width, N = B·H; c tokens of a chunk, w chunks that it
sees, C chunks; of these n rows and m chunks are computed together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peftlab.layers.dropout import dropout as drop
from peftlab.layers.linear import Linear
from peftlab.layers.site import Route, hide_empty_sites

FORBIDDEN = 1e9
"""taken from the score of what may not be seen"""
BITS = 1 / math.log(2)
"""of a nat"""
SCORES = 2**17
"""how many a CPU computes at a time: half a megabyte, which stays in a core's cache"""


class LocalAttention(nn.Module):
    """Multi-head attention from each chunk to itself and the one before; it has no place for keys from outside."""

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int | None = None,
        chunk: int = 64,
        causal: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        inner = heads * (head_dim or dim // heads)
        self.heads, self.chunk, self.causal, self.dropout = heads, chunk, causal, dropout
        self.q = Linear(dim, inner, bias=False)
        self.k = Linear(dim, inner, bias=False)
        self.v = Linear(dim, inner, bias=False)
        self.o = Linear(inner, dim, bias=False)

    def forward(self, x: Tensor, route: Route | None = None, mask: Tensor | None = None) -> Tensor:
        """x [B, T, D] → [B, T, D]; mask [B, T] is True at real tokens."""
        B, T, _ = x.shape
        H, dropout = self.heads, self.dropout if self.training else 0.0
        x, mask, chunk = in_chunks(x, mask, self.chunk)
        vectors = (linear(x, route).unflatten(-1, (H, -1)).transpose(1, 2) for linear in (self.q, self.k, self.v))
        q, k, v = (t.reshape(B * H, -1, chunk, t.shape[-1]) for t in vectors)
        place = torch.arange(x.shape[1], device=x.device).view(-1, chunk).expand(B * H, -1, -1)
        mixed, _ = attend_chunks(q, k * q.shape[-1] ** -0.5, v, place, tolls(place, mask, 0.0), self.causal, dropout)
        return self.o(mixed.view(B, H, x.shape[1], -1)[:, :, :T].transpose(1, 2).flatten(2), route)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, chunk={self.chunk}, causal={self.causal}"

    __repr__ = hide_empty_sites


def in_chunks(x: Tensor, mask: Tensor | None, chunk: int) -> tuple[Tensor, Tensor | None, int]:
    """x [B, T, D] and its mask, padded to whole chunks, and c; what fits into one chunk is one as it is."""
    B, T, _ = x.shape
    if chunk >= T:
        return x, mask, T
    if extra := -T % chunk:
        mask = torch.ones(B, T, dtype=torch.bool, device=x.device) if mask is None else mask
        x, mask = F.pad(x, (0, 0, 0, extra)), F.pad(mask, (0, extra))
    return x, mask, chunk


def tolls(place: Tensor, mask: Tensor | None, itself: float) -> Tensor:
    """[N, C, c] what the key at each place costs: a token to itself this much, padding more than it is far away."""
    toll = torch.full(place.shape, itself, device=place.device)
    if mask is not None:
        real = mask.repeat_interleave(len(place) // len(mask), 0).gather(1, place.flatten(1).long())
        toll = toll.masked_fill_(~real.view_as(toll), float(mask.shape[1] + 1))
    return toll


def attend_chunks(
    q: Tensor, k: Tensor, v: Tensor, place: Tensor, toll: Tensor, causal: bool, dropout: float
) -> tuple[Tensor, Tensor]:
    """Each chunk attends to itself and to the one before, the first to the last; q, k, v [N, C, c, d] → the mixed
    values [N, C, c, d] and the log-sum-exp of their scores [N, C, c].
    """
    place = seen = place.float()
    if q.shape[1] > 1:
        k, v, seen, toll = (torch.cat([t[:, -1:], t], 1) for t in (k, v, seen, toll))
    return Chunks.apply(q, k, v, Sight(place, seen, toll, causal), dropout)


class Sight(NamedTuple):
    """Who may see whom."""

    place: Tensor
    """[N, C, c] where each query stood before it was sorted"""
    seen: Tensor
    """[N, C + w − 1, c] where each key did"""
    toll: Tensor
    """[N, C + w − 1, c] as of `tolls`"""
    causal: bool


class Chunks(torch.autograd.Function):
    """O = softmax(S) V and log Σ exp S, with S = QKᵀ − what may not be seen, a few chunks at a time.

    So the scores stay in the cache, and they are never all in memory: the backward pass makes them again from the
    log-sum-exp, as FlashAttention does (Dao et al. 2022, arXiv 2205.14135). What dropout kept is kept. Chunk i sees
    chunks i … i + w − 1 of K and V.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sight: Sight, dropout: float) -> tuple[Tensor, Tensor]:
        o = torch.empty_like(q)
        mass = torch.empty(q.shape[:3], device=q.device, dtype=torch.promote_types(q.dtype, torch.float32))
        keep: list[Tensor | None] = []
        for part in Part.all(q, k):
            scores = part.scores(q, k, sight)
            top = scores.amax(-1, keepdim=True)
            weights = scores.sub_(top).exp2_()
            total = weights.sum(-1, keepdim=True)
            keep.append(drop(torch.ones_like(weights), dropout) if dropout else None)
            weights = weights if keep[-1] is None else weights.mul_(keep[-1])
            part.of(o).copy_((weights.to(q.dtype) @ part.window(v)).div_(total))
            part.of(mass).copy_((top + total.log2_()).squeeze(-1))
        ctx.save_for_backward(q, k, v, o, mass)
        ctx.sight, ctx.keep = sight, keep
        return o, mass / BITS

    @staticmethod
    def backward(ctx: Any, do: Tensor, dmass: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, o, mass = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for part, keep in zip(Part.all(q, k), ctx.keep, strict=True):
            weights = part.scores(q, k, ctx.sight).sub_(part.of(mass)[..., None]).exp2_()
            part.add(dv, (weights if keep is None else weights * keep).to(q.dtype).mT @ part.of(do))
            dweights = (part.of(do) @ part.window(v).mT).to(weights.dtype)
            dweights = dweights if keep is None else dweights.mul_(keep)
            inner = (part.of(do) * part.of(o)).sum(-1) - part.of(dmass)
            dscores = dweights.sub_(inner[..., None]).mul_(weights).to(q.dtype)
            part.of(dq).copy_(dscores @ part.window(k))
            part.add(dk, dscores.mT @ part.of(q))
        return dq, dk, dv, None, None


class Part(NamedTuple):
    """Some chunks of some rows of N, whose scores are computed together."""

    rows: slice
    first: int
    last: int
    sees: int
    """w"""

    @classmethod
    def all(cls, q: Tensor, k: Tensor) -> Iterator[Part]:
        """The parts of q [N, C, c, d], which sees k [N, C + w − 1, c, d]."""
        N, C, c, _ = q.shape
        sees = k.shape[1] - C + 1
        room = SCORES if q.device.type == "cpu" else 1024 * SCORES
        most = max(1, room // (c * c * sees))
        together = max(1, most // C)
        for row in range(0, N, together):
            for first in range(0, C, most):
                yield cls(slice(row, row + together), first, min(first + most, C), sees)

    def of(self, t: Tensor) -> Tensor:
        """[N, C, …] → [n, m, …]."""
        return t[self.rows, self.first : self.last]

    def window(self, t: Tensor) -> Tensor:
        """[N, C + w − 1, c, d] → [n, m, w·c, d]: what each chunk sees."""
        c, near = t.shape[2], t[self.rows, self.first : self.last + self.sees - 1].flatten(1, 2)
        return near.unfold(1, self.sees * c, c).mT.contiguous()

    def line(self, t: Tensor) -> Tensor:
        """The same of numbers: [N, C + w − 1, c] → [n, m, 1, w·c]."""
        c, near = t.shape[2], t[self.rows, self.first : self.last + self.sees - 1].flatten(1, 2)
        return near.unfold(1, self.sees * c, c)[:, :, None]

    def add(self, t: Tensor, window: Tensor) -> None:
        """Bring [n, m, w·c, d] back to what was seen."""
        for i, chunk in enumerate(window.chunk(self.sees, 2)):
            t[self.rows, self.first + i : self.last + i] += chunk

    def scores(self, q: Tensor, k: Tensor, sight: Sight) -> Tensor:
        """[n, m, c, w·c], in bits, not nats: of what is forbidden 2ˣ takes a CPU a tenth of the time of eˣ.

        And it is forbidden by arithmetic, in a quarter of the time of masks: in a causal pass a key's distance is
        negative where it comes later, in any it is 0 at the token itself, and a toll is below 1 or, at padding, above
        every distance. So the distance less the toll is negative where there is something to forbid.
        """
        distance = self.of(sight.place)[..., None] - self.line(sight.seen)
        if not sight.causal:
            distance.abs_()
        forbidden = distance.sub_(self.line(sight.toll)).clamp_(max=0).flatten(0, 1).to(q.dtype)
        keys = self.window(k).flatten(0, 1).mT
        scores = torch.baddbmm(forbidden, self.of(q).flatten(0, 1), keys, beta=FORBIDDEN * BITS, alpha=BITS)
        return scores.to(torch.promote_types(q.dtype, torch.float32)).view_as(distance)
