"""Attention whose weights are dropped in training, on a processor, where torch has no fused kernel for it.

    mixed = (softmax(QKᵀ · scale) ∘ keep) V / (1 − p)

`attend` (layers/attention.py) with a backward pass by hand, for which little has to wait: Q, K, V, one byte a weight,
and the weights themselves only where they take no more than Q, K and V; those of longer sequences are computed again,
as in Dao et al. 2022 (arXiv 2205.14135).

Shapes: B rows, H heads, Tq and Tk tokens of the queries and keys, d width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peftlab.layers.dropout import draw_kept, growth, in_65536


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
        few = weights.numel() <= q.numel() + k.numel() + v.numel()
        ctx.save_for_backward(q, k, v, mask, keep, weights if few else None)
        ctx.scale, ctx.growth, ctx.shape = scale, growth(cut), shape
        return see((weights * keep @ v).unflatten(0, shape), mask, ctx.growth)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, keep, weights = ctx.saved_tensors
        with torch.autocast(q.device.type, enabled=False):
            if weights is None:
                weights = weigh(q, k, ctx.scale, mask, ctx.shape)
            mixed = see(gradient, mask, ctx.growth).flatten(0, 1)
            towards = (mixed @ v.mT).mul_(keep)
            scores = torch.ops.aten._softmax_backward_data(towards, weights, -1, weights.dtype).mul_(ctx.scale)
            found = scores @ k, scores.mT @ q, (weights * keep).mT @ mixed
        return *(t.unflatten(0, ctx.shape) for t in found), None, None, None


def weigh(q: Tensor, k: Tensor, scale: float, mask: Tensor | None, shape: torch.Size) -> Tensor:
    """softmax(QKᵀ · scale) [B · H, Tq, Tk]; where a query may see nothing, any numbers."""
    if mask is None:
        return (q @ k.mT).mul_(scale).softmax(-1)
    # one pass: the products are added to what forbids
    hidden = torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(~mask, torch.finfo(q.dtype).min)
    scores = hidden.expand(*shape, q.shape[1], k.shape[1]).contiguous().flatten(0, 1)
    return scores.baddbmm_(q, k.mT, alpha=scale).softmax(-1)


def see(x: Tensor, mask: Tensor | None, factor: float) -> Tensor:
    """x [B, H, Tq, d] times a factor, and times zero where a query may see nothing."""
    return x * factor if mask is None else x * (mask.any(-1, keepdim=True).to(x.dtype) * factor)
