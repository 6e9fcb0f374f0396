"""Changes of low rank that differ from row to row of a batch (mixed.c).

Shapes: R rows of T tokens, K inputs, N outputs, r the largest rank.
"""

from __future__ import annotations

from ctypes import c_long, c_void_p

from torch import Tensor

from peftlab.native.library import LIBRARY, declare, enough

declare("add_changes", *[c_void_p] * 5, *[c_long] * 5, gives=enough)


def add_changes(y: Tensor, x: Tensor, A: Tensor, B: Tensor, scale: Tensor) -> None:
    """y [R, ..., N] += (x [R, ..., K] · A [R, r, K]ᵀ · scale [R]) · B [R, N, r]ᵀ, where y lies row by row."""
    (R, r, K), N = A.shape, B.shape[1]
    assert y.is_contiguous()
    assert (*x.shape[:-1], N) == tuple(y.shape)
    assert (R, K, (R, N, r), R) == (x.shape[0], x.shape[-1], tuple(B.shape), scale.numel())
    given = [t.contiguous() for t in (x, A, B, scale)]
    LIBRARY.add_changes(*(t.data_ptr() for t in (*given, y)), R, x.numel() // (R * K), N, K, r)
