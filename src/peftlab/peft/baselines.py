"""What the methods are compared with: training everything, from the base or from nothing, the head alone, the biases.

full        every weight of the base (its artefact is a checkpoint)
head        the task's head on the frozen base: the last-layer transfer of the notes
bitfit      the biases (Ben Zaken et al. 2021, arXiv 2106.10199)
scratch     full, but from weights that are drawn anew: the Transformer without pretraining
slow_start  full, but the blocks join one by one from the top (Howard & Ruder 2018, arXiv 1801.06146)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from peftlab.errors import UserError
from peftlab.layers.addition import Addition
from peftlab.layers.linear import Linear
from peftlab.models.family import Family
from peftlab.models.model import Model, Place
from peftlab.peft.changes import BiasChange, NormChange
from peftlab.peft.method import Method, check_whole


@dataclass(frozen=True)
class Full(Method):
    """Every weight of the base."""

    name = "full"
    about = "every weight of the base, for comparison"
    trains_base = True
    lr = 1e-4

    def why_not_stock(self, family: Family) -> str | None:
        return "it trains the base itself: save the base with its head instead (base.save(folder, head=name))"


@dataclass(frozen=True)
class Scratch(Full):
    """Every weight of a model that is shaped as the base and knows nothing, once a run has called `begin`."""

    name = "scratch"
    about = "every weight, drawn anew: what the task alone teaches, without pretraining"
    by_default = False
    lr = 5e-4

    def begin(self, model: Model) -> None:
        fresh = type(model)(model.config).state_dict()  # type: ignore[call-arg]
        for name, tensor in model.base_state().items():
            tensor.copy_(fresh[name])


@dataclass(frozen=True)
class SlowStart(Full):
    """Every weight of the base, but not from the start."""

    name = "slow_start"
    about = "every weight, joining block by block from the top (Howard & Ruder 2018)"
    by_default = False

    every: int = 100
    """steps until the next block joins"""

    def __post_init__(self) -> None:
        check_whole(1, 10**9, every=self.every)

    def begin(self, model: Model) -> None:
        if not hasattr(model, "blocks") or not hasattr(model, "embedding"):
            raise UserError(f"a {type(model).__name__} has no one row of blocks to join from the top: use full")

    def thaw(self, model: Model, step: int) -> None:
        """The head and the pooler train from the start, after each `every` steps one block more, last the embedding."""
        blocks: Any = model.blocks
        stages: list[nn.Module] = [*reversed(blocks), model.embedding]  # type: ignore[list-item]
        added = {id(p) for site in model.sites().values() for p in site.parameters()}
        for stage, part in enumerate(stages):
            for parameter in part.parameters():
                if id(parameter) not in added:
                    parameter.requires_grad_(step >= self.every * (stage + 1))


@dataclass(frozen=True)
class Head(Method):
    """Nothing but the task's head."""

    name = "head"
    about = "only the task's head on the frozen base: last-layer transfer"
    lr = 2e-3


@dataclass(frozen=True)
class BitFit(Method):
    """A change of every bias."""

    name = "bitfit"
    about = "only the biases, of matrices and norms (Ben Zaken et al. 2021)"
    by_default = False
    kinds = ("linear", "norm")
    lr = 1e-2

    def build(self, places: Mapping[str, Place]) -> dict[str, Addition]:
        built: dict[str, Addition] = {}
        for key, place in places.items():
            if not isinstance(place.owner, Linear):
                built[key] = NormChange(place.owner.weight, scale=False)
            elif place.owner.bias is not None:
                built[key] = BiasChange(place.owner.bias)
        return built
