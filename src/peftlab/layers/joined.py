"""norm(x + dropout(y)) by one kernel of our own (native/norm.c).

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
from peftlab.layers.norm import Affine


def fused_join(x: Tensor, y: Tensor, norm: Affine, p: float) -> Tensor:
    """norm(x + y), of which a part `p` of y's values is dropped."""
    cut = in_65536(p)
    if cut or torch.is_grad_enabled():
        return Join.apply(x, y, *norm, cut)
    return native.join(x, y, None, 1.0, *norm)[0]


class Join(torch.autograd.Function):
    """The kernel and that of its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, scale: Tensor, shift: Tensor, eps: float, cut: int) -> Tensor:
        keep = draw_kept(y.shape, cut) if cut else None
        out, total, stats = native.join(x, y, keep, growth(cut), scale, shift, eps, learning=True)
        ctx.save_for_backward(total, stats, scale, keep)
        ctx.growth = growth(cut)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        total, stats, scale, keep = ctx.saved_tensors
        dscale, dshift = room = affine_room(scale, ctx.needs_input_grad[2:4])
        if any(ctx.needs_input_grad[2:4]):
            native.join_affine(gradient, total, stats, *room)
        return *native.join_back(gradient, total, stats, scale, keep, ctx.growth), dscale, dshift, None, None


def affine_room(scale: Tensor, wanted: Sequence[bool]) -> tuple[Tensor | None, Tensor | None]:
    """For the gradients of a norm's scale and shift."""
    to_scale, to_shift = wanted
    return torch.empty_like(scale) if to_scale else None, torch.empty_like(scale) if to_shift else None
