"""A family of published checkpoints: how another library names what we have, in both directions.

One entry of `models/families.py`; `models/pretrained.py` reads and writes by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from peftlab.errors import UserError
from peftlab.layers.site import SUBLAYERS, Address
from peftlab.models.model import Model
from peftlab.models.stack import BlocksConfig


class Part(NamedTuple):
    """Where a module of ours is in a checkpoint: a module of theirs, or one of several that are stacked in it."""

    name: str
    number: int = 0
    of: int = 1


class Stack(NamedTuple):
    """How an encoder or a decoder is told in config.json."""

    config: type[BlocksConfig]
    settings: Mapping[str, str]
    """our field → their key"""


class Dialect(NamedTuple):
    """How a config.json that is not as `transformers` writes it is read and written."""

    read: Callable[[Mapping[str, Any], Path], dict[str, Any]]
    """its settings (the path is for messages) → as `transformers` calls them"""
    write: Callable[[Mapping[str, Any], Any, Mapping[int, str]], dict[str, Any]]
    """the settings that were read, our configuration, and a head's labels → its settings"""


class Pretrained(NamedTuple):
    """How a head that a family is pretrained with is published."""

    kind: str
    """what stands in the place of `Model` in the class that holds it too"""
    parts: Mapping[str, str]
    """our part of it → theirs"""
    copies: tuple[str, ...] = ()
    """their names of weights that are tied to others"""
    activation: str | None = None
    """behind its dense layer; None: that of the feed-forward network"""

    def names(self, state: Mapping[str, Any]) -> dict[str, str]:
        """Our names of its tensors → theirs."""
        found = {}
        for name in state:
            module, _, leaf = name.rpartition(".")
            found[name] = self.parts[name] if name in self.parts else f"{self.parts[module]}.{leaf}"
        return found


@dataclass(frozen=True)
class Family:
    """How one family names what we have."""

    architecture: str
    """the class in `transformers` that holds the base alone"""
    prefix: str
    """what stands before the base's names in a checkpoint with a head"""
    block: Mapping[str, str | Part]
    """our part of a block → theirs"""
    outside: Mapping[str, str]
    """our part outside the blocks → theirs"""
    layers: str
    """what stands before a block's number; {} is the stack, where there are two"""
    stacks: Mapping[str, Stack]
    """by name; one that is alone has the name ''"""
    build: Callable[[Mapping[str, Any]], Model]
    """the model of the stacks' configurations"""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """fields of ours that are the same in every checkpoint of the family"""
    usual: Mapping[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)
    """fields that a config.json may leave out → what they are then, by the fields before them"""
    optional: Mapping[str, str] = field(default_factory=dict)
    """fields that no setting tells → the tensor of theirs that is there where they are true"""
    demanded: Mapping[str, Any] = field(default_factory=dict)
    """their settings that must have this value where they are there: we have no other"""
    head: Mapping[str, str] = field(default_factory=dict)
    """our part of a classifier → theirs"""
    classifier: str = "ForSequenceClassification"
    """what stands in the place of `Model` in the class that holds a classifier too"""
    pretrained: Mapping[str, Pretrained] = field(default_factory=dict)
    """the heads that it is pretrained with, by their kind (`models/pretraining.py`)"""
    dialect: Dialect | None = None
    """None: its config.json is as `transformers` writes it"""
    turned: tuple[str, ...] = ()
    """their modules whose matrices are [in, out]"""
    derived: str = r"$^"
    """a pattern of tensors of theirs that others determine: buffers, copies of tied weights"""
    past_keys: bool = True
    """whether its class in `transformers` takes keys and values of earlier tokens"""
    model_type: str | None = None
    """in config.json, where it is another family's name: the class that wrote it tells them apart"""
    pads_positions: bool = False
    """the table of positions starts behind the padding token's row: offset = pad + 1"""

    def module(self, address: Address) -> str | None:
        """A site's address → the module in the base of `transformers`, None where it has none of its own."""
        if address.layer is None:
            return self.outside.get(self.within(address.stack, f"{address.sublayer}.{address.part}"))
        names = {short: name for name, short in SUBLAYERS.items()}
        for part in (f"sublayer.{address.part}", address.part):
            found = self.block.get(f"{names.get(address.sublayer)}.{part}")
            if isinstance(found, str):
                return f"{self.layers.format(address.stack)}{address.layer}.{found}"
        return None

    def within(self, stack: str, name: str) -> str:
        """The name of a part of a stack in the whole model."""
        return name if "" in self.stacks else f"{stack}.{name}"

    def part(self, name: str) -> Part:
        """Our name of a tensor → where theirs is: `blocks.3.feedforward.norm.bias` → `encoder.layer.3.output…bias`."""
        module, _, leaf = name.rpartition(".")
        if block := re.fullmatch(r"(?:(\w+)\.)?blocks\.(\d+)\.(.+)", module):
            found = self.block[block[3]]
            part = Part(found) if isinstance(found, str) else found
            return part._replace(name=f"{self.layers.format(block[1])}{block[2]}.{part.name}.{leaf}")
        if name in self.outside:
            return Part(self.outside[name])
        if module not in self.outside:
            raise UserError(f"{self.architecture} has no place for the model's {module}")
        return Part(f"{self.outside[module]}.{leaf}")

    def publish(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our tensors → theirs."""
        stacked: dict[str, dict[int, Tensor]] = {}
        for key, tensor in state.items():
            name, number, _ = self.part(key)
            stacked.setdefault(name, {})[number] = tensor
        whole = {
            name: parts[0] if len(parts) == 1 else torch.cat([parts[i] for i in sorted(parts)])
            for name, parts in stacked.items()
        }
        return {name: self.turn(name, tensor) for name, tensor in whole.items()}

    def adopt(self, keys: Mapping[str, Any], read: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """Our tensors of these names, from theirs."""
        found: dict[str, Tensor] = {}
        for key in keys:
            name, number, of = self.part(key)
            tensor = self.turn(name, read(name))
            found[key] = tensor if of == 1 else tensor.chunk(of)[number].clone()
        return found

    def turn(self, name: str, tensor: Tensor) -> Tensor:
        """A matrix of theirs ⇄ ours."""
        module = name.removesuffix(".weight")
        return tensor.T.contiguous() if module != name and module.endswith(self.turned or ("\0",)) else tensor
