"""What a PEFT method is: a frozen dataclass of its hyper-parameters with one function that fills sites.

A new method is one new file and one line in `peft/__init__.py`. Nothing else knows its name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from peftlab.errors import UserError, unknown
from peftlab.layers.site import Addition
from peftlab.models.model import Model, Place


@dataclass(frozen=True)
class Method:
    """The hyper-parameters of a method, and what it does with a model's sites."""

    name: ClassVar[str]
    """how it is called in tables and configurations"""
    about: ClassVar[str]
    """one line for `peftlab ls`"""
    kinds: ClassVar[tuple[str, ...]] = ()
    """the kinds of site that it fills"""
    trains_base: ClassVar[bool] = False
    """it adds nothing and trains the base's own weights"""
    lr: ClassVar[float] = 1e-3
    """the learning rate to train it with where none is given"""
    stock_type: ClassVar[str | None] = None
    """the `peft_type` under which stock `peft` knows it"""

    def build(self, places: Mapping[str, Place]) -> dict[str, Addition]:
        """What goes where: called once with all places of its kinds, so that additions may share modules."""
        return {}

    def thaw(self, model: Model, step: int) -> None:
        """Called before each training step: a schedule may let more of the base train."""

    def why_not_stock(self) -> str | None:
        """Why stock `peft` can't load this adapter; None if it can."""
        return None if self.stock_type else f"stock peft has no {self.name}"

    def to_stock(self, additions: Mapping[str, Addition], names: Mapping[str, str], config: Any) -> Stock:
        """The adapter in stock `peft`'s format. `names`: address → module in `transformers`; `config`: the model's."""
        raise NotImplementedError

    @classmethod
    def from_stock(cls, stock: Stock, names: Mapping[str, str]) -> tuple[Method, dict[str, dict[str, Tensor]]]:
        """The method that a stock adapter stands for, and its tensors by address."""
        raise NotImplementedError

    @classmethod
    def combined(cls, methods: Sequence[Any], places: Mapping[str, Place]) -> Method:
        """The method of a weighted sum of adapters."""
        raise UserError(f"adapters of {cls.name} have no weighted sum: it exists for those whose change is a matrix")


@dataclass(frozen=True)
class Stock:
    """An adapter as stock `peft` writes it, without its head."""

    config: dict[str, Any]
    """what stands in adapter_config.json for this type"""
    tensors: dict[str, Tensor]


def check_at_least(least: int, **fields: Any) -> None:
    """Each field is a whole number of at least `least`."""
    for name, value in fields.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UserError(f"{name} is {value!r}: it must be a whole number of at least {least}")


def check_choice(what: str, given: str, choices: Collection[str]) -> None:
    """The given word is one of the choices."""
    if given not in choices:
        raise unknown(what, str(given), choices)


def check_layers(layers: Sequence[int] | None, places: Mapping[str, Place]) -> set[int | None]:
    """The numbers of the blocks to fill: those given, each of which must be there, or all."""
    there = {place.address.layer for place in places.values()} - {None}
    for layer in layers or ():
        if layer not in there:
            raise UserError(f"layer {layer} is not there: the model has layers 0 to {len(there) - 1}")
    return there if layers is None else set(layers)


def stack(rows: Sequence[Tensor | None], like: Tensor, size: int | None = None, dim: int = 0) -> Tensor:
    """[B, …] from one tensor a row, zeros where there is none; dimension `dim` is padded with zeros to `size`."""
    shape = list(like.shape)
    shape[dim] = shape[dim] if size is None else size
    empty = like.new_zeros(shape)

    def padded(row: Tensor) -> Tensor:
        missing = list(shape)
        missing[dim] -= row.shape[dim]
        return torch.cat([row, row.new_zeros(missing)], dim)

    whole = shape[dim]
    return torch.stack([empty if row is None else row if row.shape[dim] == whole else padded(row) for row in rows])
