"""Attention by one kernel of our own (native/attention.c): nothing of what lies between its inputs and its output is
kept but, where weights are dropped, one byte a weight. torch's kernel has no dropout on a processor, and for texts of
a few dozen tokens it needs two to seven times as long.

Shapes: B rows, H heads, Tq and Tk tokens of the queries and keys, d width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from peftlab import native
from peftlab.layers.dropout import draw_kept, growth, in_65536


def attend_fused(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, p: float = 0.0) -> Tensor:
    """[B, H, Tq, d], twice [B, H, Tk, d], mask [B or 1, 1, Tq or 1, Tk] → [B, H, Tq, d]; a part `p` of the weights is
    dropped.
    """
    cut = in_65536(p)
    if cut or torch.is_grad_enabled():
        return Fused.apply(q, k, v, scale, mask, cut)
    return native.attend(q, k, v, scale, mask)


class Fused(torch.autograd.Function):
    """The kernel and that of its gradients."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, cut: int) -> Tensor:
        keep = draw_kept(torch.Size([*q.shape[:3], k.shape[2]]), cut) if cut else None
        ctx.save_for_backward(q, k, v, mask, keep)
        ctx.scale, ctx.growth = scale, growth(cut)
        return native.attend(q, k, v, scale, mask, keep, ctx.growth)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, keep = ctx.saved_tensors
        return *native.attend_back(q, k, v, gradient, ctx.scale, mask, keep, ctx.growth), None, None, None
