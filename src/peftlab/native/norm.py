"""Where a sublayer's output meets its input, norm(x + dropout(y)), and its gradients (norm.c).

Shapes: D width.
"""

from __future__ import annotations

from ctypes import Structure, c_float, c_long, c_void_p

import torch
from torch import Tensor

from peftlab.native.library import LIBRARY, declare
from peftlab.native.product import address


class Norm(Structure):
    """A layer norm as C is told of it."""

    _fields_ = (("scale", c_void_p), ("shift", c_void_p), ("eps", c_float))


declare("join", *[c_void_p] * 3, c_float, *[c_void_p] * 2, c_float, *[c_void_p] * 3, *[c_long] * 2)
declare("join_back", *[c_void_p] * 5, c_float, *[c_void_p] * 2, *[c_long] * 2)
declare("join_affine", *[c_void_p] * 5, *[c_long] * 2)


def join(
    x: Tensor,
    y: Tensor,
    keep: Tensor | None,
    growth: float,
    scale: Tensor,
    shift: Tensor,
    eps: float,
    learning: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """norm(x + y · keep · growth) [..., D]; where it learns also the sum, and for each of its rows two numbers."""
    D, x, y = x.shape[-1], x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    total = torch.empty_like(x) if learning else out
    stats = x.new_empty(x.numel() // D, 2) if learning else None
    parts = x, y, keep, growth, scale, shift, eps, total, stats, out
    LIBRARY.join(*(t.data_ptr() if isinstance(t, Tensor) else t for t in parts), x.numel() // D, D)
    return out, total, stats


def join_back(
    gradient: Tensor, total: Tensor, stats: Tensor, scale: Tensor, keep: Tensor | None, growth: float
) -> tuple[Tensor, Tensor]:
    """The gradients of x and y, from what `join` gave."""
    D, gradient = gradient.shape[-1], gradient.contiguous()
    dx = torch.empty_like(gradient)
    dy = dx if keep is None else torch.empty_like(gradient)
    parts = gradient, total, stats, scale, keep, growth, dx, dy
    LIBRARY.join_back(*(t.data_ptr() if isinstance(t, Tensor) else t for t in parts), gradient.numel() // D, D)
    return dx, dy


def join_affine(gradient: Tensor, total: Tensor, stats: Tensor, dscale: Tensor | None, dshift: Tensor | None) -> None:
    """The gradients of scale and shift [D], where there is room for them."""
    D, gradient = gradient.shape[-1], gradient.contiguous()
    places = map(address, (gradient, total, stats, dscale, dshift))
    LIBRARY.join_affine(*places, gradient.numel() // D, D)
