"""norm(x + dropout(y)) by one kernel of our own (native/norm.c), for a norm whose scale and shift are frozen.

Shapes: [..., D] each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from peftlab import native
from peftlab.layers.dropout import draw_kept, growth, in_65536
from peftlab.layers.norm import LayerNorm


def fused_join(x: Tensor, y: Tensor, norm: LayerNorm, p: float) -> Tensor:
    """norm(x + y), of which a part `p` of y's values is dropped."""
    cut = in_65536(p)
    if cut or torch.is_grad_enabled():
        return Join.apply(x, y, norm.weight, norm.bias, norm.eps, cut)
    return native.join(x, y, None, 1.0, norm.weight, norm.bias, norm.eps)[0]


class Join(torch.autograd.Function):
    """The kernel and that of its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, scale: Tensor, shift: Tensor, eps: float, cut: int) -> Tensor:
        keep = draw_kept(y.shape, cut) if cut else None
        ctx.growth = growth(cut)
        out, total, stats = native.join(x, y, keep, ctx.growth, scale, shift, eps, learning=True)
        ctx.save_for_backward(total, stats, scale, keep)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        total, stats, scale, keep = ctx.saved_tensors
        return *native.join_back(gradient, total, stats, scale, keep, ctx.growth), None, None, None, None
