"""Dropout: each value is set to zero with probability p, the others grow by 1/(1 − p). Srivastava et al. 2014.

On a CPU torch draws 64 random bits for each value, which takes a fifth of a training step of a small encoder. Here one
draw decides four values, by 16 bits each, and p is rounded to 1/65536. Elsewhere, and compiled, torch's own runs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """x with a part of its values dropped, in training."""
    cut = in_65536(p)
    if cut == 0 or not training:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling() or p > 0.999:
        return F.dropout(x, p)
    return Drop.apply(x, cut)


def in_65536(p: float) -> int:
    """How many of 65,536 values are dropped."""
    return round(p * 65536)


def growth(cut: int) -> float:
    """1/(1 − p)."""
    return 65536 / max(65536 - cut, 1)


def draw_kept(shape: torch.Size, cut: int) -> Tensor:
    """1 where a value stays, else 0; a byte each."""
    draws = torch.empty(-(-shape.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits, least = draws.view(torch.int16)[: shape.numel()], cut - 32768
    # bits >= least, as 0 and 1 and not as bool, which torch compares and multiplies three times as slowly
    return bits.clamp_(least - 1, least).sub_(least - 1).to(torch.uint8).view(shape)


class Drop(torch.autograd.Function):
    """y = x · keep · scale; what waits for the backward pass is one byte a value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cut: int) -> Tensor:
        keep = draw_kept(x.shape, cut)
        ctx.scale = growth(cut)
        ctx.save_for_backward(keep)
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return (gradient * keep).mul_(ctx.scale), None


class Dropout(nn.Module):
    """`dropout` as a module."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"{self.p}"
