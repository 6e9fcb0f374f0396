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


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, again: bool = False) -> Tensor:
    """xWᵀ + b, by our own kernels where they are faster than torch; `again`: there will be more with this weight, of
    rows so few that the kernels had better keep it as they want it.
    """
    fits = native.fits(x, weight) and x.ndim > 1 and x.shape[-1] == weight.shape[1]
    if not fits or not (native.TALL or x.numel() <= native.FEW * x.shape[-1]):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return Product.apply(x, weight, bias)
    return native.linear(x, weight, bias, frozen=again and x.numel() > native.UNPACKED * x.shape[-1])


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
        y = product(x, self.weight, self.bias)
        return y if self.site.idle(route) else self.site(x, y, self.weight, self.bias, route)

    def reset_parameters(self) -> None:
        """Torch's own, but not on the meta device: nothing is to be filled there, and torch would load its compiler."""
        if not self.weight.is_meta:
            super().reset_parameters()

    __repr__ = hide_empty_sites
