"""Axial positions: position t stands in row t ÷ columns and column t mod columns of a table, and is told by both.

Kitaev et al. 2020 (arXiv 2001.04451), after Ho et al. 2019 (arXiv 1912.12180). Half a million positions then need a
thousand vectors or two.

Shapes: B rows of a batch, T tokens, E embedding width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from peftlab.errors import UserError


class AxialPositions(nn.Module):
    """[row's vector; column's vector], as wide together as the embedding."""

    def __init__(
        self, count: int, dim: int, axes: Sequence[int] | None = None, dims: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        side = math.isqrt(count - 1) + 1
        axes, dims = axes or (-(-count // side), side), dims or (dim // 2, dim - dim // 2)
        if len(axes) != 2 or math.prod(axes) < count:
            raise UserError(
                f"axes is {list(axes)}: rows × columns must be at least the {count} positions of max_length"
            )
        if len(dims) != 2 or sum(dims) != dim or min(dims) < 1:
            raise UserError(f"axis_dims is {list(dims)}: the two widths must add up to dim = {dim}")
        self.count = count
        # with the axes of the published models, so that theirs are read as they are
        self.rows = nn.Parameter(torch.empty(axes[0], 1, dims[0]))
        self.columns = nn.Parameter(torch.empty(1, axes[1], dims[1]))

    def forward(self, positions: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T] → [B, T, E]."""
        columns = self.columns.shape[1]
        return torch.cat([self.rows[positions // columns, 0], self.columns[0, positions % columns]], -1)

    def extra_repr(self) -> str:
        return f"{self.rows.shape[0]} × {self.columns.shape[1]}, {self.rows.shape[2]} + {self.columns.shape[2]}"
