"""What a base expects of an image: the mean and the deviation by which its pixels are normalised.

`preprocessor_config.json`, as `transformers` writes it beside a ViT, or `pretrained_cfg` in timm's config.json.

    reader = ImageReader.load(folder, settings)
    reader.read(pixels)                              # (pixels / 255 − mean) / std

Shapes: B images, C channels, H × W pixels.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peftlab.data.batch import Images
from peftlab.data.files import is_file, read_object, write_text
from peftlab.errors import UserError

PREPROCESSOR = "preprocessor_config.json"


@dataclass(frozen=True)
class ImageReader:
    """Pixels to batches."""

    mean: tuple[float, ...] = (0.5,)
    """of each channel, or one for all; of pixels between 0 and 1"""
    std: tuple[float, ...] = (0.5,)
    """deviation of each channel, or one for all"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """the rest of its file, kept for writing it again"""

    @classmethod
    def load(cls, folder: Path, settings: Mapping[str, Any]) -> ImageReader:
        """That of a base's folder; `settings` is its config.json."""
        path = folder / PREPROCESSOR
        if is_file(path):
            found = read_object(path)
            return cls(channels(found, "image_mean", path), channels(found, "image_std", path), found)
        path, timm = folder / "config.json", settings.get("pretrained_cfg")
        if isinstance(timm, dict):
            return cls(channels(timm, "mean", path), channels(timm, "std", path))
        text = f"{folder} has no {PREPROCESSOR}: pixels are brought between −1 and 1, as the first ViT's were"
        warnings.warn(text, stacklevel=3)
        return cls()

    @classmethod
    def of(cls, pixels: Tensor) -> ImageReader:
        """With the mean and deviation of these pixels of 8 bits [B, C, H, W]."""
        # by how often each shade occurs, since all pixels as numbers would need eight times their memory
        counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in pixels.unbind(1)]).double()
        shares, shades = counts / counts.sum(1, keepdim=True), torch.arange(256).double() / 255
        mean = shares @ shades
        variance = (shares @ shades**2 - mean**2).clamp(min=1 / 255**2)
        return cls(tuple(mean.tolist()), tuple(variance.sqrt().tolist()))

    def to_json(self) -> str:
        """As its file has it."""
        usual = {"image_processor_type": "ViTImageProcessor", "do_rescale": True, "do_normalize": True}
        own = {"image_mean": list(self.mean), "image_std": list(self.std)}
        return json.dumps(usual | dict(self.settings) | own, indent=2, sort_keys=True)

    def save(self, folder: Path) -> list[str]:
        """Write the file; gives its name."""
        write_text(folder / PREPROCESSOR, self.to_json() + "\n")
        return [PREPROCESSOR]

    def read(self, pixels: Tensor) -> Images:
        """Pixels of 8 bits [B, C, H, W], of any size: positions are interpolated, so nothing is resized here."""
        if pixels.dtype != torch.uint8 or pixels.ndim != 4:
            shape, dtype = list(pixels.shape), pixels.dtype
            raise UserError(f"pixels are {dtype} of shape {shape}: they must be torch.uint8, B × C × H × W")
        mean, std = (torch.tensor(values, device=pixels.device)[:, None, None] for values in (self.mean, self.std))
        if len(mean) not in (1, pixels.shape[1]):
            raise UserError(f"the images have {pixels.shape[1]} channel(s), the base knows {len(mean)}: convert them")
        return Images((pixels / 255 - mean) / std)


def channels(settings: Mapping[str, Any], key: str, path: Path) -> tuple[float, ...]:
    """A number for each channel; 0.5 where there are none."""
    value = settings.get(key, [0.5])
    values = value if isinstance(value, list) else [value]
    right = all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)
    if not values or not right or (key.endswith("std") and 0 in values):
        raise UserError(f"{key} in {path} is {value!r}: it must be a number for each channel")
    return tuple(map(float, values))
