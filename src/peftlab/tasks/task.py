"""What the training loop knows of a task: rows that become batches, a loss, and a score that chooses the weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from peftlab.models.model import Model


class Rows(Protocol):
    """Examples, tokenised once and ragged: padding is decided batch by batch."""

    @property
    def rows(self) -> list[int]:
        """The number of each example in the file it came from, for messages."""
        ...

    @property
    def fixed(self) -> bool:
        """Whether a row is the same each time it is asked for: not augmented, not masked anew."""
        ...

    def __len__(self) -> int: ...

    def lengths(self) -> list[int]:
        """The number of tokens of each."""
        ...

    def batch(self, rows: Sequence[int]) -> tuple[Any, Tensor]:
        """What a model is given for some of them, and their labels: one a row, or one a token and −100 at padding."""
        ...

    def weight(self, rows: Sequence[int]) -> int:
        """How much they count in the mean that a loss is."""
        ...


class Tally(NamedTuple):
    """Of a row in which there are several things to find, such as words or entities."""

    there: int
    given: int
    right: int


def sums(tallies: Sequence[Tally]) -> Tally:
    """Over all rows."""
    return Tally(*(sum(column) for column in zip(*tallies, strict=True)))


class Task(ABC):
    """What is learned."""

    @abstractmethod
    def loss(self, model: Model, inputs: Any, labels: Tensor) -> Tensor:
        """The mean over a batch."""

    @abstractmethod
    def judge(self, model: Model, inputs: Any, labels: Tensor) -> Sequence[Any]:
        """Of each row of a batch what its score needs."""

    @abstractmethod
    def score(self, judged: Sequence[Any], rows: Any) -> float:
        """How good that is, from 0 to 1, over all rows."""

    def measures(self, judged: Sequence[Any]) -> dict[str, float]:
        """What else is told of it beside the score."""
        return {}
