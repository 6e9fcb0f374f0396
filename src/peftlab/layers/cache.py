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
    """Of self-attention: each call adds the new tokens' keys and values, in buffers that double when they are full."""

    complete = None
    """there are always more to come"""

    def __init__(self, room: int) -> None:
        self.room, self.length, self.expected = room, 0, 0
        self.buffers: list[Tensor] = []
        """[B, room, D] keys, and values"""

    def add(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """[B, new, D] each → all so far, [B, t, D] each."""
        start = self.reserve(keys)
        for buffer, added in zip(self.buffers, (keys, values), strict=True):
            buffer.narrow(1, start, added.shape[1]).copy_(added)
        k, v = self.buffers
        return k.narrow(1, 0, self.length), v.narrow(1, 0, self.length)

    def reserve(self, like: Tensor) -> int:
        """Make room for as many tokens as a tensor [B, new, D] has; gives the place of the first of them."""
        B, new, D = like.shape
        start, self.length = self.length, self.length + new
        if not self.buffers or self.length > self.room:
            self.room = max(self.length, self.expected, 2 * self.room if self.buffers else self.room)
            larger = [like.new_empty(B, self.room, D) for _ in range(2)]
            for buffer, old in zip(larger, self.buffers, strict=False):
                buffer[:, :start] = old[:, :start]
            self.buffers = larger
        return start

    def widen(self, hypotheses: int) -> None:
        """Each token to come will be one a hypothesis."""
        self.expected = self.length + hypotheses * (self.room - self.length)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone."""
        self.buffers = [buffer[rows] for buffer in self.buffers]


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
