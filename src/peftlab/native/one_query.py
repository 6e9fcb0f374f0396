"""Attention of one query a row to the tokens themselves, and its gradients (one_query.c).

Shapes: B rows, H heads, T tokens, d width of a head, D = H · d.
"""

from __future__ import annotations

from ctypes import POINTER, c_long, c_void_p

import torch
from torch import Tensor

from peftlab.native.attention import Shape, shape_of
from peftlab.native.library import LIBRARY, declare, enough
from peftlab.native.product import address

declare("panel", gives=c_long)
declare("ask_tokens", *[c_void_p] * 5, POINTER(Shape), *[c_void_p] * 2, gives=enough)
declare("ask_tokens_back", *[c_void_p] * 6, POINTER(Shape), *[c_void_p] * 7, gives=enough)


def ask_tokens(
    q: Tensor,
    x: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    scale: float,
    mask: Tensor | None,
    keep: Tensor | None = None,
    growth: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """q [B, H, d], x [B, T, D], k and v [D, D], the values' bias [D], mask [B or 1, 1, 1, T], keep [B, H, T] →
    [B, H, d], and what its gradients need. All but the mask lie row by row.
    """
    (B, H, d), T = q.shape, x.shape[1]
    shape, _mask = shape_of((B, 1, H, T, d), scale, mask, keep, growth)
    panel = LIBRARY.panel()  # to a multiple of which a head's scores are padded
    mixed, kept = torch.empty_like(q), q.new_empty(2 * B * H * (H * d + -(-T // panel) * panel))
    LIBRARY.ask_tokens(*map(address, (q, x, k, v, bias)), shape, kept.data_ptr(), mixed.data_ptr())
    return mixed, kept


def ask_tokens_back(
    gradient: Tensor,
    q: Tensor,
    x: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    scale: float,
    mask: Tensor | None,
    keep: Tensor | None,
    growth: float,
    kept: Tensor,
    wanted: tuple[bool, bool, bool, bool],
) -> tuple[Tensor | None, ...]:
    """The gradients of q, and where they are wanted of x, k, v and the bias."""
    (B, H, d), T = q.shape, x.shape[1]
    shape, _mask = shape_of((B, 1, H, T, d), scale, mask, keep, growth)
    others = (
        torch.empty_like(t) if t is not None and w else None for t, w in zip((x, k, v, bias), wanted, strict=True)
    )
    found, between = (torch.empty_like(q), *others), q.new_empty(2 * B * H * H * d)
    given = map(address, (gradient, q, x, k, v, bias))
    LIBRARY.ask_tokens_back(*given, shape, kept.data_ptr(), *map(address, found), between.data_ptr())
    return found
