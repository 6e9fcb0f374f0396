"""norm(x + dropout(y)) by one kernel of our own (native/norm.c), for a norm whose scale is frozen.

Shapes: [..., D] each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from peftlab import native
from peftlab.layers.dropout import draw_kept, growth, in_65536
from peftlab.layers.linear import bias_gradient
from peftlab.layers.norm import Affine


def fused_join(x: Tensor, y: Tensor, norm: Affine, p: float) -> Tensor:
    """norm(x + y), of which a part `p` of y's values is dropped."""
    cut = in_65536(p)
    if cut or torch.is_grad_enabled():
        return Join.apply(x, y, norm.shift, norm, cut)
    return native.join(x, y, None, 1.0, *norm)[0]


class Join(torch.autograd.Function):
    """The kernel and that of its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, shift: Tensor, norm: Affine, cut: int) -> Tensor:
        out, waiting = join(x, y, norm, cut)
        ctx.save_for_backward(*waiting)
        ctx.cut = cut
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        dshift = bias_gradient(gradient) if ctx.needs_input_grad[2] else None
        return *join_back(gradient, ctx.saved_tensors, ctx.cut), dshift, None, None


def join(x: Tensor, y: Tensor, norm: Affine, cut: int) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """norm(x + dropout(y)), and what must wait for the backward pass."""
    keep = draw_kept(y.shape, cut) if cut else None
    out, total, stats = native.join(x, y, keep, growth(cut), *norm, learning=True)
    return out, (total, stats, norm.scale, keep)


def join_back(gradient: Tensor, waiting: Sequence[Tensor], cut: int) -> tuple[Tensor, Tensor]:
    """The gradients of x and y; one tensor where nothing was dropped."""
    total, stats, scale, keep = waiting
    return native.join_back(gradient, total, stats, scale, keep, growth(cut))
