"""Changes of low rank that differ from row to row of a batch (mixed.c).

Shapes: R rows of T tokens, K inputs, N outputs, r a change's rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, addressof, byref, c_float, c_long, c_void_p

from torch import Tensor

from peftlab.native.library import LIBRARY, declare

Change = tuple[Tensor, Tensor, float]

declare("add_changes", *[c_void_p] * 3, *[c_long] * 3)


class Told(Structure):
    """`Changes` as C is told of them."""

    _fields_ = (
        *((name, c_void_p) for name in ("A", "B", "ranks", "factors", "which")),
        *((name, c_long) for name in ("T", "most")),
        ("room", c_void_p),
    )


class Changes:
    """What each row adds: `which` of the members (A [r, K], B [N, r], factor), or nothing where that is negative. The
    matrices lie row by row. Made anew for each batch: it knows where they lie now.
    """

    def __init__(self, members: Sequence[Change], which: Sequence[int]) -> None:
        n = len(members)
        self.members, ranks = members, [A.shape[0] for A, _, _ in members]
        self.rows, self.most = len(which), max(ranks, default=0)
        self.sizes = [(A.numel(), rank, B.numel()) for (A, B, _), rank in zip(members, ranks, strict=True)]
        self.given = (
            (c_void_p * n)(*[A.data_ptr() for A, _, _ in members]),
            (c_void_p * n)(*[B.data_ptr() for _, B, _ in members]),
            (c_long * n)(*ranks),
            (c_float * n)(*[factor for _, _, factor in members]),
            (c_long * self.rows)(*which),
        )
        assert all(i < n for i in which)

    def told(self, x: Tensor, N: int) -> Told:
        """For x [R, ..., K] and what is [R, ..., N]; it holds what C reads, and the room that it needs."""
        (R, K), size = (x.shape[0], x.shape[-1]), x.numel()
        assert self.rows == R
        assert all(of_A == rank * K and of_B == rank * N for of_A, rank, of_B in self.sizes)
        room = x.new_empty(size // K * self.most)
        told = Told(*[addressof(array) for array in self.given], size // (R * K), self.most, room.data_ptr())
        told.held = self, room
        return told


def add_changes(y: Tensor, x: Tensor, changes: Changes) -> None:
    """y [R, ..., N] += (x [R, ..., K] · Aᵀ · factor) · Bᵀ for each row that changes; y lies row by row."""
    assert y.is_contiguous()
    assert y.shape[:-1] == x.shape[:-1]
    K, N, x = x.shape[-1], y.shape[-1], x.contiguous()
    LIBRARY.add_changes(byref(changes.told(x, N)), x.data_ptr(), y.data_ptr(), x.numel() // K, N, K)
