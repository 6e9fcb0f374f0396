"""Tensors from safetensors files: whole or refused, checked before they are used, never from a pickle."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from peftlab.data.files import read_object, replace_file
from peftlab.errors import UserError

LARGEST_HEADER = 1_000_000
"""bytes, enough for some 8,000 tensors; Python reads the worst such header in half a second and 50 MB"""
SHARD = re.compile(r"\w[\w.-]{0,200}\.safetensors")
KINDS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Tensors:
    """The tensors of one or more files of a folder, by name, each read when it is asked for."""

    def __init__(self, folder: Path, files: Sequence[str]) -> None:
        self.folder = folder
        self.readers: dict[str, Any] = {}
        for name in files:
            path = folder / name
            try:
                check_header(path)
                reader = safe_open(path, framework="pt")
            except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError) as error:
                why = "".join(c if c.isprintable() else " " for c in str(error)[:200]) or type(error).__name__
                raise UserError(f"{path} is not a whole safetensors file ({why}): fetch or save it again") from None
            if twice := self.readers.keys() & reader.keys():
                raise UserError(f"{path} has the tensor {min(twice)}, which another file beside it has too")
            self.readers |= dict.fromkeys(reader.keys(), reader)

    @classmethod
    def in_folder(cls, folder: Path) -> Tensors:
        """Those of `model.safetensors`, or of the shards that `model.safetensors.index.json` names."""
        return cls(folder, weight_files(folder))

    def __iter__(self) -> Iterator[str]:
        return iter(self.readers)

    def __len__(self) -> int:
        return len(self.readers)

    def shape(self, name: str) -> list[int]:
        """The shape of a tensor, without reading it."""
        return list(self.readers[name].get_slice(name).get_shape())

    def check(self, wanted: Mapping[str, Sequence[int]], by: str) -> None:
        """Each wanted tensor is there in the shape that `by` (a file's name) asks for."""
        for name, shape in wanted.items():
            if name not in self.readers:
                raise UserError(f"{self.folder} has no tensor {name}, which its {by} asks for")
            if self.shape(name) != list(shape):
                raise UserError(
                    f"{name} in {self.folder} has shape {self.shape(name)}, its {by} asks for {list(shape)}"
                )

    def read(self, name: str) -> Tensor:
        """A tensor as fp32 in memory of its own: a mapped file could change below us."""
        try:
            tensor: Tensor = self.readers[name].get_tensor(name)
            if tensor.dtype in KINDS:
                return tensor.to(torch.float32, copy=True)
        except (SafetensorError, RuntimeError, MemoryError) as error:  # a kind that torch has not, or no memory for it
            why = str(error).partition("\n")[0]
            raise UserError(f"{name} in {self.folder} can't be read: {why}") from None
        raise UserError(
            f"{name} in {self.folder} is {tensor.dtype}: weights are floating point numbers of 16 bits or more"
        )


def check_header(path: Path) -> None:
    """Refuse, before the file is mapped, what the library lets pass: a huge header, a name that is there twice."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > LARGEST_HEADER:
            raise ValueError(f"its header would have {length:,} bytes, at most {LARGEST_HEADER:,} are read")
        json.loads(file.read(length), object_pairs_hook=check_names)


def check_names(pairs: list[tuple[str, Any]]) -> None:
    """Each name of a JSON object is there once, and can stand in a message."""
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError("its header has a name twice")
    if not all(map(str.isprintable, names)):
        raise ValueError("its header has a name that can't be printed")


def weight_files(folder: Path) -> list[str]:
    """The names of the safetensors files that hold a checkpoint."""
    whole, index = "model.safetensors", "model.safetensors.index.json"
    if (folder / whole).is_file():
        return [whole]
    if (folder / index).is_file():
        return shards(folder, index)
    pickles = sorted(path for end in ("bin", "pt", "pth") for path in folder.glob(f"*.{end}"))
    if pickles:
        raise UserError(
            f"{pickles[0]} is a pickle, which can run code and is never opened here: convert it, where you trust it, by"
            " AutoModel.from_pretrained(folder).save_pretrained(folder) of transformers, to model.safetensors"
        )
    raise UserError(f"{folder / whole} is missing: a base is a folder with config.json and model.safetensors")


def shards(folder: Path, index: str) -> list[str]:
    """The files that an index names, each beside it."""
    places = read_object(folder / index).get("weight_map")
    if not isinstance(places, dict):
        raise UserError(f"{folder / index} is not an index of shards: it has no weight_map")
    names = sorted(set(map(str, places.values())))
    for name in names:
        if not SHARD.fullmatch(name):
            raise UserError(f"{folder / index} names {name!r:.100}: a shard is a .safetensors file beside it")
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} is missing: {index} names it as a shard")
    return names


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the whole file, or leave what was there; what the disk says comes as Python would say it."""
    with replace_file(path) as temporary:
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, {"format": "pt"})
        except SafetensorError as error:
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(int(number[1]) if number else errno.EIO, str(error), str(path)) from None
