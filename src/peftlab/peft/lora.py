"""LoRA: a matrix learns by adding a product of two thin ones, y = Wx + b + (α/r)·B(Ax).

Hu et al. 2021 (arXiv 2106.09685). A starts as Kaiming's uniform, B as zero, so that training starts from the base.
rsLoRA scales by α/√r (Kalajdzievski 2023, arXiv 2312.03732). DoRA is in `peft/dora.py`.

    peftlab.attach(base.model, "mine", peftlab.LoRA(rank=8, alpha=16, targets=("q", "v")))

Shapes: r rank, W [out, in], A [r, in], B [out, r]; in a mixed batch of b rows A [b, r, in], B [b, out, r].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peftlab.errors import UserError, unknown
from peftlab.layers.dropout import dropout
from peftlab.layers.linear import Linear
from peftlab.layers.site import Addition
from peftlab.models.model import Place
from peftlab.peft.method import Method, Stock, check_at_least, check_layers, stack

ALL = ("q", "k", "v", "o", "up", "down")


@dataclass(frozen=True)
class LoRA(Method):
    """Low-rank changes of the matrices named in `targets`."""

    name = "lora"
    about = "a low-rank matrix beside each chosen matrix; can be merged into it (Hu et al. 2021)"
    kinds = ("linear",)
    lr = 1e-3
    stock_type = "LORA"

    rank: int = 8
    """r, the width of the two thin matrices"""
    alpha: float = 16
    """the change is scaled by alpha / rank"""
    dropout: float = 0.0
    """on the input of the thin matrices, in training"""
    targets: tuple[str, ...] | str = ("q", "v")
    """which matrices: q, k, v, o of attention, up and down of the feed-forward network, or "all" of these"""
    layers: tuple[int, ...] | None = None
    """which blocks; None is all"""
    rs: bool = False
    """rsLoRA: scale by alpha / √rank"""
    dora: bool = False
    """DoRA: learn the length of each row of the changed matrix, too"""
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    """another rank for a target (`q`) or an address (`encoder.3.self.q`)"""
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    """another alpha likewise"""

    def __post_init__(self) -> None:
        if isinstance(self.targets, str):
            object.__setattr__(self, "targets", ALL if self.targets == "all" else (self.targets,))
        object.__setattr__(self, "targets", tuple(self.targets))
        check_at_least(1, rank=self.rank, **{f"rank_pattern.{key}": rank for key, rank in self.rank_pattern.items()})
        if not self.targets:
            raise UserError(f"targets is empty: name at least one of {', '.join(ALL)}")

    def build(self, places: Mapping[str, Place]) -> dict[str, Addition]:
        chosen = self.chosen(places)
        for key in [*self.rank_pattern, *self.alpha_pattern]:
            if key not in chosen and key not in self.targets:
                raise unknown("target in a pattern", key, [*self.targets, *chosen])
        kind = LoRALinear
        if self.dora:
            from peftlab.peft.dora import DoRALinear

            kind = DoRALinear
        return {
            key: kind(place.owner, self.rank_at(place), self.scale_at(place), self.dropout)
            for key, place in chosen.items()
        }

    def chosen(self, places: Mapping[str, Place]) -> dict[str, Place]:
        """The places of the targets in the layers; each target must be there."""
        there = {place.address.part for place in places.values() if place.address.layer is not None}
        for target in self.targets:
            if target not in there:
                raise unknown("target", target, ["all", *(part for part in ALL if part in there)])
        layers = check_layers(self.layers, places)
        return {
            key: place
            for key, place in places.items()
            if place.address.part in self.targets and place.address.layer in layers
        }

    def rank_at(self, place: Place) -> int:
        """The rank at a place; it fits the matrix there."""
        rank = self.rank_pattern.get(str(place.address), self.rank_pattern.get(place.address.part, self.rank))
        owner = place.owner
        assert isinstance(owner, Linear)
        most = min(owner.in_features, owner.out_features)
        if rank > most:
            shape = f"{owner.out_features} × {owner.in_features}"
            raise UserError(f"rank {rank} is larger than the matrix at {place.address} ({shape}): at most {most}")
        return rank

    def scale_at(self, place: Place) -> float:
        """α/r, or α/√r."""
        alpha = self.alpha_pattern.get(str(place.address), self.alpha_pattern.get(place.address.part, self.alpha))
        rank = self.rank_at(place)
        return alpha / (math.sqrt(rank) if self.rs else rank)

    def to_stock(self, additions: Mapping[str, Addition], names: Mapping[str, str], config: Any) -> Stock:
        from peftlab.peft.lora_stock import to_stock

        return to_stock(self, additions, names)

    @classmethod
    def from_stock(cls, stock: Stock, names: Mapping[str, str]) -> tuple[LoRA, dict[str, dict[str, Tensor]]]:
        from peftlab.peft.lora_stock import from_stock

        return from_stock(stock, names)

    @classmethod
    def combined(cls, methods: Sequence[LoRA], places: Mapping[str, Place]) -> LoRA:
        """Ranks add up at each place; the scales and weights go into B."""
        if any(method.dora for method in methods):
            raise UserError("a sum of DoRAs is not a DoRA: merge them one after the other instead")
        ranks = {
            key: sum(method.rank_at(place) for method in methods if place in method.chosen(places).values())
            for key, place in places.items()
        }
        ranks = {key: rank for key, rank in ranks.items() if rank}
        parts, layers = ({getattr(places[key].address, name) for key in ranks} for name in ("part", "layer"))
        rank = max(ranks.values())
        return cls(
            rank, rank, 0.0, tuple(sorted(parts)), tuple(sorted(layers)), rank_pattern=ranks, alpha_pattern=ranks
        )


class LoRALinear(Addition):
    """The change of one matrix."""

    mergeable = True

    def __init__(self, owner: nn.Module, rank: int, scale: float, dropout: float) -> None:
        super().__init__()
        assert isinstance(owner, Linear)
        self.rank, self.scale, self.dropout = rank, scale, dropout
        self.A = nn.Parameter(torch.empty(rank, owner.in_features))
        self.B = nn.Parameter(torch.zeros(owner.out_features, rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    @property
    def size(self) -> int:
        return self.rank

    def forward(self, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(F.linear(dropout(x, self.dropout, self.training), self.A) * self.scale, self.B)

    def change(self, dtype: torch.dtype) -> Tensor:
        """[out, in]: sBA."""
        return self.scale * (self.B.to(dtype) @ self.A.to(dtype))

    def merged(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return weight + self.change(weight.dtype), bias

    def mixed(self, rows: Sequence[LoRALinear | None], size: int) -> Callable[..., Tensor]:
        A = stack([None if row is None else row.A for row in rows], self.A, size)
        B = stack([None if row is None else row.B for row in rows], self.B, size, dim=1)
        scale = A.new_tensor([0.0 if row is None else row.scale for row in rows])
        return MixedLoRA(A, B, scale[:, None, None])

    @classmethod
    def combine(cls, parts: Sequence[LoRALinear], weights: Sequence[float], into: LoRALinear) -> None:
        """Fill `into` with Σ wᵢ·scaleᵢ·BᵢAᵢ, exactly: the thin matrices side by side."""
        into.A.copy_(torch.cat([part.A for part in parts]))
        into.B.copy_(
            torch.cat([part.B * (part.scale * w / into.scale) for part, w in zip(parts, weights, strict=True)], 1)
        )

    def extra_repr(self) -> str:
        return f"rank={self.size}, scale={self.scale:g}"


@dataclass(frozen=True)
class MixedLoRA:
    """A LoRA a row: two batched products."""

    A: Tensor
    B: Tensor
    scale: Tensor

    def __call__(self, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = x if x.ndim == 3 else x[:, None]  # the pooler sees one token a row
        change = (rows @ self.A.mT * self.scale) @ self.B.mT
        return change if x.ndim == 3 else change[:, 0]
