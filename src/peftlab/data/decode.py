"""An image file becomes pixels, or one sentence with its path says why not.

    [cat] = read_images([Path("cat.jpg")], size=32, channels=3)        # torch.uint8 [3, 32, 32]

An image is taken as a viewer shows it: the first frame, turned as its camera held it, transparent over white, 16 bits
a channel as 8. It is then squeezed into a square, as ViT's own preprocessor does. Threads do it, and not processes:
Pillow lets go of Python's lock while it decodes, converts and resizes, so that they have all cores, while a process
would first have to start, for seconds, and then to send all pixels back.

Shapes: C channels, S × S pixels.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from peftlab.data.files import is_file
from peftlab.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
"""what is opened, whatever a file is called: some of Pillow's other formats start programs"""
MODES = {1: "L", 3: "RGB"}
"""channels → as Pillow calls it: grey, or colours"""


class Packed(NamedTuple):
    """An image file inside another file."""

    name: str
    """where it is, for messages"""
    content: bytes

    def __str__(self) -> str:
        return self.name


def read_images(files: Sequence[Path | Packed], size: int, channels: int) -> list[Tensor | UserError]:
    """The pixels [C, S, S] of each file, or what is wrong with it; Pillow decodes in several threads at once."""
    from PIL import Image

    if channels not in MODES:
        raise UserError(f"channels is {channels!r}: an image has 1 (grey) or 3 (colours)")
    with warnings.catch_warnings(), ThreadPoolExecutor() as pool:
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return list(pool.map(partial(pixels_or_reason, size=size, channels=channels), files))


def pixels_or_reason(file: Path | Packed, size: int, channels: int) -> Tensor | UserError:
    """The pixels of a file, or what is wrong with it."""
    from PIL import Image, UnidentifiedImageError

    if isinstance(file, Path) and not is_file(file):
        return UserError(f"{file} is missing: give an image file")
    try:
        with Image.open(BytesIO(file.content) if isinstance(file, Packed) else file, formats=FORMATS) as image:
            if max(image.size) == 1:
                return UserError(f"{file} has one pixel: there is nothing to see in it")
            return to_pixels(opaque(image), size, channels)
    except UnidentifiedImageError:
        return UserError(f"{file} is no image, whatever its name says: there are {', '.join(FORMATS)}")
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        most = (Image.MAX_IMAGE_PIXELS or 0) / 1e6
        return UserError(f"{file} has more than {most:.0f} million pixels and is not decoded: make it smaller")
    except Exception as error:  # whatever a damaged file makes of Pillow
        return UserError(f"{file} is damaged: {' '.join(str(error).split()) or type(error).__name__}")


def opaque(image: Image.Image) -> Image.Image:
    """As a viewer shows it."""
    import numpy
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise ValueError("its pixels are floating point numbers of no known range")
    if image.mode.startswith("I"):  # 16 bits; Pillow's own conversion cuts them off at 255
        image = Image.fromarray((numpy.asarray(image).clip(0, 65535) / 257).round().astype(numpy.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image


def to_pixels(image: Image.Image, size: int, channels: int) -> Tensor:
    """[C, S, S]."""
    import numpy
    from PIL import Image

    image = image.convert(MODES[channels]).resize((size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(numpy.array(image).reshape(size, size, channels)).permute(2, 0, 1).contiguous()
