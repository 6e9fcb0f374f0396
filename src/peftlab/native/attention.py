"""Attention and its gradients (attention.c).

Shapes: B rows, H heads, Tq and Tk tokens of queries and keys, d width of a head.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_long, c_void_p

from torch import Tensor

from peftlab.native.library import LIBRARY, declare, enough


class Heads(Structure):
    """A tensor [B, H, T, d]: where it lies, and how far it is to the next row, head and token."""

    _fields_ = (("at", c_void_p), ("row", c_long), ("head", c_long), ("token", c_long))

    @classmethod
    def of(cls, t: Tensor) -> Heads:
        row, head, token, _ = t.stride()
        return cls(t.data_ptr(), row, head, token)


class Shape(Structure):
    """What attention is told besides its tensors."""

    _fields_ = (
        *((name, c_long) for name in ("B", "H", "Tq", "Tk", "d")),
        ("scale", c_float),
        ("growth", c_float),
        ("seen", c_void_p),
        ("seen_row", c_long),
        ("seen_query", c_long),
        ("keep", c_void_p),
    )


declare("attend", *[Heads] * 4, POINTER(Shape), gives=enough)
declare("attend_back", *[Heads] * 7, POINTER(Shape), gives=enough)


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, keep: Tensor | None = None, growth: float = 1.0
) -> Tensor:
    """[B, H, Tq, d], twice [B, H, Tk, d], mask [B or 1, 1, Tq or 1, Tk], keep [B, H, Tq, Tk] → [B, H, Tq, d]."""
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    mixed = tokens_first(q)
    shape, _mask = shape_of((*q.shape[:3], *k.shape[2:]), scale, mask, keep, growth)
    LIBRARY.attend(Heads.of(q), Heads.of(k), Heads.of(v), Heads.of(mixed), shape)
    return mixed


def attend_back(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gradient: Tensor,
    scale: float,
    mask: Tensor | None,
    keep: Tensor | None = None,
    growth: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    given = [t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v, gradient)]
    found = tokens_first(q), tokens_first(k), tokens_first(v)
    shape, _mask = shape_of((*q.shape[:3], *k.shape[2:]), scale, mask, keep, growth)
    LIBRARY.attend_back(*(Heads.of(t) for t in (*given, *found)), shape)
    return found


def tokens_first(like: Tensor) -> Tensor:
    """A new [B, H, T, d] that lies as [B, T, H, d], so that its heads side by side need no copy."""
    B, H, T, d = like.shape
    return like.new_empty(B, T, H, d).transpose(1, 2)


def shape_of(
    sizes: tuple[int, ...], scale: float, mask: Tensor | None, keep: Tensor | None = None, growth: float = 1.0
) -> tuple[Shape, Tensor | None]:
    """What C is told of B, H, Tq, Tk and d, and the mask that it points to."""
    B, _, _, Tk, _ = sizes
    at, row, query = None, 0, 0
    if mask is not None:
        mask = mask.expand(B, 1, mask.shape[2], Tk)
        mask = mask if mask.stride(3) == 1 or Tk == 1 else mask.contiguous()
        at, row, query = mask.data_ptr(), mask.stride(0), mask.stride(2) if mask.shape[2] > 1 else 0
    kept = None if keep is None else keep.data_ptr()
    return Shape(*sizes, scale, growth, at, row, query, kept), mask
