"""What is done to each number alone: dropout and GELU, with their gradients (pointwise.c)."""

from __future__ import annotations

from ctypes import c_float, c_long, c_void_p

import torch
from torch import Tensor

from peftlab.native.library import LIBRARY, declare

declare("draw_kept", c_void_p, c_long, c_void_p, c_long)
declare("apply_kept", *[c_void_p] * 2, c_float, c_void_p, c_long)
declare("gelu", *[c_void_p] * 2, c_long)
declare("gelu_back", *[c_void_p] * 3, c_long)


def draw_kept(shape: tuple[int, ...], seeds: Tensor, cut: int) -> Tensor:
    """1 where a value stays, else 0, a byte each; as numpy.random.SFC64 draws from a state of three `seeds`."""
    keep = torch.empty(shape, dtype=torch.uint8)
    LIBRARY.draw_kept(seeds.data_ptr(), cut, keep.data_ptr(), keep.numel())
    return keep


def apply_kept(x: Tensor, keep: Tensor, growth: float) -> Tensor:
    """x · keep · growth."""
    x = x.contiguous()
    y = torch.empty_like(x)
    LIBRARY.apply_kept(x.data_ptr(), keep.data_ptr(), growth, y.data_ptr(), x.numel())
    return y


def gelu(x: Tensor, out: Tensor | None = None) -> Tensor:
    """x · Φ(x), into `out` where it is given, which may be x."""
    x = x.contiguous()
    out = torch.empty_like(x) if out is None else out
    LIBRARY.gelu(x.data_ptr(), out.data_ptr(), x.numel())
    return out


def gelu_back(x: Tensor, gradient: Tensor) -> Tensor:
    """x's gradient."""
    x, gradient = x.contiguous(), gradient.contiguous()
    dx = torch.empty_like(x)
    LIBRARY.gelu_back(x.data_ptr(), gradient.data_ptr(), dx.data_ptr(), x.numel())
    return dx
