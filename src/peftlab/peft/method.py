"""What a PEFT method is: a frozen dataclass of its hyper-parameters with one function that fills sites.

A new method is one new file and one line in `peft/__init__.py`. Nothing else knows its name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from peftlab.errors import UserError, unknown
from peftlab.layers.addition import Addition
from peftlab.models.family import Family
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
    needs: ClassVar[str | None] = None
    """that of them which it can't do without; None: any will do"""
    trains_base: ClassVar[bool] = False
    """it adds nothing and trains the base's own weights"""
    lr: ClassVar[float] = 1e-3
    """the learning rate to train it with where none is given"""
    size_field: ClassVar[str | None] = None
    """the setting that decides how many parameters it trains; None: it has no choice"""
    by_default: ClassVar[bool] = True
    """whether a comparison has it where nobody says which methods to compare"""
    stock_type: ClassVar[str | None] = None
    """the `peft_type` under which stock `peft` knows it"""

    def build(self, places: Mapping[str, Place]) -> dict[str, Addition]:
        """What goes where: called once with all places of its kinds, so that additions may share modules."""
        return {}

    def resized(self, size: int) -> Method:
        """The same with another size."""
        assert self.size_field is not None
        return replace(self, **{self.size_field: size})

    def begin(self, model: Model) -> None:
        """Called once before training, when the method is not attached yet: what it starts from may be another base."""

    def thaw(self, model: Model, step: int) -> None:
        """Called before each training step: a schedule may let more of the base train."""

    def folded(self) -> Method:
        """The method that stands for what is left when its additions are folded."""
        return self

    def why_not_stock(self, family: Family) -> str | None:
        """Why stock `peft` can't load this adapter on a family's models; None if it can."""
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


def check_whole(low: int, high: int, **fields: Any) -> None:
    """Each field is a whole number in a range; beyond it lies no use, but memory that nobody has."""
    for name, value in fields.items():
        if type(value) is not int or not low <= value <= high:
            raise UserError(f"{name} is {value!r}: it must be a whole number from {low} to {high:,}")


def check_number(low: float, high: float, **fields: Any) -> None:
    """Each field is a finite number in a range."""
    for name, value in fields.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise UserError(f"{name} is {value!r}: it must be a number from {low:g} to {high:g}")


def check_block_numbers(layers: Any) -> tuple[int, ...] | None:
    """The numbers of blocks as a tuple; None is all."""
    if layers is None:
        return None
    numbers = tuple(layers) if isinstance(layers, list | tuple | range | set) else (layers,)
    if not numbers or not all(type(number) is int for number in numbers):
        raise UserError(f"layers is {layers!r}: it must be a list of block numbers, such as (4, 5), or None for all")
    return numbers


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
