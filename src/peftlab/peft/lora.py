"""LoRA: a matrix learns by adding a product of two thin ones, y = Wx + b + (α/r)·B(Ax).

Hu et al. 2021 (arXiv 2106.09685). A starts as Kaiming's uniform, B as zero, so that training starts from the base.
rsLoRA scales by α/√r (Kalajdzievski 2023, arXiv 2312.03732). DoRA is in `peft/dora.py`.

    peftlab.attach(base.model, "mine", peftlab.LoRA(rank=8, alpha=16, targets=("q", "v")))

Shapes: r rank, W [out, in], A [r, in], B [out, r]; in a mixed batch of b rows A [b, r, in], B [b, out, r].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from peftlab import native
from peftlab.errors import UserError, unknown
from peftlab.layers.addition import Addition, LowRank, stack
from peftlab.layers.dropout import dropout
from peftlab.layers.linear import Linear, product
from peftlab.models.model import Place
from peftlab.peft.method import Method, Stock, check_block_numbers, check_layers, check_number, check_whole

ALL = ("q", "k", "v", "o", "up", "down")
MOST = 1_000_000


@dataclass(frozen=True)
class LoRA(Method):
    """Low-rank changes of the matrices named in `targets`."""

    name = "lora"
    about = "a low-rank matrix beside each chosen matrix; can be merged into it (Hu et al. 2021)"
    kinds = ("linear",)
    lr = 4e-3
    size_field = "rank"
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
    at: tuple[str, ...] | None = None
    """the addresses of the matrices, where targets × layers can't say it; any linear map of the model"""
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
        object.__setattr__(self, "layers", check_block_numbers(self.layers))
        object.__setattr__(self, "at", None if self.at is None else tuple(self.at))
        ranks = {f"rank_pattern.{key}": rank for key, rank in self.rank_pattern.items()}
        alphas = {f"alpha_pattern.{key}": alpha for key, alpha in self.alpha_pattern.items()}
        check_whole(1, MOST, rank=self.rank, **ranks)
        check_number(-1e6, 1e6, alpha=self.alpha, **alphas)
        check_number(0, 0.99, dropout=self.dropout)
        if not self.targets or not all(isinstance(target, str) for target in self.targets):
            raise UserError(f"targets is {self.targets!r}: name at least one of {', '.join(ALL)}")

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
        """The places of the addresses, or of the targets in the layers; each must be there."""
        if self.at is not None:
            for key in self.at:
                if key not in places:
                    raise unknown("address", str(key), places)
            return {key: places[key] for key in self.at}
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
        if rank > largest_rank(place):
            shape = " × ".join(map(str, place.owner.get_parameter("weight").shape))
            most = largest_rank(place)
            raise UserError(f"rank {rank} is larger than the matrix at {place.address} ({shape}): at most {most}")
        return rank

    def scale_at(self, place: Place) -> float:
        """α/r, or α/√r."""
        alpha = self.alpha_pattern.get(str(place.address), self.alpha_pattern.get(place.address.part, self.alpha))
        rank = self.rank_at(place)
        return alpha / (math.sqrt(rank) if self.rs else rank)

    def resized(self, size: int) -> LoRA:
        """With another rank, at the same scale α/r."""
        return replace(self, rank=size, alpha=self.alpha * size / self.rank)

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
        ranks: dict[str, int] = {}
        for method in methods:
            for key, place in method.chosen(places).items():
                ranks[key] = ranks.get(key, 0) + method.rank_at(place)
        ranks = {key: min(rank, largest_rank(places[key])) for key, rank in ranks.items()}
        rank = max(ranks.values())
        return cls(rank=rank, alpha=rank, at=tuple(ranks), rank_pattern=ranks, alpha_pattern=ranks)


def largest_rank(place: Place) -> int:
    """The shorter side of the matrix at a place."""
    owner = place.owner
    assert isinstance(owner, Linear)
    return min(owner.in_features, owner.out_features)


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
        return product(product(dropout(x, self.dropout, self.training), self.A) * self.scale, self.B)

    def low_rank(self) -> LowRank | None:
        return None if self.dropout > 0 and self.training else LowRank(self.A, self.B, self.scale)

    def change(self, dtype: torch.dtype) -> Tensor:
        """[out, in]: sBA."""
        return self.scale * (self.B.to(dtype) @ self.A.to(dtype))

    def merged(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return weight + self.change(weight.dtype), bias

    def mixed(self, rows: Sequence[LoRALinear | None], size: int) -> Callable[..., Tensor]:
        if native.fits(self.A, self.B) and not torch.is_grad_enabled():
            return LoRARows(self, rows, size)
        return self.stacked(rows, size)

    def stacked(self, rows: Sequence[LoRALinear | None], size: int) -> MixedLoRA:
        """The matrices of all rows in two tensors."""
        A = stack([None if row is None else row.A for row in rows], self.A, size)
        B = stack([None if row is None else row.B for row in rows], self.B, size, dim=1)
        scale = A.new_tensor([0.0 if row is None else row.scale for row in rows])
        return MixedLoRA(A, B, scale[:, None, None])

    def combine(self, parts: Sequence[LoRALinear], weights: Sequence[float]) -> None:
        """Σ wᵢ·scaleᵢ·BᵢAᵢ, exactly: the thin matrices side by side; where they are not thin any more, by SVD."""
        if sum(part.rank for part in parts) == self.rank:
            A = torch.cat([part.A for part in parts])
            B = torch.cat([part.B * (part.scale * weight) for part, weight in zip(parts, weights, strict=True)], 1)
        else:
            total = sum(weight * part.change(torch.float64) for part, weight in zip(parts, weights, strict=True))
            U, S, A = torch.linalg.svd(total, full_matrices=False)
            B = U * S
        self.A.copy_(A)
        self.B.copy_(B / self.scale)

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


@dataclass(frozen=True)
class LoRARows:
    """The same, for our own kernels, which read the matrices where they lie."""

    like: LoRALinear
    rows: Sequence[LoRALinear | None]
    size: int

    @property
    def changes(self) -> native.Changes | None:
        """What a linear map is told that adds them itself; None where not all can be read."""
        place = {row: i for i, row in enumerate(dict.fromkeys(row for row in self.rows if row is not None))}
        # `row.A` would be `Module.__getattr__`, a fiftieth of the whole pass where rows are many
        members: list[Any] = [(row._parameters["A"], row._parameters["B"], row.scale) for row in place]
        if not native.reads(*(A for A, _, _ in members), *(B for _, B, _ in members)):
            return None
        return native.Changes(members, [-1 if row is None else place[row] for row in self.rows])

    def __call__(self, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.like.stacked(self.rows, self.size)(x, y, weight, bias)
