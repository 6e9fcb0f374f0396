"""The cache: keys and values of the tokens so far, so that each new token costs one step and not all of them again.

The hypotheses of a beam are tokens of one row: each step adds g keys, one for each, and a mask says whose ancestors
they are (`models/decoder.py`). So nothing is copied when hypotheses change places, which is most of what a beam's
cache costs elsewhere.

Shapes: B rows, t keys so far, D model width.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Growing:
    """Of self-attention: each call adds the new tokens' keys and values, in a buffer that doubles when it is full."""

    complete = None
    """there are always more to come"""

    def __init__(self, room: int) -> None:
        self.room, self.length = room, 0
        self.buffer: Tensor | None = None
        """[2, B, room, D] keys and values"""

    def add(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """[B, new, D] each → all so far, [B, t, D] each."""
        B, new, D = keys.shape
        start, self.length = self.length, self.length + new
        if self.buffer is None or self.length > self.room:
            self.room = max(self.length, self.room if self.buffer is None else 2 * self.room)
            buffer = keys.new_empty(2, B, self.room, D)
            if self.buffer is not None:
                buffer[:, :, :start] = self.buffer[:, :, :start]
            self.buffer = buffer
        self.buffer[0, :, start : self.length] = keys
        self.buffer[1, :, start : self.length] = values
        return self.buffer[0, :, : self.length], self.buffer[1, :, : self.length]

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone."""
        if self.buffer is not None:
            self.buffer = self.buffer[:, rows]


class Fixed:
    """Of cross-attention: the source's keys and values, computed once."""

    def __init__(self) -> None:
        self.complete: tuple[Tensor, Tensor] | None = None

    def add(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """[B, S, D] each, and they are all there will be."""
        self.complete = keys, values
        return self.complete

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone."""
        if self.complete is not None:
            self.complete = self.complete[0][rows], self.complete[1][rows]


def ancestors(seen: Tensor, hypotheses: int) -> Tensor:
    """[B, g, t] which keys each hypothesis sees → [B, g, t + g], with the keys of the g new tokens: each its own."""
    B, g, _ = seen.shape
    own = torch.eye(hypotheses, dtype=torch.bool, device=seen.device).expand(B, g, g)
    return torch.cat([seen, own], 2)
