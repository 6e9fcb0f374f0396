"""Changes of low rank that differ from row to row of a batch (mixed.c).

Shapes: R rows of T tokens, K inputs, N outputs, r a row's rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_long, c_void_p

import torch
from torch import Tensor

from peftlab.native.library import LIBRARY, declare, enough

Change = tuple[Tensor, Tensor, float]

declare("add_changes", *[c_void_p] * 4, *[c_long] * 5, gives=enough)


def add_changes(y: Tensor, x: Tensor, changes: Sequence[Change | None]) -> None:
    """y [R, ..., N] += (x [R, ..., K] · Aᵀ · scale) · Bᵀ for each row that has an A [r, K] and a B [N, r]. All of them
    and y lie row by row.
    """
    R, K, N = len(changes), x.shape[-1], y.shape[-1]
    assert (R, *x.shape[1:-1], N) == tuple(y.shape)
    assert x.shape[0] == R
    at = [(0, 0, 0) if row is None else (row[0].data_ptr(), row[1].data_ptr(), row[0].shape[0]) for row in changes]
    shapes = [(0, K, N, 0) if row is None else (*row[0].shape, *row[1].shape) for row in changes]
    assert shapes == [(rank, K, N, rank) for _, _, rank in at]
    told, scales = torch.tensor(at), torch.tensor([0.0 if row is None else row[2] for row in changes])
    x, most = x.contiguous(), max((rank for _, _, rank in at), default=0)
    given = x.data_ptr(), told.data_ptr(), scales.data_ptr(), y.data_ptr()
    LIBRARY.add_changes(*given, R, x.numel() // (R * K), N, K, most)
