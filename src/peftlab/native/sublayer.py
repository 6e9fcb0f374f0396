"""The two sublayers of a block whose own weights are frozen, each with the norm behind it, in one call (sublayer.c).

Linear maps are given as (weight, bias, change, changes), a change as (A, B, factor); all of them lie row by row.
`changes` are those that differ from row to row, where nothing learns. A norm is (scale, shift, ε). A thin network
behind the sublayer is (W₁, b₁, W₂, b₂, factor). Gradients go where there is room for them: `affine` is that for the
norm's scale and shift, `rooms` has one entry a map, and a last one for the network.

Shapes: M = B · T tokens, D width; a map from K to N, a change of rank r: A [r, K], B [N, r].
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, addressof, byref, c_float, c_int, c_long, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor

from peftlab.native.attention import shape_of
from peftlab.native.library import LIBRARY, declare, enough
from peftlab.native.mixed import Change, Changes
from peftlab.native.norm import Norm
from peftlab.native.product import address, packed

Map = tuple[Tensor, Tensor | None, Change | None, Changes | None]
Affine = tuple[Tensor, Tensor, float]
Thin = tuple[Tensor, Tensor, Tensor, Tensor, float]
Room = Sequence[Tensor | None]


class Told(Structure):
    """A linear map as C is told of it."""

    _fields_ = (
        *((name, c_void_p) for name in ("w", "packed", "bias", "A", "B")),
        *((name, c_long) for name in ("N", "K", "rank")),
        ("factor", c_float),
        *((name, c_void_p) for name in ("changes", "dA", "dB", "db", "dw")),
    )


class Dropping(Structure):
    """`Dropped` as C is told of it."""

    _fields_ = (("keep", c_void_p), ("seeds", c_void_p), ("cut", c_long))


class Dropped(NamedTuple):
    """Of some values `cut` of 65,536 are dropped, by three seeds; `keep` has a byte for each, None: all stay."""

    cut: int
    keep: Tensor | None
    seeds: Tensor | None = None

    def told(self, anew: bool = False) -> Any:
        """`anew`: which ones stay is drawn."""
        return byref(Dropping(address(self.keep), address(self.seeds) if anew else None, self.cut))


class Asked(NamedTuple):
    """How attention is asked: by how many heads, how scores grow, and what is seen, [B or 1, 1, T or 1, T]."""

    heads: int
    scale: float
    mask: Tensor | None


declare("attended", *[c_void_p] * 9, c_int, c_void_p, gives=enough)
declare("attended_back", *[c_void_p] * 10, c_int, *[c_void_p] * 4, gives=enough)
declare("fed_forward", *[c_void_p] * 7, c_int, c_void_p, c_long)
declare("fed_forward_back", *[c_void_p] * 6, c_int, *[c_void_p] * 4, c_long)


def ahead(maps: Sequence[Map], panels: Sequence[Tensor], mixed: Sequence[Any]) -> Any:
    """Maps that are to be applied, and what C is told of their changes from row to row."""
    told = (Told * len(maps))()
    for i, ((weight, bias, change, _), panel, rows) in enumerate(zip(maps, panels, mixed, strict=True)):
        A, B, factor = change or (None, None, 1.0)
        rank = 0 if A is None else A.shape[0]
        thin, changes = (address(A), address(B)), None if rows is None else addressof(rows)
        told[i] = Told(weight.data_ptr(), panel.data_ptr(), address(bias), *thin, *weight.shape, rank, factor, changes)
    return told


def back(maps: Sequence[Map], panels: Sequence[Tensor | None], rooms: Sequence[Room]) -> Any:
    """Maps whose gradients are wanted where there is room for them: for dA and dB, or without a change for db."""
    told = (Told * len(maps))()
    for i, ((weight, _, change, changes), panel, room) in enumerate(zip(maps, panels, rooms, strict=True)):
        assert changes is None
        given = weight.data_ptr(), address(panel), None
        if change is None:
            of_bias = address(room[0]) if room else None
            told[i] = Told(*given, None, None, *weight.shape, 0, 1.0, None, None, None, of_bias)
        else:
            A, B, factor = change
            thin = A.data_ptr(), B.data_ptr()
            told[i] = Told(*given, *thin, *weight.shape, A.shape[0], factor, None, *map(address, room))
    return told


def of_thin(thin: Thin | None, room: Room = (None,) * 4) -> Any:
    """A thin network, and where the gradients of its four tensors go."""
    if thin is None:
        return None
    down, down_bias, up, up_bias, factor = thin
    w, D = down.shape
    at = [t.data_ptr() for t in (down, down_bias, up, up_bias)]
    dw, db, to_up, to_up_bias = map(address, room)
    return (Told * 2)(
        Told(at[0], None, at[1], None, None, w, D, 0, 1.0, None, None, None, db, dw),
        Told(at[2], None, at[3], None, None, D, w, 0, factor, None, None, None, to_up_bias, to_up),
    )


def joint(D: int, thin: Thin | None) -> int:
    """How many numbers a token leaves where a sublayer is joined."""
    return D + 2 + (0 if thin is None else D + 2 * thin[0].shape[0])


def of_norm(norm: Affine | None) -> Any:
    """A norm."""
    if norm is None:
        return None
    scale, shift, eps = norm
    return byref(Norm(scale.data_ptr(), shift.data_ptr(), eps))


def ranks(maps: Sequence[Map]) -> list[int]:
    """Of the maps' changes."""
    return [0 if change is None else change[0].shape[0] for _, _, change, _ in maps]


def attended(
    x: Tensor,
    maps: Sequence[Map],
    thin: Thin | None,
    asked: Asked,
    norm: Affine | None,
    weights: Dropped,
    values: Dropped,
    learning: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """norm(x + dropout(o(attention of q(x), k(x), v(x)))), x [B, T, D], maps q, k, v and o, or without a norm o's
    output; then what its gradients need, and o's input, which they need where o has a change.
    """
    (B, T, D), x = x.shape, x.contiguous()
    shape, _mask = shape_of((B, asked.heads, T, T, D // asked.heads), asked.scale, asked.mask)
    kept = x.new_empty(B * T * (3 * D + sum(ranks(maps)) + (0 if norm is None else joint(D, thin))))
    mixed, out = torch.empty_like(x), torch.empty_like(x)
    panels = [packed(weight, False) for weight, *_ in maps]  # which are held while C reads them, and so are these
    rows = [None if changes is None else changes.told(x, len(weight)) for weight, _, _, changes in maps]
    LIBRARY.attended(
        x.data_ptr(),
        ahead(maps, panels, rows),
        of_thin(thin),
        byref(shape),
        of_norm(norm),
        weights.told(anew=True),
        values.told(anew=True),
        kept.data_ptr(),
        mixed.data_ptr(),
        learning,
        out.data_ptr(),
    )
    return out, kept, mixed


def attended_back(
    gradient: Tensor,
    x: Tensor | None,
    maps: Sequence[Map],
    thin: Thin | None,
    asked: Asked,
    norm: Affine | None,
    weights: Dropped,
    values: Dropped,
    kept: Tensor,
    mixed: Tensor | None,
    to_x: bool,
    affine: tuple[Tensor | None, Tensor | None],
    rooms: Sequence[Room],
) -> Tensor:
    """x's gradient, whole where it leads `to_x`; x is needed where q, k or v has a change."""
    (B, T, D), gradient = gradient.shape, gradient.contiguous()
    shape, _mask = shape_of((B, asked.heads, T, T, D // asked.heads), asked.scale, asked.mask)
    x = None if x is None else x.contiguous()
    w = max(*ranks(maps), 0 if thin is None else thin[0].shape[0])
    dx, room = torch.empty_like(gradient), gradient.new_empty(B * T * 5 * D + (2 * B * T + D) * w)
    panels = [packed(weight, True) if to_x or i == 3 else None for i, (weight, *_) in enumerate(maps)]
    LIBRARY.attended_back(
        gradient.data_ptr(),
        address(x),
        back(maps, panels, rooms[:4]),
        of_thin(thin, rooms[-1]),
        byref(shape),
        of_norm(norm),
        weights.told(),
        values.told(),
        kept.data_ptr(),
        address(mixed),
        to_x,
        dx.data_ptr(),
        *map(address, affine),
        room.data_ptr(),
    )
    return dx


def fed_forward(
    x: Tensor, maps: Sequence[Map], thin: Thin | None, norm: Affine, values: Dropped, learning: bool
) -> tuple[Tensor, Tensor]:
    """norm(x + dropout(W₂ · gelu(W₁x + b₁) + b₂)) with two maps that nothing changes, and what its gradients need."""
    (inner, D), M, x = maps[0][0].shape, x.numel() // x.shape[-1], x.contiguous()
    kept = x.new_empty(M * ((inner if learning else 0) + joint(D, thin)))
    out, room = torch.empty_like(x), x.new_empty(M * inner)
    panels = [packed(weight, False) for weight, *_ in maps]
    LIBRARY.fed_forward(
        x.data_ptr(),
        ahead(maps, panels, [None] * len(maps)),
        of_thin(thin),
        of_norm(norm),
        values.told(anew=True),
        kept.data_ptr(),
        room.data_ptr(),
        learning,
        out.data_ptr(),
        M,
    )
    return out, kept


def fed_forward_back(
    gradient: Tensor,
    maps: Sequence[Map],
    thin: Thin | None,
    norm: Affine,
    values: Dropped,
    kept: Tensor,
    to_x: bool,
    affine: tuple[Tensor | None, Tensor | None],
    rooms: Sequence[Room],
) -> Tensor:
    """x's gradient, whole where it leads `to_x`."""
    (inner, D), M, gradient = maps[0][0].shape, gradient.numel() // gradient.shape[-1], gradient.contiguous()
    w = 0 if thin is None else thin[0].shape[0]
    dx, room = torch.empty_like(gradient), gradient.new_empty(M * (D + inner) + (2 * M + D) * w)
    panels = [packed(maps[0][0], True) if to_x else None, packed(maps[1][0], True)]
    LIBRARY.fed_forward_back(
        gradient.data_ptr(),
        back(maps, panels, rooms[:2]),
        of_thin(thin, rooms[-1]),
        of_norm(norm),
        values.told(),
        kept.data_ptr(),
        to_x,
        dx.data_ptr(),
        *map(address, affine),
        room.data_ptr(),
        M,
    )
    return dx
