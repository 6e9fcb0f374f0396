"""Tensors from safetensors files: whole or refused, checked before they are used, never from a pickle."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from peftlab.errors import UserError


class Tensors:
    """The tensors of one or more files of a folder, by name, each read when it is asked for."""

    def __init__(self, folder: Path, files: Sequence[str]) -> None:
        self.folder = folder
        self.readers: dict[str, Any] = {}
        for name in files:
            path = folder / name
            try:
                reader = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise UserError(f"{path} is not a whole safetensors file ({error}): fetch or save it again") from None
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
        tensor: Tensor = self.readers[name].get_tensor(name)
        if not tensor.is_floating_point():
            raise UserError(f"{name} in {self.folder} is {tensor.dtype}: weights are floating point numbers")
        return tensor.to(torch.float32, copy=True)


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
    try:
        names = sorted(set(json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{folder / index} is not an index of shards: it has no weight_map") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(f"{folder / index} names {name!r}: a shard is a .safetensors file beside it")
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} is missing: {index} names it as a shard")
    return names
