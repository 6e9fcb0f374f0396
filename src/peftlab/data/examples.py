"""Labelled texts, or images: one part of a data set, a data set of several parts, and the ways to cut a part.

    train, test = split_stratified(examples, 0.2, seed=0)
    small = limit(train, 8000, seed=0)

Every draw comes from its own generator, so the same seed gives the same rows whatever else was drawn before.
"""

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, cast

from typing_extensions import TypeVar  # the one that has a default

from peftlab.errors import UserError


class Part(Protocol):
    """Rows of a data set, of whatever they are."""

    @property
    def labels(self) -> list[int]:
        """The place of each row's label among the names of the data set."""
        ...

    @property
    def content(self) -> tuple[Any, ...]:
        """What a fingerprint is made of, as JSON has it."""
        ...

    def __len__(self) -> int: ...

    def take(self, indices: Sequence[int]) -> Self:
        """The rows at some places, in the order of these places."""
        ...


@dataclass(frozen=True)
class Examples:
    """Texts, or pairs of texts, with their labels; item i of each list belongs to the same row."""

    texts: list[str] | list[tuple[str, str]]
    """What is classified: all single texts, or all pairs."""
    labels: list[int]
    """The place of each row's label among the names of the data set."""
    rows: list[int]
    """The number of each row in the file it came from, counted from 1, for messages."""

    def __post_init__(self) -> None:
        assert len(self.texts) == len(self.labels) == len(self.rows)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Sequence[int]) -> "Examples":
        """The examples at some places, in the order of these places."""
        texts = cast(list[str], self.texts)  # or pairs: which of the two does not matter here
        return Examples([texts[i] for i in indices], [self.labels[i] for i in indices], [self.rows[i] for i in indices])

    @property
    def content(self) -> tuple[Any, ...]:
        """What a fingerprint is made of."""
        return self.texts, self.labels


P = TypeVar("P", bound=Part, default=Examples)


@dataclass(frozen=True)
class Labelled(Generic[P]):
    """A data set for classification: what to train on, what to report, and the names of its labels."""

    name: str
    train: P
    """The rows to train on; a part to choose the best checkpoint by is cut from these."""
    tests: dict[str, P]
    """The rows to report, by the name of their split: `test`, or `matched` and `mismatched`."""
    labels: tuple[str, ...]
    """The name of each label."""
    metric: str
    """The official metric."""
    about: str
    """One line on where the rows are from and how they were split."""

    def fingerprint(self) -> str:
        """The SHA-256 of all rows and labels, in hexadecimal: equal for equal data, wherever it was read from."""
        parts = [("train", self.train), *sorted(self.tests.items())]
        content = [self.labels, [(split, *part.content) for split, part in parts]]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def split_stratified(examples: P, share: float, seed: int) -> tuple[P, P]:
    """Cut examples in two, the second part with a share of each class; both keep the order of the rows.

    A class of two or more rows has at least one in each part; that of a single row stays in the first.
    """
    if not 0 < share < 1:
        raise UserError(f"a share of {share} does not cut examples in two: it must lie between 0 and 1")
    generator = random.Random(seed)
    first: list[int] = []
    second: list[int] = []
    members: dict[int, list[int]] = {label: [] for label in sorted(set(examples.labels))}
    for i, label in enumerate(examples.labels):
        members[label].append(i)
    for places in members.values():
        generator.shuffle(places)
        count = min(max(round(share * len(places)), 1), len(places) - 1)
        second += places[:count]
        first += places[count:]
    return examples.take(sorted(first)), examples.take(sorted(second))


def limit(examples: P, n: int, seed: int) -> P:
    """At most n examples: the first n after `random.Random(seed)` has shuffled them; all, as they are, if there are no
    more than n.

    >>> limit(Examples(["a", "b", "c", "d"], [0, 0, 1, 1], [1, 2, 3, 4]), 2, seed=0).texts
    ['c', 'a']
    """
    if n >= len(examples):
        return examples
    order = list(range(len(examples)))
    random.Random(seed).shuffle(order)
    drawn = examples.take(order[: max(n, 0)])
    if len(set(drawn.labels)) < min(2, len(set(examples.labels))):
        raise UserError(f"a limit of {n} rows leaves fewer than two classes of {len(set(examples.labels))}: raise it")
    return drawn
