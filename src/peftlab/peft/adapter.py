"""Adapters: a bottleneck beside or behind a sublayer, y + s·W_up·activation(W_down·h).

What h is, is the method's placement:

    houlsby    h = y, the sublayer's output, after attention and after feed-forward    Houlsby et al. 2019 (1902.00751)
    pfeiffer   h = norm(x + y), the normed sum, after feed-forward only                Pfeiffer et al. 2020 (2005.00247)
    parallel   h = x, the sublayer's input, beside the feed-forward, scaled            He et al. 2022 (2110.04366)

It starts near the identity: small weights, zero biases.

    peftlab.attach(base.model, "mine", peftlab.Adapter(placement="houlsby", width=64))

Shapes: D model width, w bottleneck width; in a mixed batch of b rows down [b, w, D], up [b, D, w].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from peftlab.layers.addition import Addition, Thin, stack
from peftlab.layers.feedforward import ACTIVATIONS, activation_named
from peftlab.layers.linear import product
from peftlab.layers.residual import Residual
from peftlab.models.model import Place
from peftlab.peft.changes import NormChange
from peftlab.peft.method import Method, check_block_numbers, check_choice, check_layers, check_number, check_whole

MOST = 16_384
Join = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Adapter(Method):
    """Bottlenecks at the sublayers."""

    name = "adapter"
    about = "a small bottleneck network at each sublayer: houlsby, pfeiffer or parallel (Houlsby et al. 2019)"
    kinds = ("sublayer", "norm")
    lr = 2e-3
    size_field = "width"

    placement: str = "houlsby"
    """houlsby, pfeiffer or parallel"""
    width: int | None = None
    """width of the bottleneck; None: the model's width divided by `reduction`"""
    reduction: int = 16
    """used where no width is given"""
    activation: str = "gelu"
    """inside the bottleneck"""
    scale: float = 1.0
    """on the bottleneck's output; He et al. use 2 to 4 for parallel"""
    train_norms: bool = False
    """let the norms of the filled sublayers learn too, as Houlsby et al. do"""
    layers: tuple[int, ...] | None = None
    """which blocks; None is all"""
    init_std: float = 1e-3
    """standard deviation of the initial weights: near the identity"""

    def __post_init__(self) -> None:
        check_choice("placement", self.placement, PLACEMENTS)
        object.__setattr__(self, "layers", check_block_numbers(self.layers))
        check_whole(1, MOST, reduction=self.reduction, **({} if self.width is None else {"width": self.width}))
        check_number(-1e6, 1e6, scale=self.scale)
        check_number(0, 10, init_std=self.init_std)
        activation_named(self.activation)

    def build(self, places: Mapping[str, Place]) -> dict[str, Addition]:
        kind, layers = PLACEMENTS[self.placement], check_layers(self.layers, places)
        built: dict[str, Addition] = {}
        for key, place in places.items():
            address, owner = place.address, place.owner
            if address.layer not in layers or not (address.sublayer == "ff" or kind.everywhere):
                continue
            if isinstance(owner, Residual):
                width = self.width or max(1, owner.dim // self.reduction)
                built[key] = kind(owner.dim, width, self.activation, self.scale, self.init_std)
            elif self.train_norms:
                built[key] = NormChange(owner.weight, scale=True)
        return built


class Bottleneck(Addition):
    """W_up·activation(W_down·h + b) + b, scaled and added to y; subclasses say what h is."""

    everywhere = False
    """also after attention, or only after the feed-forward network"""

    def __init__(self, dim: int, width: int, activation: str, scale: float, std: float) -> None:
        super().__init__()
        self.activation, self.scale = activation, scale
        self.down = nn.Linear(dim, width)
        self.up = nn.Linear(width, dim)
        for layer in (self.down, self.up):
            nn.init.normal_(layer.weight, std=std)
            nn.init.zeros_(layer.bias)

    @staticmethod
    def read(y: Tensor, x: Tensor, join: Join) -> Tensor:
        """h."""
        raise NotImplementedError

    def forward(self, y: Tensor, x: Tensor, join: Join) -> Tensor:
        h = product(self.read(y, x, join), self.down.weight, self.down.bias)
        change = product(ACTIVATIONS[self.activation](h), self.up.weight, self.up.bias)
        return torch.add(y, change, alpha=self.scale)

    @property
    def group(self) -> Any:
        return (type(self), self.activation)

    @property
    def size(self) -> int:
        return self.down.out_features

    def mixed(self, rows: Sequence[Bottleneck | None], size: int) -> Callable[..., Tensor]:
        down = stack([None if row is None else row.down.weight for row in rows], self.down.weight, size)
        inner = stack([None if row is None else row.down.bias for row in rows], self.down.bias, size)
        up = stack([None if row is None else row.up.weight * row.scale for row in rows], self.up.weight, size, dim=1)
        outer = stack([None if row is None else row.up.bias * row.scale for row in rows], self.up.bias)
        return MixedBottleneck(self.read, self.activation, down, inner[:, None], up, outer[:, None])

    def extra_repr(self) -> str:
        return f"{self.activation}, scale={self.scale:g}"


@dataclass(frozen=True)
class MixedBottleneck:
    """A bottleneck a row."""

    read: Callable[[Tensor, Tensor, Join], Tensor]
    activation: str
    down: Tensor
    inner: Tensor
    up: Tensor
    outer: Tensor

    def __call__(self, y: Tensor, x: Tensor, join: Join) -> Tensor:
        h = ACTIVATIONS[self.activation](torch.baddbmm(self.inner, self.read(y, x, join), self.down.mT))
        return y + torch.baddbmm(self.outer, h, self.up.mT)


class Houlsby(Bottleneck):
    """Reads the sublayer's output."""

    everywhere = True

    @staticmethod
    def read(y: Tensor, x: Tensor, join: Join) -> Tensor:
        return y

    def thin(self) -> Thin | None:
        if self.activation != "gelu":
            return None
        return Thin(self.down.weight, self.down.bias, self.up.weight, self.up.bias, self.scale)


class Pfeiffer(Bottleneck):
    """Reads the normed sum, as the block would make it without the adapter."""

    @staticmethod
    def read(y: Tensor, x: Tensor, join: Join) -> Tensor:
        return join(y)


class Parallel(Bottleneck):
    """Reads what the sublayer received."""

    @staticmethod
    def read(y: Tensor, x: Tensor, join: Join) -> Tensor:
        return x


PLACEMENTS: dict[str, type[Bottleneck]] = {"houlsby": Houlsby, "pfeiffer": Pfeiffer, "parallel": Parallel}
