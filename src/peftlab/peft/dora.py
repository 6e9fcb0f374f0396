"""DoRA: LoRA that also learns the length of each row, y = m / ‖W + sBA‖ · (W + sBA)x + b.

Liu et al. 2024 (arXiv 2402.09353). The lengths m start as those of W, so that training starts from the base.

    peftlab.attach(base.model, "mine", peftlab.LoRA(rank=8, dora=True))

Shapes: as in `peft/lora.py`; m [out], in a mixed batch of b rows [b, out].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peftlab.layers.addition import LowRank, stack
from peftlab.layers.dropout import dropout
from peftlab.layers.linear import Linear
from peftlab.peft.lora import LoRALinear, MixedLoRA


class DoRALinear(LoRALinear):
    """The change of one matrix and the lengths of its rows: y = m / ‖W + sBA‖ · (W + sBA)x + b."""

    def __init__(self, owner: nn.Module, rank: int, scale: float, dropout: float) -> None:
        super().__init__(owner, rank, scale, dropout)
        assert isinstance(owner, Linear)
        self.magnitude = nn.Parameter(owner.weight.detach().norm(dim=1))

    def stretch(self, weight: Tensor) -> Tensor:
        """m / ‖W + sBA‖ [out]; the norm is a constant to the gradient (section 4.3 of the paper)."""
        return self.magnitude / (weight + self.change(weight.dtype)).detach().norm(dim=1)

    def forward(self, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        dropping = self.dropout > 0 and self.training
        x = dropout(x, self.dropout, self.training)
        plain = F.linear(x, weight) if dropping else y if bias is None else y - bias
        stretch = self.stretch(weight)
        return (stretch - 1) * plain + stretch * F.linear(F.linear(x, self.A) * self.scale, self.B)

    def low_rank(self) -> LowRank | None:
        return None

    def merged(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.stretch(weight)[:, None] * (weight + self.change(weight.dtype)), bias

    def mixed(self, rows: Sequence[LoRALinear | None], size: int) -> Callable[..., Tensor]:
        plain = self.stacked(rows, size)
        lengths = stack([row.magnitude if isinstance(row, DoRALinear) else None for row in rows], self.magnitude)
        here = torch.tensor([row is not None for row in rows], device=lengths.device)
        return MixedDoRA(plain.A, plain.B, plain.scale, lengths, here[:, None])


@dataclass(frozen=True)
class MixedDoRA(MixedLoRA):
    """A DoRA a row. ‖W + sBA‖ is expanded, so that no row needs a matrix of its own."""

    magnitude: Tensor
    here: Tensor

    def __call__(self, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        sB = self.B * self.scale
        across = (weight @ self.A.mT * sB).sum(2)
        inside = ((sB @ (self.A @ self.A.mT)) * sB).sum(2)
        norm = (weight.square().sum(1) + 2 * across + inside).sqrt()
        stretch = torch.where(self.here, self.magnitude / norm, 1.0)
        stretch = stretch[:, None] if x.ndim == 3 else stretch
        plain = y if bias is None else y - bias
        return (stretch - 1) * plain + stretch * super().__call__(x, y, weight, bias)
