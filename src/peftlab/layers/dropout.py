"""Dropout: each value is set to zero with probability p, the others grow by 1/(1 − p). Srivastava et al. 2014.

On a CPU torch draws 64 random bits for each value, which takes a fifth of a training step of a small encoder. Here one
draw decides four values, by 16 bits each, and p is rounded to 1/65536. The draws are those of NumPy's SFC64, which
needs a third of the time of torch's generator; that one gives the seed of each mask, so that whoever seeds torch, or
keeps its state, has everything. Elsewhere, and compiled, torch's own dropout runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random.bit_generator import ISeedSequence
from torch import Tensor, nn

from peftlab import native


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
    if native.LIBRARY is not None:
        return native.draw_kept(shape, draw_seeds(3), cut)
    source = np.random.SFC64(Seeds())  # type: ignore[arg-type]  # any ISeedSequence; its types name one of them
    bits = source.random_raw(-(-shape.numel() // 4)).view(np.uint16)[: shape.numel()]
    return torch.from_numpy((bits >= cut).view(np.uint8)).view(shape)


class Seeds(ISeedSequence):
    """Where SFC64 begins, drawn from torch's generator as it is: NumPy's own seeds are hashed first, which takes as
    long as to draw thousands of values.
    """

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> Any:
        return draw_seeds(n_words).numpy().view(dtype)


def draw_seeds(count: int) -> Tensor:
    """64 random bits each, from torch's generator."""
    return torch.randint(-(2**63), 2**63 - 1, (count,), device="cpu")


def apply_kept(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    """x · keep · scale."""
    return native.apply_kept(x, keep, scale) if native.takes(x) else keep.to(x.dtype).mul_(x).mul_(scale)


class Drop(torch.autograd.Function):
    """y = x · keep · scale; what waits for the backward pass is one byte a value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cut: int) -> Tensor:
        keep = draw_kept(x.shape, cut)
        ctx.scale = growth(cut)
        ctx.save_for_backward(keep)
        return apply_kept(x, keep, ctx.scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return apply_kept(gradient, keep, ctx.scale), None


class Dropout(nn.Module):
    """`dropout` as a module."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"{self.p}"
