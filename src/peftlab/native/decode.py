"""A block of a decoder for one token more, as native/decode.c is told of it: the same structures, field by field."""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_float, c_int, c_long, c_void_p

from torch import Tensor

from peftlab.native.library import LIBRARY, declare, enough
from peftlab.native.norm import Norm

ACTIVATIONS = ("relu", "gelu", "silu", "gelu_new")
"""those that the kernel has, as it numbers them"""


class Map(Structure):
    """A linear map."""

    _fields_ = (
        *((name, c_void_p) for name in ("weight", "packed", "bias")),
        *((name, c_long) for name in ("outputs", "inputs")),
    )


class AttentionMaps(Structure):
    """The four maps of attention, and how it scores."""

    _fields_ = (*((name, Map) for name in "qkvo"), ("heads", c_long), ("scale", c_float))


class Block(Structure):
    """The weights and choices of a block."""

    _fields_ = (
        *((name, AttentionMaps) for name in ("own", "cross")),
        *((name, Map) for name in ("up", "down")),
        *((name, Norm) for name in ("after_own", "after_cross", "after_inner")),
        *((name, c_int) for name in ("crossed", "first", "activation")),
    )


class Place(Structure):
    """Where texts have come to: their cache, and who sees what of it."""

    _fields_ = (
        *((name, c_long) for name in ("B", "g", "t", "S")),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("row", c_long),
        ("seen", c_void_p),
        ("seen_row", c_long),
        ("seen_query", c_long),
        ("source_keys", c_void_p),
        ("source_values", c_void_p),
        ("source_row", c_long),
        ("source_seen", c_void_p),
        ("source_seen_row", c_long),
    )


declare("decode", *[c_void_p] * 4, gives=enough)


def decode(block: Block, place: Place, x: Tensor, work: Tensor) -> None:
    """x [R, D] is what enters the block, and then what leaves it; `work` has room for R · (4 · D + inner) numbers."""
    LIBRARY.decode(ctypes.byref(block), ctypes.byref(place), x.data_ptr(), work.data_ptr())
