"""Patches: an image becomes a sequence of tokens, the class token first.

    x = [class; E·patch₁; …; E·patchₙ] + positions

Dosovitskiy et al. 2020 (arXiv 2010.11929), equation 1; the distillation token after Touvron et al. 2020 (arXiv
2012.12877). E is the same for every patch, so that it is a convolution whose stride is its width.

    python -m pytest tests/layers/test_patches.py

Shapes: B images, C channels, H × W pixels, p × p of them a patch, h × w patches (h = H // p), k marks (the class token,
and DeiT's distillation token), T = k + h·w tokens, n virtual tokens, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peftlab.data.batch import Images
from peftlab.errors import UserError
from peftlab.layers.addition import Virtual
from peftlab.layers.dropout import Dropout
from peftlab.layers.embedding import Embedded, Embedding, no_tokenizer
from peftlab.layers.site import Route, TokensSite, hide_empty_sites


class Patches(nn.Conv2d):
    """[B, C, H, W] → [B, D, h, w]. What is left at the right and lower edge, less than a patch, is not seen."""

    def __init__(self, channels: int, patch: int, dim: int) -> None:
        super().__init__(channels, dim, patch, stride=patch)
        self.patch = patch

    def reset_parameters(self) -> None:
        """As `Linear.reset_parameters`."""
        if not self.weight.is_meta:
            super().reset_parameters()


class Grid(nn.Module):
    """A learned position for each mark and for each place of a square; other grids are interpolated from it."""

    def __init__(self, marks: int, side: int, dim: int) -> None:
        super().__init__()
        self.marks, self.side = marks, side
        self.table = nn.Parameter(torch.zeros(1, marks + side * side, dim))

    @property
    def weight(self) -> Tensor:
        """[T, D]."""
        return self.table[0]

    def forward(self, height: int, width: int) -> Tensor:
        """[1, k + h·w, D]."""
        if (height, width) == (self.side, self.side):
            return self.table
        marks, places = self.table.split([self.marks, self.side**2], 1)
        square = places.unflatten(1, (self.side, self.side)).permute(0, 3, 1, 2)  # [1, D, side, side]
        grid = F.interpolate(square, (height, width), mode="bicubic")
        return torch.cat([marks, grid.flatten(2).transpose(1, 2)], 1)

    def extra_repr(self) -> str:
        return f"{self.marks} + {self.side} × {self.side}, {self.table.shape[2]}"


class ImageEmbedding(Embedding):
    """Images to vectors. None of an embedding's parts is as for text; what it is to the methods is the same."""

    positions: Grid

    def __init__(self, channels: int, image: int, patch: int, dim: int, distilled: bool, dropout: float) -> None:
        nn.Module.__init__(self)
        self.patches = Patches(channels, patch, dim)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.distillation = nn.Parameter(torch.zeros(1, 1, dim)) if distilled else None
        self.tokens = TokensSite()
        self.positions = Grid(2 if distilled else 1, image // patch, dim)
        self.dropout = Dropout(dropout)
        self.tokenise = no_tokenizer

    @property
    def words(self) -> Grid:  # type: ignore[override]
        """In the place of a vocabulary: vectors of the right width and size."""
        return self.positions

    def drawn(self, count: int) -> Tensor:
        """[count, D] random, since there are no words and only a few positions."""
        like = self.positions.weight.detach()
        return torch.randn(count, like.shape[1], device=like.device) * like.std()

    @property
    def marks(self) -> Tensor:
        """[1, k, D]."""
        return self.cls if self.distillation is None else torch.cat([self.cls, self.distillation], 1)

    def forward(self, images: Images, route: Route | None = None) -> Embedded:  # type: ignore[override]
        B = len(images)
        virtual = self.tokens(B, route)
        if not torch.compiler.is_compiling():
            self.refuse(images, virtual)
        patches = self.patches(images.pixels.to(self.patches.weight.dtype))
        h, w = patches.shape[2:]
        x = torch.cat([self.marks.expand(B, -1, -1), patches.flatten(2).transpose(1, 2)], 1) + self.positions(h, w)
        mask, full, n = x.new_ones(x.shape[:2], dtype=torch.bool), True, 0
        if virtual is not None:
            n, full = virtual.vectors.shape[1], virtual.full
            x, mask = torch.cat([virtual.vectors.to(x.dtype), x], 1), torch.cat([virtual.mask, mask], 1)
        first = torch.full((B,), n, device=x.device)
        return Embedded(self.dropout(x), mask, full, n, first, None)

    def refuse(self, images: Images, virtual: Virtual | None) -> None:
        """The user's mistakes."""
        _, C, H, W = images.pixels.shape
        p = self.patches.patch
        if self.patches.in_channels != C:
            raise UserError(f"the images have {C} channel(s), the model reads {self.patches.in_channels}: convert them")
        if min(H, W) < p:
            raise UserError(f"an image of {H}×{W} pixels is smaller than the model's patches of {p}×{p}: enlarge it")
        if virtual is not None and virtual.shift.any():
            raise UserError(
                'layout = "peft" moves the positions of the tokens, and patches stay where they are: use "native"'
            )

    __repr__ = hide_empty_sites
