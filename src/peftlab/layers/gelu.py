"""GELU: x · Φ(x) with Φ the normal distribution (Hendrycks & Gimpel 2016, arXiv 1606.08415).

By kernels of our own where they compute: alone, and inside a frozen feed-forward network, whose products do it by the
way (native/product.c).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from peftlab import native
from peftlab.layers.linear import Linear, product


def gelu(x: Tensor) -> Tensor:
    """x · Φ(x)."""
    return Gelu.apply(x) if native.fits(x, x) else F.gelu(x)


def gelu_(x: Tensor) -> Tensor:
    """The same, which takes the place of x."""
    return native.gelu(x, out=x) if native.fits(x, x) and x.is_contiguous() else torch.ops.aten.gelu_(x)


class Gelu(torch.autograd.Function):
    """The kernel and that of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return native.gelu(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return native.gelu_back(x, gradient)


def through_gelu(x: Tensor, up: Linear, down: Linear) -> Tensor:
    """W₂ · gelu(W₁x + b₁) + b₂ with frozen matrices and no additions."""
    if torch.is_grad_enabled() and x.requires_grad:
        return ThroughGelu.apply(x, up.weight, up.bias, down.weight, down.bias)
    inner, _ = native.linear_gelu(x, up.weight, up.bias, kept=native.keeps(up.weight, x))
    return product(inner, down.weight, down.bias)


class ThroughGelu(torch.autograd.Function):
    """All of it as one step, for which GELU's slope waits alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
        inner, slope = native.linear_gelu(x, up, up_bias, learning=True, kept=True)
        ctx.save_for_backward(slope, up, down)
        return native.linear(inner, down, down_bias, kept=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        slope, up, down = ctx.saved_tensors
        inner = native.linear_input(gradient, down, slope, kept=True)
        return native.linear_input(inner, up, kept=True), None, None, None, None
