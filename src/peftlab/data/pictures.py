"""Labelled images by name or path, decoded once; those of files are brought to one size at once, others by `fitted`.

    load_pictures("digits")                           scikit-learn's 1,797 digits of 8×8 pixels
    load_pictures("fashion-mnist")                    Debian's dataset-fashion-mnist, or a folder of $PEFTLAB_DATA
    load_pictures("mnist/")                           a folder of IDX files, train-images-idx3-ubyte(.gz) …
    load_pictures("flowers/", size=32)                a folder of class folders, or train/ and test/ with such folders
    load_pictures("uoft-cs/cifar10", size=32)         a data set of the hub, or a folder of Parquet files like its

Whatever is wrong with a file is told with its path, before anything runs.

Shapes: N images, C channels, H × W pixels.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import re
import struct
import warnings
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peftlab.data.decode import MODES, SUFFIXES, read_images
from peftlab.data.examples import Labelled, split_stratified
from peftlab.data.packed_images import find_columns, parquet_files, read_packed
from peftlab.data.sources import HUB_ID, fetch_data
from peftlab.errors import UserError, unknown

NAMES = ("digits", "fashion-mnist")
DEBIAN = Path("/usr/share/datasets")
CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
IDX = re.compile(r"(train|t10k|test)-(images|labels)[-.]idx[13]-ubyte(\.gz)?")
TESTS = ("test", "val", "validation")
"""folders beside train/ that are reported"""
TEST_SHARE = 0.2
MOST = 2**32
"""bytes of an IDX file; a header may say anything"""


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images with their labels; item i of each belongs to the same row."""

    pixels: Tensor
    """[N, C, H, W] of 8 bits"""
    labels: list[int]
    """the place of each row's label among the names of the data set"""
    rows: list[int]
    """the number of each row in its data set, counted from 1, for messages"""

    def __post_init__(self) -> None:
        assert len(self.pixels) == len(self.labels) == len(self.rows)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Sequence[int]) -> Pictures:
        """The images at some places, in the order of these places."""
        labels, rows = ([values[i] for i in indices] for values in (self.labels, self.rows))
        return Pictures(self.pixels[list(indices)], labels, rows)

    @property
    def content(self) -> tuple[Any, ...]:
        """What a fingerprint is made of."""
        return list(self.pixels.shape), hashlib.sha256(self.pixels.numpy().data).hexdigest(), self.labels


def load_pictures(
    name: str,
    size: int | None = None,
    channels: int | None = None,
    broken: str = "stop",
    classes: Sequence[str] | None = None,
) -> Labelled[Pictures]:
    """The images of a data set, split. Files are decoded to this size and channels [3]; digits and IDX have their own.

    With `broken` "skip" a file that can't be used is told and left out; with `classes` there are no images of others.
    """
    if channels is not None and channels not in MODES:
        raise UserError(f"channels is {channels!r}: an image has 1 (grey) or 3 (colours)")
    if name == "digits":
        parts, labels = {"train": digits()}, tuple(map(str, range(10)))
    else:
        folder = find(name)
        if files := idx_files(folder):
            parts, labels = read_idx_parts(folder, files)
        else:
            if size is None:
                raise UserError(f"the images of {folder} may have any size: say which they are to have, images.size")
            read = read_parquet if parquet_files(folder) else read_folders
            parts, labels = read(folder, size, channels or 3, broken)
    train, about = parts.pop("train"), name
    if len(set(train.labels)) < 2:
        raise UserError(f"{name} has images of {len(set(train.labels))} class(es) to train on: there must be two")
    if not parts:
        train, parts["test"] = split_stratified(train, TEST_SHARE, seed=0)
        about += f", {TEST_SHARE:.0%} of each class drawn as the test"
    data = Labelled(Path(name).name or name, train, parts, labels, "accuracy", about)
    return data if classes is None else only(data, tuple(classes))


def only(data: Labelled[Pictures], classes: tuple[str, ...]) -> Labelled[Pictures]:
    """The images of some classes, numbered as these are given. What was a test is one still: it was drawn before."""
    for name in classes:
        if name not in data.labels:
            raise unknown(f"class of {data.name} in images.classes", name, data.labels)
    if not 2 <= len(set(classes)) == len(classes):
        raise UserError(f"images.classes is {', '.join(classes) or 'empty'}: name two or more, each once")
    numbers = {data.labels.index(name): number for number, name in enumerate(classes)}

    def kept(part: Pictures) -> Pictures:
        found = part.take([i for i, label in enumerate(part.labels) if label in numbers])
        if set(found.labels) != numbers.keys():
            lacking = next(name for name in classes if data.labels.index(name) not in found.labels)
            raise UserError(f"a part of {data.name} has no image of {lacking!r}: leave it out of images.classes")
        return replace(found, labels=[numbers[label] for label in found.labels])

    tests = {split: kept(part) for split, part in data.tests.items()}
    return replace(data, train=kept(data.train), tests=tests, labels=classes)


def find(name: str) -> Path:
    """The folder of a data set."""
    if name in NAMES:
        given = filter(None, os.environ.get("PEFTLAB_DATA", "").split(os.pathsep))
        for place in [*(Path(place).expanduser() for place in given), DEBIAN]:
            if (place / name).is_dir():
                return place / name
        raise UserError(
            f"{name} is not here: apt install dataset-{name}, or give the folder of its IDX files as images.name"
        )
    folder = Path(name).expanduser()
    if not folder.is_dir() and HUB_ID.fullmatch(name):
        folder = fetch_data(name)
    if not folder.is_dir():
        raise UserError(f"{unknown('images', name, NAMES)}, and it is no folder that exists and no hub id (owner/name)")
    return folder


def digits() -> Pictures:
    """The test part of the UCI's handwritten digits; of 17 shades of grey, white on black."""
    from sklearn.datasets import load_digits

    found = load_digits()
    pixels = (torch.from_numpy(found.images) * 255 / 16).round().to(torch.uint8)
    return Pictures(pixels[:, None], found.target.tolist(), [*range(1, len(pixels) + 1)])


def fitted(pixels: Tensor, size: int, channels: int) -> Tensor:
    """Images [N, 1 or C, H, W] of 8 bits as squares of a size, grey in all channels where there was one."""
    pixels = pixels.expand(-1, channels, -1, -1)
    if pixels.shape[2:] == (size, size):
        return pixels
    resized = F.interpolate(pixels.float(), (size, size), mode="bilinear", antialias=True)
    return resized.round().clamp(0, 255).to(torch.uint8)


# IDX, the format of MNIST: 0, 0, 8 (bytes), the number of dimensions, each of them, and then the values


def idx_files(folder: Path) -> dict[tuple[str, str], Path]:
    """Split and kind → file, where a folder has such files."""
    found: dict[tuple[str, str], Path] = {}
    for path in sorted(folder.iterdir()):
        if match := IDX.fullmatch(path.name):
            found.setdefault(("train" if match[1] == "train" else "test", match[2]), path)
    return found


def read_idx_parts(folder: Path, files: dict[tuple[str, str], Path]) -> tuple[dict[str, Pictures], tuple[str, ...]]:
    """The parts, and the names of the labels."""
    parts = {}
    for split in ("train", "test"):
        if split == "test" and (split, "images") not in files:
            continue
        for kind in ("images", "labels"):
            if (split, kind) not in files:
                raise UserError(f"{folder} has no {split}-{kind}-idx{3 if kind == 'images' else 1}-ubyte.gz")
        images, labels = read_idx(files[split, "images"], 3), read_idx(files[split, "labels"], 1)
        if len(images) != len(labels):
            raise UserError(f"{files[split, 'images']} has {len(images)} images and {len(labels)} labels")
        parts[split] = Pictures(images[:, None], labels.tolist(), [*range(1, len(images) + 1)])
    count = 1 + max(max(part.labels) for part in parts.values())
    clothes = folder.name == "fashion-mnist" and count == len(CLOTHES)
    return parts, CLOTHES if clothes else tuple(map(str, range(count)))


def read_idx(path: Path, dimensions: int) -> Tensor:
    """The bytes of an IDX file in their shape."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            start = file.read(4 + 4 * dimensions)
            if start[:4] != bytes([0, 0, 8, dimensions]) or len(start) < 4 + 4 * dimensions:
                raise UserError(f"{path} is no IDX file of bytes in {dimensions} dimension(s)")
            shape = struct.unpack(f">{dimensions}I", start[4:])
            count = math.prod(shape)
            values = file.read(count + 1) if count < MOST else b""
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not count or len(values) != count:
        raise UserError(f"{path} says that it has {'×'.join(map(str, shape))} values, and has not: it is damaged")
    return torch.frombuffer(bytearray(values), dtype=torch.uint8).reshape(shape)


# Folders of image files, and of Parquet files with image files in them


def read_folders(folder: Path, size: int, channels: int, broken: str) -> tuple[dict[str, Pictures], tuple[str, ...]]:
    """The parts, and the names of the classes."""
    split = (folder / "train").is_dir()
    places = {"train": folder / "train" if split else folder}
    if split:
        places |= {name: folder / name for name in TESTS if (folder / name).is_dir()}
    files = {name: class_files(place, broken) for name, place in places.items()}
    labels = tuple(files["train"])
    for name in places:
        if extra := sorted(files[name].keys() - set(labels)):
            raise unknown(f"class in {places[name]}", extra[0], labels)
    return {name: read_classes(found, labels, size, channels, broken) for name, found in files.items()}, labels


def class_files(folder: Path, broken: str) -> dict[str, list[Path]]:
    """Class → its image files, in alphabetical order."""
    found = {}
    for place in sorted(folder.iterdir()):
        if place.is_dir() and not place.name.startswith("."):
            files = sorted(path for path in place.rglob("*") if path.suffix.lower() in SUFFIXES)
            if files:
                found[place.name] = files
            else:
                refuse(UserError(f"{place} has no image ({', '.join(SUFFIXES)})"), broken)
    if not found:
        raise UserError(
            f"{folder} has neither IDX files nor class folders with images, nor Parquet files such as train.parquet"
        )
    return found


def read_classes(
    files: dict[str, list[Path]], labels: tuple[str, ...], size: int, channels: int, broken: str
) -> Pictures:
    """The images of all classes, without those that can't be used."""
    found = (
        (pixels, labels.index(name)) for name, paths in files.items() for pixels in read_images(paths, size, channels)
    )
    return gathered(found, ", ".join(files), broken)


def read_parquet(folder: Path, size: int, channels: int, broken: str) -> tuple[dict[str, Pictures], tuple[str, ...]]:
    """The parts of Parquet files, and the names of the classes."""
    files = parquet_files(folder)
    columns = find_columns(files["train"])

    def part(paths: list[Path]) -> Pictures:
        return gathered(read_packed(paths, columns, size, channels), ", ".join(map(str, paths)), broken)

    return {split: part(paths) for split, paths in files.items()}, columns.names


def gathered(found: Iterable[tuple[Tensor | UserError, int]], where: str, broken: str) -> Pictures:
    """Images with their labels, without those that can't be used."""
    kept: list[Tensor] = []
    numbers: list[int] = []
    for pixels, number in found:
        if isinstance(pixels, UserError):
            refuse(pixels, broken)
        else:
            kept.append(pixels)
            numbers.append(number)
    if not kept:
        raise UserError(f"no image of {where} can be read: give others")
    return Pictures(torch.stack(kept), numbers, [*range(1, len(kept) + 1)])


def refuse(problem: UserError, broken: str) -> None:
    """Stop at a problem, or tell it and go on."""
    if broken == "stop":
        raise UserError(f'{problem}; images.broken = "skip" goes on without it')
    warnings.warn(f"{problem}; it is left out", stacklevel=2)
