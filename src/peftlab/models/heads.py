"""Heads: what a task reads off a model's states. A head sits in the model's head site, one a row.

A classifier's shape is that of its family in `transformers`, so that it can be loaded there: BERT maps the pooled token
linearly, ViT the first token as it is, RoBERTa, ELECTRA and DistilBERT put a dense layer with an activation before.

Shapes: B rows, T tokens, D width, L labels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from peftlab.errors import UserError, unknown
from peftlab.layers.addition import Addition, Logits, States, stack
from peftlab.layers.dropout import dropout
from peftlab.layers.feedforward import ACTIVATIONS
from peftlab.models.model import Model

MOST_LABELS = 1_000_000


@dataclass(frozen=True)
class Labels(ABC):
    """What a head chooses among."""

    kind: ClassVar[str]
    """of head, in files"""
    lr: ClassVar[float | None] = None
    """peak learning rate that it is best trained with; None: that of its method"""
    labels: int | tuple[str, ...]
    """how many, or their names"""

    @abstractmethod
    def build(self, model: Model) -> Addition:
        """The module for a model's head site."""

    def __post_init__(self) -> None:
        named = isinstance(self.labels, list | tuple) and all(isinstance(label, str) for label in self.labels)
        if not named and type(self.labels) is not int:
            raise UserError(f"labels is {self.labels!r}: it must be how many there are, or a list of their names")
        if named:
            object.__setattr__(self, "labels", tuple(self.labels))  # type: ignore[arg-type]
        if not 1 <= self.count <= MOST_LABELS:
            raise UserError(f"labels is {self.labels!r}: there must be between 1 and {MOST_LABELS:,}")

    @property
    def count(self) -> int:
        """The number of labels."""
        return self.labels if isinstance(self.labels, int) else len(self.labels)

    @property
    def names(self) -> tuple[str, ...]:
        """The labels' names; LABEL_0 … where none were given, as `transformers` does."""
        return tuple(f"LABEL_{i}" for i in range(self.count)) if isinstance(self.labels, int) else self.labels

    @property
    def settings(self) -> dict[str, Any]:
        """What a published config.json says of the labels."""
        return {"id2label": dict(enumerate(self.names)), "label2id": {name: i for i, name in enumerate(self.names)}}


def check_dropout(p: Any) -> None:
    """A probability with which a head can still learn."""
    if not isinstance(p, int | float) or not 0 <= p < 1:
        raise UserError(f"dropout is {p!r}: it must be at least 0 and below 1")


@dataclass(frozen=True)
class Classifier(Labels):
    """One label a row."""

    kind = "classifier"
    pool: Literal["first", "mean"] = "first"
    """what is read: the first token, as `transformers`' classifiers do, or the mean of the real tokens, as
    `sentence-transformers` does"""
    dropout: float = 0.1
    """before each linear map"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dropout(self.dropout)
        if self.pool not in POOLS:
            raise unknown("pool", self.pool, POOLS)

    def activation(self, config: Any) -> str | None:
        """Of the dense layer that the head has on a model; None: it has none."""
        if config.head == "first":
            return None
        if config.head != "linear":
            return str(config.head)
        # a BERT without its pooler learns one: tanh of a dense layer
        return None if config.pooler or self.pool == "mean" else "tanh"

    def build(self, model: Model) -> Addition:
        """The module for a model's head site."""
        config: Any = model.config
        pooled = config.head == "linear" and config.pooler and self.pool == "first"
        pool = "pooled" if pooled else self.pool
        return ClassifierHead(model.width, self.count, pool, self.activation(config), self.dropout, config.init_std)


POOLS: dict[str, Callable[[States], Tensor]] = {
    "first": lambda states: states.first,
    "mean": lambda states: (
        (states.hidden * states.mask[..., None]).sum(1) / states.mask.sum(1, keepdim=True).clamp(min=1)
    ),
    "pooled": lambda states: states.pooled,  # type: ignore[dict-item, return-value]
}


class ClassifierHead(Addition):
    """pool → (dense → activation →) out."""

    def __init__(self, dim: int, labels: int, pool: str, activation: str | None, dropout: float, std: float) -> None:
        super().__init__()
        self.pool, self.activation, self.drop = pool, activation, dropout
        self.reads_first = pool != "mean"
        self.dense = None if activation is None else nn.Linear(dim, dim)
        self.out = nn.Linear(dim, labels)
        for layer in (self.dense, self.out):
            if layer is not None:
                nn.init.normal_(layer.weight, std=std)
                nn.init.zeros_(layer.bias)

    @property
    def group(self) -> Any:
        return (ClassifierHead, self.pool, self.activation)

    @property
    def size(self) -> int:
        return self.out.out_features

    def forward(self, states: States) -> Tensor:
        """[B, L]."""
        x = dropout(POOLS[self.pool](states), self.drop, self.training)
        if self.dense is not None and self.activation is not None:
            x = dropout(ACTIVATIONS[self.activation](self.dense(x)), self.drop, self.training)
        return self.out(x)

    def mixed(self, rows: Sequence[ClassifierHead | None], size: int) -> Callable[[States], Logits]:
        def gather(name: str, size: int | None = None) -> Tensor:
            return stack(
                [None if row is None else row.get_parameter(name) for row in rows], self.get_parameter(name), size
            )

        dense = None if self.dense is None else (gather("dense.weight"), gather("dense.bias"))
        weight, bias = gather("out.weight", size), gather("out.bias", size)
        counts = torch.tensor([0 if row is None else row.size for row in rows], device=weight.device)
        return MixedHeads(self.pool, self.activation, dense, weight, bias, counts)


@dataclass(frozen=True)
class MixedHeads:
    """A head a row: [B, D] · [B, L, D]."""

    pool: str
    activation: str | None
    dense: tuple[Tensor, Tensor] | None
    weight: Tensor
    bias: Tensor
    counts: Tensor

    @property
    def reads_first(self) -> bool:
        """As `Addition.reads_first`."""
        return self.pool != "mean"

    def __call__(self, states: States) -> Logits:
        x = POOLS[self.pool](states)
        if self.dense is not None and self.activation is not None:
            x = ACTIVATIONS[self.activation](torch.einsum("bd,bed->be", x, self.dense[0]) + self.dense[1])
        return Logits(torch.einsum("bd,bld->bl", x, self.weight) + self.bias, self.counts)


class TokenHead(Addition):
    """A head that reads every token, and so acts on a batch as a whole."""

    def mixed(self, rows: Sequence[Any], size: int) -> Callable[..., Any]:
        raise UserError(
            "an adapter with a head for each token can't be one row's among others: activate it for the whole batch"
        )
