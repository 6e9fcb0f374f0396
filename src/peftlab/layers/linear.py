"""The linear map y = xWᵀ + b with a site: torch's own, so its keys are `weight` and `bias` and nothing else.

Shapes: M rows, K inputs, N outputs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from peftlab import native
from peftlab.layers.site import LinearSite, Route, hide_empty_sites

THIN = 64
"""inputs or outputs up to which a weight's gradient is the kernels': torch needs several times as long for LoRA's"""


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, again: bool = False, over: Tensor | None = None
) -> Tensor:
    """xWᵀ + b, by our own kernels where they are faster than torch; `again`: there will be more with this weight, of
    rows so few that the kernels had better keep it as they want it; `over`: a tensor that may be written over.
    """
    if not faster(x, weight):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return Product.apply(x, weight, bias)
    return native.linear(x, weight, bias, again and x.numel() > native.UNPACKED * x.shape[-1], over)


def faster(x: Tensor, weight: Tensor) -> bool:
    """Whether our own kernels are to compute xWᵀ."""
    fits = native.fits(x, weight) and x.ndim > 1 and x.shape[-1] == weight.shape[1]
    return fits and (native.TALL or x.numel() <= native.FEW * x.shape[-1])


class Product(torch.autograd.Function):
    """The same with its gradients; what is frozen keeps nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        learns = ctx.needs_input_grad[1]
        ctx.save_for_backward(x if learns else None, weight)
        return native.linear(x, weight, bias, frozen=not learns)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        to_x, to_weight, to_bias = ctx.needs_input_grad
        dx = native.linear_input(gradient, weight, frozen=not to_weight) if to_x else None
        dw = weight_gradient(gradient, x) if to_weight else None
        return dx, dw, gradient.flatten(0, -2).sum(0) if to_bias else None


class LowRankProduct(torch.autograd.Function):
    """xWᵀ + b + u Bᵀ with u = s · xAᵀ, where W and b are frozen: one step in the place of five, and neither the change
    nor its part of x's gradient has a place of its own. Where it learns, there will be more with this W.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, A: Tensor, B: Tensor, scale: float, learns: bool
    ) -> Tensor:
        u = native.linear(x, A).mul_(scale)
        ctx.save_for_backward(x, weight, A, B, u)
        ctx.scale = scale
        y = native.linear(x, weight, bias, frozen=learns)
        native.add_linear(y, u, B)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, A, B, u = ctx.saved_tensors
        to_x, _, _, to_A, to_B, *_ = ctx.needs_input_grad
        # thin matrices lie along their width, where the kernels are three times as fast as across it
        du = native.linear(gradient, B.t()).mul_(ctx.scale)
        dx = native.linear_input(gradient, weight, frozen=True) if to_x else None
        if dx is not None:
            native.add_linear_input(dx, du, A)
        dA, dB = weight_gradient(du, x) if to_A else None, weight_gradient(u, gradient).t() if to_B else None
        return dx, None, None, dA, dB, None, None


def weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """[..., N], [..., K] → [N, K]."""
    if min(gradient.shape[-1], x.shape[-1]) <= THIN:
        return native.linear_weight(gradient, x)
    return gradient.flatten(0, -2).t() @ x.flatten(0, -2)


class Linear(nn.Linear):
    """x [..., in] → y [..., out]."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias)
        self.site = LinearSite()

    def forward(self, x: Tensor, route: Route | None = None) -> Tensor:
        if self.site.idle(route):
            return product(x, self.weight, self.bias)
        change = self.site.low_rank(route) if self.frozen() else None
        if change is not None and faster(x, self.weight) and faster(x, change.A) and native.takes(change.B):
            return LowRankProduct.apply(x, self.weight, self.bias, *change, torch.is_grad_enabled())
        return self.site(x, product(x, self.weight, self.bias), self.weight, self.bias, route)

    def frozen(self) -> bool:
        """Whether neither weight nor bias learns."""
        return not self.weight.requires_grad and (self.bias is None or not self.bias.requires_grad)

    def reset_parameters(self) -> None:
        """Torch's own, but not on the meta device: nothing is to be filled there, and torch would load its compiler."""
        if not self.weight.is_meta:
            super().reset_parameters()

    __repr__ = hide_empty_sites
