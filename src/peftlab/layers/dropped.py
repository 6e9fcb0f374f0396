"""Attention whose weights are dropped in training, on a processor, where torch has no fused kernel for it.

    mixed = (softmax(QKᵀ · scale) ∘ keep) V / (1 − p)

`attend` (layers/attention.py) with a backward pass by hand, for which little has to wait: Q, K, V, and the weights
where they take no more than these. Of longer sequences one byte a weight waits, and the weights are computed again, as
in Dao et al. 2022 (arXiv 2205.14135).

Shapes: B rows, H heads, Tq and Tk tokens of the queries and keys, d width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peftlab.layers.dropout import draw_kept, growth, in_65536

VECTOR = 16
"""numbers that a processor with AVX-512 computes with at once"""


def attend_dropped(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, p: float) -> Tensor:
    """[B, H, Tq, d], twice [B, H, Tk, d], mask [B, 1, Tq or 1, Tk] → [B, H, Tq, d]."""
    kind = q.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else q.dtype
    with torch.autocast(kind, enabled=False):
        mixed: Tensor = Attend.apply(q.to(dtype), k.to(dtype), v.to(dtype), scale, mask, in_65536(p))
    return mixed


class Attend(torch.autograd.Function):
    """The equation and its derivatives."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, cut: int) -> Tensor:
        shape = q.shape[:2]
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        weights = weigh(q, k, scale, mask, shape)
        keep = draw_kept(weights.shape, cut)
        left = drop(weights, keep, growth(cut))
        few = weights.numel() <= q.numel() + k.numel() + v.numel()
        ctx.save_for_backward(q, k, v, mask, *((None, weights, left) if few else (keep, None, None)))
        ctx.scale, ctx.growth, ctx.shape = scale, growth(cut), shape
        return see((left @ v).unflatten(0, shape), mask)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, keep, weights, left = ctx.saved_tensors
        with torch.autocast(q.device.type, enabled=False):
            if weights is None:
                weights = weigh(q, k, ctx.scale, mask, ctx.shape)
                left = drop(weights, keep, ctx.growth)
            mixed = see(gradient, mask).flatten(0, 1)
            # through dropout and the softmax at once: w·k·t − w·Σ w·k·t, where w·k is what is left of the weights
            scores = (mixed @ v.mT).mul_(left)
            scores.addcmul_(weights, scores.sum(-1, keepdim=True), value=-1).mul_(ctx.scale)
            found = scores @ k, scores.mT @ q, left.mT @ mixed
        return *(t.unflatten(0, ctx.shape) for t in found), None, None, None


def weigh(q: Tensor, k: Tensor, scale: float, mask: Tensor | None, shape: torch.Size) -> Tensor:
    """softmax(QKᵀ · scale) [B · H, Tq, Tk]; where a query may see nothing, any numbers."""
    if mask is None:
        return softmax((q @ k.mT).mul_(scale))
    # one pass: the products are added to what forbids
    hidden = torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(~mask, torch.finfo(q.dtype).min)
    scores = hidden.expand(*shape, q.shape[1], k.shape[1]).contiguous().flatten(0, 1)
    return softmax(scores.baddbmm_(q, k.mT, alpha=scale))


def softmax(scores: Tensor) -> Tensor:
    """Over the last dimension, which torch goes through number by number where it is shorter than a vector of the
    processor: six times as slow as this, which overwrites the scores.
    """
    if scores.shape[-1] >= VECTOR or scores.dtype != torch.float32:
        return scores.softmax(-1)
    scores.sub_(scores.amax(-1, keepdim=True)).exp_()
    return scores.div_(scores.sum(-1, keepdim=True))


def drop(weights: Tensor, keep: Tensor, growth: float) -> Tensor:
    """What is left of the weights, grown."""
    return keep.to(weights.dtype).mul_(weights).mul_(growth)


def see(x: Tensor, mask: Tensor | None) -> Tensor:
    """x [B, H, Tq, d], times zero where a query may see nothing."""
    return x if mask is None else x * mask.any(-1, keepdim=True).to(x.dtype)
