"""Normalisation: layer norm, batch norm over features that ignores padded positions, or none.

All three are called alike, `norm(x, mask, route)`, so that a block does not know which it was given.

Shapes: B rows, T tokens, D width.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peftlab.layers.site import NormSite, Route, hide_empty_sites


class Affine(NamedTuple):
    """What a layer norm does to what it has normed."""

    scale: Tensor
    """[D], or [B, 1, D] where rows differ"""
    shift: Tensor
    eps: float


class LayerNorm(nn.Module):
    """Each token on its own: (x − mean) / √(var + ε) · scale + shift, mean and variance over D."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.site = NormSite()

    def forward(self, x: Tensor, mask: Tensor | None = None, route: Route | None = None) -> Tensor:
        scale, shift, eps = self.affine(route)
        if shift.ndim == 1:
            return F.layer_norm(x, scale.shape, scale, shift, eps)
        return F.layer_norm(x, self.weight.shape, eps=eps) * scale + shift

    def affine(self, route: Route | None) -> Affine:
        """Scale and shift with what is added to them."""
        if self.site.idle(route):
            return Affine(self.weight, self.bias, self.eps)
        scale, shift = self.site(self.weight, self.bias, route)
        return Affine(scale, shift, self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"

    __repr__ = hide_empty_sites


class BatchNorm(nn.Module):
    """Each feature over all real tokens of the batch; running averages in evaluation, as `torch.nn.BatchNorm1d`."""

    def __init__(self, dim: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))
        self.running_mean: Tensor
        self.running_var: Tensor
        self.site = NormSite()

    def forward(self, x: Tensor, mask: Tensor | None = None, route: Route | None = None) -> Tensor:
        mean, var = self.moments(x, mask) if self.training else (self.running_mean, self.running_var)
        scale, shift = self.site(self.weight, self.bias, route)
        return (x - mean) * torch.rsqrt(var + self.eps) * scale + shift

    def moments(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and variance [D] over the real tokens; they also move the running averages."""
        real = x.new_ones(x.shape[:-1]) if mask is None else mask.to(x.dtype)
        count = real.sum().clamp(min=1)
        mean = torch.einsum("btd,bt->d", x, real) / count
        var = torch.einsum("btd,bt->d", (x - mean).square(), real) / count
        with torch.no_grad():
            unbiased = var * count / (count - 1).clamp(min=1)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(unbiased, self.momentum)
        return mean, var

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"

    __repr__ = hide_empty_sites


class NoNorm(nn.Module):
    """Leaves the values as they are: the ablation."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()

    def forward(self, x: Tensor, mask: Tensor | None = None, route: Route | None = None) -> Tensor:
        return x


NORMS: dict[str, Callable[[int, float], nn.Module]] = {"layer": LayerNorm, "batch": BatchNorm, "none": NoNorm}
