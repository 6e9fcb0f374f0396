"""Augmentation: an image is a little different each time it is seen, and its label is not.

What is drawn comes from torch's own generator, whose state a checkpoint keeps: a training that was interrupted sees the
same images as one that was not.

Shapes: B images, C channels, H × W pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Augment:
    """An image is moved, turned and zoomed, perhaps mirrored; what comes in at its edges is black."""

    shift: float = 1 / 8
    """share of its side by which it moves at most, across and down"""
    turn: float = 10.0
    """degrees by which it turns at most, either way"""
    zoom: float = 0.1
    """share by which it grows or shrinks at most"""
    flip: bool = False
    """whether left and right change places in every second image"""

    def __call__(self, pixels: Tensor) -> Tensor:
        """Of 8 bits, [B, C, H, W]."""
        B = len(pixels)
        most = torch.tensor([2 * self.shift, 2 * self.shift, math.radians(self.turn), self.zoom])  # a side is 2 long
        x, y, angle, zoom = (2 * torch.rand(4, B) - 1) * most[:, None]
        side = torch.where(torch.rand(B) < 0.5, -1.0, 1.0) if self.flip else torch.ones(B)
        cos, sin = (1 + zoom) * angle.cos(), (1 + zoom) * angle.sin()
        # where in the image each pixel of the new one comes from
        matrix = torch.stack([side * cos, -sin, x, side * sin, cos, y], 1).view(B, 2, 3)
        grid = F.affine_grid(matrix, list(pixels.shape), align_corners=False)
        return F.grid_sample(pixels.float(), grid, align_corners=False).round().to(torch.uint8)
