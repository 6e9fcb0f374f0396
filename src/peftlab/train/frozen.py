"""What is frozen is computed once: the states that enter the lowest block that learns are kept for when a row is seen
again.

Where nothing trains in the embedding and the first blocks, and nothing was added to them, these states are a fixed
function of a row. They are computed as in evaluation: the frozen part has no dropout then. They are kept without
padding, as long as there is room; rows that do not fit are computed each time, likewise without dropout.

How many rows a batch has, and how long they are, changes sums in their last bits. So what is kept of a row comes from
one and the same batch, whoever asks first: a training that was interrupted finds the bits that it had.

    python -m pytest tests/train/test_frozen.py

Shapes: B rows, T tokens, D width.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from peftlab.data.words import NO_WORD
from peftlab.models.encoder import Begun, Reader
from peftlab.models.model import Model
from peftlab.tasks.task import Rows
from peftlab.train.memory import available_memory
from peftlab.train.order import sorted_batches
from peftlab.train.precision import computing_in

ROOM, SHARE = 2 << 30, 4
"""bytes that are taken where nobody says how many, and the part of the free memory that is the most"""
NUMBER = 4
"""bytes of a number in fp32; in bf16 less is taken than was counted"""


def room_for(asked: int | None) -> int:
    """The bytes that may be taken."""
    return min(ROOM, available_memory() // SHARE) if asked is None else asked


class Known(NamedTuple):
    """What is kept of a row."""

    states: Tensor
    """[T, D] that enter the lowest block that learns"""
    labels: Tensor
    """one, or [T, …] one a token"""


class Frozen:
    """The part of a model below the lowest block that learns, and the memory for what it makes of rows."""

    def __init__(self, model: Model, precision: str, room: int) -> None:
        self.model, self.precision, self.room = model, precision, room
        self.blocks = model.frozen_blocks if isinstance(model, Reader) else 0

    def read_once(self, data: Rows, times: float) -> Rows:
        """The same rows, from the lowest block on that learns, where that gains: there is room, they are seen several
        times, and are the same each time.
        """
        if self.blocks == 0 or times <= 1 or not data.fixed:
            return data
        read = ReadRows(data, self)
        return read if read.company else data

    @torch.no_grad()
    def read(self, data: Rows, rows: Sequence[int]) -> dict[int, Known]:
        """What some rows become, computed in one batch as in evaluation."""
        model = self.model
        assert isinstance(model, Reader)
        training, device = model.training, next(model.parameters()).device
        inputs, labels = data.batch(rows)
        model.eval()
        try:
            with computing_in(self.precision, device, again=True):
                states = model.begin(inputs.to(device), self.blocks).to("cpu").rows()
        finally:
            model.train(training)
        cut = (label[: len(row)] if label.ndim else label for row, label in zip(states, labels, strict=True))
        return dict(zip(rows, map(Known, states, cut), strict=True))


class ReadRows:
    """Rows that a frozen part reads once, the first time that they are asked for."""

    fixed: ClassVar[bool] = True

    def __init__(self, data: Rows, frozen: Frozen) -> None:
        self.data, self.frozen = data, frozen
        self.kept: dict[int, Known] = {}
        self.company: dict[int, list[int]] = {}
        """row → the rows in whose batch it is computed, for those that there is room for"""
        lengths = data.lengths()
        for rows in sorted_batches(lengths):
            size = NUMBER * frozen.model.width * sum(lengths[row] for row in rows)
            if size > frozen.room:
                break
            frozen.room -= size
            self.company |= dict.fromkeys(rows, rows)

    @property
    def rows(self) -> list[int]:
        """The number of each example in the file it came from, for messages."""
        return self.data.rows

    def __len__(self) -> int:
        return len(self.data)

    def lengths(self) -> list[int]:
        """The number of tokens of each."""
        return self.data.lengths()

    def weight(self, rows: Sequence[int]) -> int:
        """How much they count in the mean that a loss is."""
        return self.data.weight(rows)

    def batch(self, rows: Sequence[int]) -> tuple[Begun, Tensor]:
        """What the blocks that learn are given for these rows, and their labels."""
        for row in rows:
            if row in self.company and row not in self.kept:
                self.kept |= self.frozen.read(self.data, self.company[row])
        others = [row for row in rows if row not in self.kept]
        known = ChainMap(self.kept, self.frozen.read(self.data, others) if others else {})
        states, labels = zip(*(known[row] for row in rows), strict=True)
        return Begun.of(states, self.frozen.blocks), joined(labels)


def joined(labels: Sequence[Tensor]) -> Tensor:
    """[B]; of labels for tokens [B, T, …], −100 at padding."""
    if labels[0].ndim == 0:
        return torch.stack(list(labels))
    return pad_sequence(list(labels), batch_first=True, padding_value=NO_WORD)
