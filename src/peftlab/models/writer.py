"""What a model that writes has in common: it is given the tokens so far and gives the scores of the next one.

Sequence-to-sequence models, recurrent or not, and language models are all asked the same way, so that one search serves
them all:

    memory, scores = model.begin(batch)            # a source to translate, or a text to go on with
    while ...:
        scores = model.next(scores.argmax(1), memory)

Shapes: B sources, g hypotheses of each, R = B·g rows (those of a source stand together), V tokens of the vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from peftlab.data.batch import Batch
from peftlab.layers.site import Route
from peftlab.models.model import Model


@dataclass
class Choice:
    """Which adapters act on the sources that are left."""

    route: Route | None = None
    """None: the active ones, on all"""
    names: tuple[str | None, ...] = ()
    """of each source, where they name their own"""
    model: Model | None = None
    """which makes the route of the names"""

    @classmethod
    def of(cls, model: Model, names: Sequence[str | None] | None) -> Choice:
        """One for each source (or None), or for all what is active."""
        return cls() if names is None else cls(model.route(names, stable=False), tuple(names), model)

    def keep(self, sources: Tensor) -> Choice:
        """Of these sources alone."""
        names = [self.names[source] for source in sources.tolist()] if self.model is not None else None
        return self if self.model is None else Choice.of(self.model, names)


class Memory(ABC):
    """What a model keeps between two tokens: a row for each hypothesis of each source. Changed in place."""

    @abstractmethod
    def widen(self, hypotheses: int) -> None:
        """Give each source this many rows in the place of its one: [B] → [B·g]."""

    @abstractmethod
    def reorder(self, rows: Tensor) -> None:
        """Row r becomes what row `rows[r]` [R] was; both are rows of the same source."""

    @abstractmethod
    def keep(self, sources: Tensor) -> None:
        """Go on with these sources alone: their numbers [B'], ascending, counted among those that are left."""

    def spend(self, scores: Tensor) -> None:  # noqa: B027  most have no use for them
        """Nobody will look at these scores any more: those of the next token may be written over them."""


@dataclass(frozen=True)
class Marks:
    """The tokens that a writing model lives by."""

    start: int | None
    """what stands before the first token; None where the text to go on with does (a language model)"""
    end: int
    """what it writes when it has done"""
    pad: int
    """what fills a row that has ended; it is never written otherwise"""

    @property
    def never(self) -> int | None:
        """The token that no text has; None where padding is the end mark."""
        return None if self.pad == self.end else self.pad


class Writer(Model):
    """A model that writes one token after the other."""

    marks: Marks
    max_length: int | None
    """the most tokens that a row may have, start or given text included; None: no limit"""

    def begin(self, batch: Batch, adapters: Sequence[str | None] | None = None, room: int = 0) -> tuple[Memory, Tensor]:
        """Read what is given; gives the memory of it and the scores [B, V] of the first token to write.

        `adapters` names one for each source (or None). `room` is how many tokens will be written, if it is known.
        """
        raise NotImplementedError(type(self).__name__)

    def next(self, tokens: Tensor, memory: Memory) -> Tensor:
        """The scores [R, V] of the token that follows `tokens` [R], which each row has just written."""
        raise NotImplementedError(type(self).__name__)
