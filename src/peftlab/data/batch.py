"""A batch of token sequences, or of images: what goes into every model.

Shapes: B rows, T tokens in the longest row; C channels, H × W pixels of an image.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from peftlab.errors import UserError


@dataclass(frozen=True)
class Batch:
    """Token ids with what says which of them are real. Padding may stand on either side."""

    ids: Tensor
    """[B, T] token ids"""
    mask: Tensor
    """[B, T] True at real tokens"""
    segments: Tensor | None = None
    """[B, T] 0 for the first text of a pair and its marks, 1 for the second; None is all 0"""
    full: bool = field(init=False)
    """no padding at all: attention then needs no mask. Found once here, so that no model asks the tensor."""

    def __post_init__(self) -> None:
        if self.ids.ndim != 2 or self.ids.numel() == 0:
            raise UserError(
                f"the batch is empty: ids have shape {list(self.ids.shape)}, at least one row of one token is needed"
            )
        for name, tensor in (("ids", self.ids), ("segments", self.segments)):
            if tensor is not None and (tensor.is_floating_point() or tensor.dtype == torch.bool):
                raise UserError(f"{name} are {tensor.dtype}: they must be whole numbers, such as torch.long")
        for name, tensor in (("mask", self.mask), ("segments", self.segments)):
            if tensor is not None and tensor.shape != self.ids.shape:
                raise UserError(
                    f"{name} has shape {list(tensor.shape)}, ids have {list(self.ids.shape)}: they must be equal"
                )
        object.__setattr__(self, "ids", self.ids.long())
        object.__setattr__(self, "mask", self.mask.bool())
        object.__setattr__(self, "segments", None if self.segments is None else self.segments.long())
        object.__setattr__(self, "full", bool(self.mask.all()))

    def __len__(self) -> int:
        return self.ids.shape[0]

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on a device."""
        segments = None if self.segments is None else self.segments.to(device)
        return replace(self, ids=self.ids.to(device), mask=self.mask.to(device), segments=segments)


@dataclass(frozen=True)
class Pair:
    """A batch to read and the batch to write, row by row: what a model learns that turns one text into another."""

    source: Batch
    target: Batch
    """what the decoder is given: the start mark, then the text without its last token"""

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise UserError(f"{len(self.source)} sources and {len(self.target)} targets: there must be as many")

    def __len__(self) -> int:
        return len(self.source)

    def to(self, device: torch.device | str) -> "Pair":
        """The same on a device."""
        return Pair(self.source.to(device), self.target.to(device))


@dataclass(frozen=True)
class Images:
    """Images of one size, in the place of a `Batch`: each is cut into tokens by the model, so none is padded."""

    pixels: Tensor
    """[B, C, H, W] scaled and normalised as the model knows them"""

    def __post_init__(self) -> None:
        if self.pixels.ndim != 4 or self.pixels.numel() == 0:
            shape = list(self.pixels.shape)
            raise UserError(f"pixels have shape {shape}: images × channels × height × width are needed, none of them 0")
        if not self.pixels.is_floating_point():
            raise UserError(f"pixels are {self.pixels.dtype}: they must be normalised, in floating point numbers")

    def __len__(self) -> int:
        return self.pixels.shape[0]

    def to(self, device: torch.device | str) -> "Images":
        """The same images on a device."""
        return Images(self.pixels.to(device))
