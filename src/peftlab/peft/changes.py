"""The smallest additions: a vector added to a bias, and vectors added to a norm's scale and shift.

Shapes: D width; in a mixed batch of b rows [b, 1, D].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from peftlab.layers.addition import Addition, stack


class BiasChange(Addition):
    """A change of a linear map's bias."""

    mergeable = True

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros_like(bias))

    def forward(self, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.shift

    def bias_shift(self) -> Tensor:
        return self.shift

    def merged(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return weight, self.shift if bias is None else bias + self.shift

    def mixed(self, rows: Sequence[BiasChange | None], size: int) -> Callable[..., Tensor]:
        return MixedBias(stack([None if row is None else row.shift for row in rows], self.shift))


@dataclass(frozen=True)
class MixedBias:
    """A change a row."""

    shift: Tensor

    def __call__(self, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.shift[:, None] if y.ndim == 3 else self.shift


class NormChange(Addition):
    """A change of a norm's shift, and of its scale where asked for."""

    mergeable = True

    def __init__(self, weight: Any, scale: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros_like(weight)) if scale else None
        self.shift = nn.Parameter(torch.zeros_like(weight))

    @property
    def group(self) -> Any:
        return (NormChange, self.scale is not None)

    def forward(self, scale: Tensor, shift: Tensor) -> tuple[Tensor | float, Tensor]:
        return 0.0 if self.scale is None else self.scale, self.shift

    def merged(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert bias is not None
        return weight if self.scale is None else weight + self.scale, bias + self.shift

    def mixed(self, rows: Sequence[NormChange | None], size: int) -> Callable[..., tuple[Tensor | float, Tensor]]:
        shift = stack([None if row is None else row.shift for row in rows], self.shift)[:, None]
        if self.scale is None:
            return MixedNorm(0.0, shift)
        return MixedNorm(stack([None if row is None else row.scale for row in rows], self.scale)[:, None], shift)


@dataclass(frozen=True)
class MixedNorm:
    """Changes a row."""

    scale: Tensor | float
    shift: Tensor

    def __call__(self, scale: Tensor, shift: Tensor) -> tuple[Tensor | float, Tensor]:
        return self.scale, self.shift
