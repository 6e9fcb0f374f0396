"""The linear map y = xWᵀ + b with a site: torch's own, so its keys are `weight` and `bias` and nothing else.

Shapes: M rows, K inputs, N outputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from peftlab import native
from peftlab.layers.addition import LowRank
from peftlab.layers.site import LinearSite, Route, hide_empty_sites

THIN = 64
"""inputs or outputs up to which a weight's gradient is the kernels': torch needs several times as long for LoRA's"""


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, again: bool = False, over: Tensor | None = None
) -> Tensor:
    """xWᵀ + b, by our own kernels where they are faster than torch; `again`: there will be more with this weight, which
    the kernels therefore keep as they want it; `over`: a tensor that may be written over.
    """
    if not faster(x, weight):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return Product.apply(x, weight, bias)
    kept = (again or native.keeps(weight, x)) and x.numel() > native.UNPACKED * x.shape[-1]
    return native.linear(x, weight, bias, kept, over)


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
        ctx.kept = not learns or native.keeps(weight, x)
        return native.linear(x, weight, bias, kept=ctx.kept)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        to_x, to_weight, to_bias = ctx.needs_input_grad
        dx = input_gradient(gradient, weight, ctx.kept) if to_x else None
        dw = weight_gradient(gradient, x) if to_weight else None
        return dx, dw, bias_gradient(gradient) if to_bias else None


class Map(NamedTuple):
    """xWᵀ + b, and at most a change of low rank: + u Bᵀ with u = s · xAᵀ."""

    weight: Tensor
    bias: Tensor | None
    change: LowRank | None
    changes: native.Changes | None = None
    """in its place those that differ from row to row"""

    @property
    def whole(self) -> Tensor:
        """W and its change; not for bf16, which would round the change away."""
        return self.weight if self.change is None else self.weight.addmm(*self.change[1::-1], alpha=self.change.scale)


class FrozenMap(Map):
    """With frozen W, by our own kernels: neither the change nor its part of x's gradient has its own place."""

    @property
    def learned(self) -> tuple[Tensor, ...]:
        """What learns: A and B, or b."""
        if self.change is not None:
            return self.change[:2]
        return () if self.bias is None or not self.bias.requires_grad else (self.bias,)

    def room(self) -> tuple[Tensor | None, ...]:
        """For the gradients of what is `learned`."""
        return tuple(torch.empty_like(t) if t.requires_grad else None for t in self.learned)


class LowRankProduct(torch.autograd.Function):
    """A `FrozenMap` with a change, one step in the place of five; `again`: there will be more with this W."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, A: Tensor, B: Tensor, scale: float, again: bool
    ) -> Tensor:
        y, u = native.linear(x, weight, bias, kept=again), native.linear(x, A).mul_(scale)
        native.add_linear(y, u, B)
        ctx.save_for_backward(x, weight, A, B, u)
        ctx.scale = scale
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, A, B, u = ctx.saved_tensors
        to_x, _, _, to_A, to_B, _, _ = ctx.needs_input_grad
        dx = native.linear_input(gradient, weight, kept=True) if to_x else None
        du = input_gradient(gradient, B).mul_(ctx.scale)
        if dx is not None:
            native.add_linear_input(dx, du, A)
        dA, dB = weight_gradient(du, x) if to_A else None, weight_gradient(gradient, u) if to_B else None
        return dx, None, None, dA, dB, None, None


def input_gradient(gradient: Tensor, weight: Tensor, kept: bool = False) -> Tensor:
    """[..., N], [N, K] → [..., K]; a thin matrix lies along its width, where the kernels are three times as fast."""
    if weight.shape[1] <= THIN and not kept:
        return native.linear(gradient, weight.t())
    return native.linear_input(gradient, weight, kept=kept)


def weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """[..., N], [..., K] → [N, K]."""
    N, K = gradient.shape[-1], x.shape[-1]
    if min(N, K) > THIN:
        return gradient.flatten(0, -2).t() @ x.flatten(0, -2)
    return native.linear_weight(gradient, x) if N <= K else native.linear_weight(x, gradient).t()


def bias_gradient(gradient: Tensor) -> Tensor:
    """[..., N] → [N]."""
    return gradient.flatten(0, -2).sum(0)


class Linear(nn.Linear):
    """x [..., in] → y [..., out]."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias)
        self.site = LinearSite()

    def forward(self, x: Tensor, route: Route | None = None) -> Tensor:
        found = self.map(route)
        if found is not None and found.change is None:
            return product(x, found.weight, found.bias)
        frozen = self.frozen_map(route) if faster(x, self.weight) else None
        if frozen is not None and frozen.change is not None:
            again = torch.is_grad_enabled() or native.keeps(self.weight, x)
            return LowRankProduct.apply(x, frozen.weight, frozen.bias, *frozen.change, again)
        y = product(x, self.weight, self.bias)
        changes = self.site.changes(route) if native.fits(x, y) else None
        if changes is not None:
            native.add_changes(y, x, changes)
            return y
        return self.site(x, y, self.weight, self.bias, route)

    @property
    def learns(self) -> bool:
        """Whether weight or bias do; what is added is not asked."""
        bias = self.bias
        return self.weight.requires_grad or (bias is not None and bias.requires_grad)

    def map(self, route: Route | None) -> Map | None:
        """What it does, where that is the same for every row, and no more is added than a thin change or one of b."""
        if self.site.idle(route):
            return Map(self.weight, self.bias, None)
        if (added := self.site.alone(route)) is None:
            return None
        shift, W = added.bias_shift(), self.weight
        # under autocast the sum is rounded, and a small shift of a large bias gone
        if shift is not None and shift.dtype is W.dtype and not torch.is_autocast_enabled(W.device.type):
            return Map(W, shift if self.bias is None else self.bias + shift, None)
        change = added.low_rank()
        return None if change is None else Map(self.weight, self.bias, change)

    def frozen_map(self, route: Route | None) -> FrozenMap | None:
        """The same, where it does not learn itself and our own kernels can compute it; where nothing learns rows may
        differ.
        """
        if self.learns:
            return None
        changes = self.site.changes(route)
        found = self.map(route) if changes is None else Map(self.weight, self.bias, None, changes)
        if found is None:
            return None
        frozen = FrozenMap(*found)
        given = frozen.weight, *frozen.learned, *(() if frozen.bias is None else (frozen.bias,))
        return frozen if native.reads(*given) else None

    def reset_parameters(self) -> None:
        """Torch's own, but not on the meta device: nothing is to be filled there, and torch would load its compiler."""
        if not self.weight.is_meta:
            super().reset_parameters()

    __repr__ = hide_empty_sites
