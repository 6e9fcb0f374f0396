"""Kernels in C for what torch does slowly on a processor: products of a few rows, attention over short texts, dropout.

They are built when the package is installed, where there is a C compiler (`hatch_build.py`), and used where the
processor has AVX2. Elsewhere, and with `PEFTLAB_NATIVE=0`, torch computes the same: each file of `layers/` that has a
kernel has torch's way beside it. The kernels share torch's own threads.

A sum in another order is rounded otherwise. So a model that is called computes with torch, to the bit as the published
ones do, and the kernels are for work: training, predicting and writing turn them on.

    with native.computing():
        model(batch)

`fits` says whether tensors are to be given to them: turned on, single precision, on a processor, not compiled. All
wrappers give new tensors and know nothing of gradients.

    python -m pytest tests/native

Shapes: M rows, K inputs, N outputs of a linear map; B rows, H heads, Tq and Tk tokens of queries and keys, d width of a
head.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, Structure, c_float, c_int, c_long, c_void_p
from typing import Any

import torch
from torch import Tensor

from peftlab.native.building import library
from peftlab.processor import facts

FILE = library()
LANES = 8
"""numbers in a vector"""
UNPACKED = 16
"""rows up to which a product packs nothing"""
FEW = 48
"""rows up to which a product is the kernels' on any processor; of more than these MKL is as fast on those of Intel"""


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


def load() -> Any:
    """The library, or None where it was not built, is not wanted, or would be of no use."""
    if os.environ.get("PEFTLAB_NATIVE") == "0" or not FILE.is_file() or not {"avx2", "fma"} <= flags():
        return None
    kernels = ctypes.CDLL(str(FILE))
    at, size = c_void_p, c_long
    calls: dict[str, list[Any]] = {
        "pack": [at, size, size, c_int, at],
        "linear": [at] * 5 + [size] * 3,
        "linear_input": [at] * 5 + [size] * 3,
        "linear_weight": [at] * 3 + [size] * 3,
        "linear_gelu": [at] * 6 + [size] * 3,
        "attend": [Heads] * 4 + [POINTER(Shape)],
        "attend_back": [Heads] * 7 + [POINTER(Shape)],
        "draw_kept": [at, size, at, size],
        "apply_kept": [at, at, c_float, at, size],
        "gelu": [at, at, size],
        "gelu_back": [at, at, at, size],
        "join": [at, at, at, c_float, at, at, c_float, at, at, at, size, size],
        "join_back": [*[at] * 5, c_float, at, at, size, size],
        "decode": [at] * 4,
        "log_softmax": [at, *[size] * 3],
        "likeliest": [at, *[size] * 3, at, at],
        "continuations": [at, at, *[size] * 5, at, at],
    }
    for name, arguments in calls.items():
        call = getattr(kernels, name)
        call.argtypes, call.restype = arguments, None
    for name in ("attend", "attend_back", "decode"):
        getattr(kernels, name).restype = enough
    return kernels


def enough(failed: int) -> None:
    """What a kernel gives that needs memory of its own."""
    if failed:
        raise MemoryError("not enough memory for attention")


def flags() -> set[str]:
    """What the processor can do, in Linux's words."""
    return set(facts().get("flags", "").split())


LIBRARY = load()
NAME = "torch's" if LIBRARY is None else FILE.stem
"""what computes, as a comparison tells it"""
TALL = facts().get("vendor_id") == "AuthenticAMD" and "avx512f" not in flags()
"""whether products of many rows are the kernels' too: on an AMD with AVX2 they were measured to be faster than MKL's"""


class Switch(threading.local):
    """Whether this thread computes with the kernels."""

    on = False


SWITCH = Switch()


@contextmanager
def computing(on: bool = True) -> Iterator[None]:
    """In this thread the kernels compute what fits them."""
    before, SWITCH.on = SWITCH.on, on
    try:
        yield
    finally:
        SWITCH.on = before


def takes(x: Tensor) -> bool:
    """Whether the kernels can compute with a tensor."""
    return LIBRARY is not None and x.dtype is torch.float32 and x.is_cpu


def fits(x: Tensor, y: Tensor) -> bool:
    """Whether they are to compute with both; of nothing torch knows better what it is."""
    there = x.numel() > 0 and y.numel() > 0
    return SWITCH.on and there and takes(x) and takes(y) and not torch.compiler.is_compiling()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, frozen: bool = False) -> Tensor:
    """x [..., K], weight [N, K], bias [N] → [..., N]. A weight that is `frozen` is kept as the kernel wants it."""
    (N, K), x, weight = weight.shape, x.contiguous(), weight.contiguous()
    y, panels = x.new_empty(*x.shape[:-1], N), packed(weight, False) if frozen else None
    LIBRARY.linear(*map(address, (x, weight, panels, bias, y)), x.numel() // K, N, K)
    return y


def linear_gelu(
    x: Tensor, weight: Tensor, bias: Tensor | None, learning: bool = False, frozen: bool = False
) -> tuple[Tensor, Tensor | None]:
    """x [..., K], weight [N, K], bias [N] → GELU of the product [..., N], and its slope there where it learns."""
    (N, K), x, weight = weight.shape, x.contiguous(), weight.contiguous()
    y, panels = x.new_empty(*x.shape[:-1], N), packed(weight, False) if frozen else None
    slope = torch.empty_like(y) if learning else None
    LIBRARY.linear_gelu(*map(address, (x, weight, panels, bias, y, slope)), x.numel() // K, N, K)
    return y, slope


def linear_input(gradient: Tensor, weight: Tensor, slope: Tensor | None = None, frozen: bool = False) -> Tensor:
    """[..., N], [N, K] → x's gradient [..., K]; where x is a function of something with a slope, that one's."""
    (N, K), gradient, weight = weight.shape, gradient.contiguous(), weight.contiguous()
    dx, panels = gradient.new_empty(*gradient.shape[:-1], K), packed(weight, True) if frozen else None
    LIBRARY.linear_input(*map(address, (gradient, weight, panels, slope, dx)), gradient.numel() // N, N, K)
    return dx


def address(t: Tensor | None) -> int | None:
    """Where a tensor lies, as C is told."""
    return None if t is None else t.data_ptr()


def packed(weight: Tensor, across: bool) -> Tensor:
    """A weight in panels, for y = xwᵀ or `across` for gw; made anew where it changed since it was asked for last.

    As far as torch tells: of a fused optimizer and of tensors of inference mode it does not (`forget`).
    """
    name, state = f"packed_{across}", (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
    kept = getattr(weight, name, None)
    if kept is None or kept[0] != state:
        (N, K), width = weight.shape, LANES * 3
        columns, depth = (K, N) if across else (N, K)
        panels = weight.new_empty(-(-columns // width) * width * depth)
        LIBRARY.pack(weight.data_ptr(), N, K, across, panels.data_ptr())
        kept = state, panels
        setattr(weight, name, kept)
    return kept[1]


def forget(weight: Tensor) -> None:
    """A weight may have changed in a way that nobody tells."""
    for name in ("packed_False", "packed_True"):
        if hasattr(weight, name):
            delattr(weight, name)


def linear_weight(gradient: Tensor, x: Tensor) -> Tensor:
    """[..., N], [..., K] → the weight's gradient [N, K]."""
    N, K, gradient, x = gradient.shape[-1], x.shape[-1], gradient.contiguous(), x.contiguous()
    dw = x.new_empty(N, K)
    LIBRARY.linear_weight(gradient.data_ptr(), x.data_ptr(), dw.data_ptr(), x.numel() // K, N, K)
    return dw


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, keep: Tensor | None = None, growth: float = 1.0
) -> Tensor:
    """[B, H, Tq, d], twice [B, H, Tk, d], mask [B or 1, 1, Tq or 1, Tk], keep [B, H, Tq, Tk] → [B, H, Tq, d]."""
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    mixed = tokens_first(q)
    shape, _mask = shape_of(q, k, scale, mask, keep, growth)
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
    shape, _mask = shape_of(q, k, scale, mask, keep, growth)
    LIBRARY.attend_back(*(Heads.of(t) for t in (*given, *found)), shape)
    return found


def tokens_first(like: Tensor) -> Tensor:
    """A new [B, H, T, d] that lies as [B, T, H, d], so that its heads side by side need no copy."""
    B, H, T, d = like.shape
    return like.new_empty(B, T, H, d).transpose(1, 2)


def shape_of(
    q: Tensor, k: Tensor, scale: float, mask: Tensor | None, keep: Tensor | None, growth: float
) -> tuple[Shape, Tensor | None]:
    """What C is told, and the mask that it points to."""
    (B, H, Tq, d), Tk = q.shape, k.shape[2]
    at, row, query = None, 0, 0
    if mask is not None:
        mask = mask.expand(B, 1, mask.shape[2], Tk)
        mask = mask if mask.stride(3) == 1 or Tk == 1 else mask.contiguous()
        at, row, query = mask.data_ptr(), mask.stride(0), mask.stride(2) if mask.shape[2] > 1 else 0
    kept = None if keep is None else keep.data_ptr()
    return Shape(B, H, Tq, Tk, d, scale, growth, at, row, query, kept), mask


def draw_kept(shape: tuple[int, ...], seeds: Tensor, cut: int) -> Tensor:
    """1 where a value stays, else 0, a byte each; as numpy.random.SFC64 draws from a state of three `seeds`."""
    keep = torch.empty(shape, dtype=torch.uint8)
    LIBRARY.draw_kept(seeds.data_ptr(), cut, keep.data_ptr(), keep.numel())
    return keep


def apply_kept(x: Tensor, keep: Tensor, growth: float) -> Tensor:
    """x · keep · growth."""
    x = x.contiguous()
    y = torch.empty_like(x)
    LIBRARY.apply_kept(x.data_ptr(), keep.data_ptr(), growth, y.data_ptr(), x.numel())
    return y


def gelu(x: Tensor, out: Tensor | None = None) -> Tensor:
    """x · Φ(x), into `out` where it is given, which may be x."""
    x = x.contiguous()
    out = torch.empty_like(x) if out is None else out
    LIBRARY.gelu(x.data_ptr(), out.data_ptr(), x.numel())
    return out


def gelu_back(x: Tensor, gradient: Tensor) -> Tensor:
    """x's gradient."""
    x, gradient = x.contiguous(), gradient.contiguous()
    dx = torch.empty_like(x)
    LIBRARY.gelu_back(x.data_ptr(), gradient.data_ptr(), dx.data_ptr(), x.numel())
    return dx


def join(
    x: Tensor,
    y: Tensor,
    keep: Tensor | None,
    growth: float,
    scale: Tensor,
    shift: Tensor,
    eps: float,
    learning: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """norm(x + y · keep · growth) [..., D]; where it learns also the sum, and for each of its rows two numbers."""
    D, x, y = x.shape[-1], x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    total = torch.empty_like(x) if learning else out
    stats = x.new_empty(x.numel() // D, 2) if learning else None
    parts = x, y, keep, growth, scale, shift, eps, total, stats, out
    LIBRARY.join(*(t.data_ptr() if isinstance(t, Tensor) else t for t in parts), x.numel() // D, D)
    return out, total, stats


def join_back(
    gradient: Tensor, total: Tensor, stats: Tensor, scale: Tensor, keep: Tensor | None, growth: float
) -> tuple[Tensor, Tensor]:
    """The gradients of x and y, from what `join` gave."""
    D, gradient = gradient.shape[-1], gradient.contiguous()
    dx = torch.empty_like(gradient)
    dy = dx if keep is None else torch.empty_like(gradient)
    parts = gradient, total, stats, scale, keep, growth, dx, dy
    LIBRARY.join_back(*(t.data_ptr() if isinstance(t, Tensor) else t for t in parts), gradient.numel() // D, D)
    return dx, dy


def excluded(never: int | None, V: int) -> int:
    """A token of the vocabulary that is never taken, as C is told: −1 for none."""
    return -1 if never is None or never >= V else never


def log_softmax(scores: Tensor, never: int | None) -> Tensor:
    """log p [R, V], written over the scores; −∞ for a token that is `never` taken."""
    R, V = scores.shape
    scores = scores.contiguous()
    LIBRARY.log_softmax(scores.data_ptr(), R, V, excluded(never, V))
    return scores


def likeliest(scores: Tensor, never: int | None) -> tuple[Tensor, Tensor]:
    """The likeliest token [R] of scores [R, V] but one that is `never` taken, and log p [R] of it."""
    R, V = scores.shape
    scores, tokens, log_p = scores.contiguous(), torch.empty(R, dtype=torch.long), torch.empty(R)
    LIBRARY.likeliest(scores.data_ptr(), R, V, excluded(never, V), tokens.data_ptr(), log_p.data_ptr())
    return tokens, log_p


def continuations(scores: Tensor, totals: Tensor, never: int | None, count: int) -> tuple[Tensor, Tensor]:
    """The `count` best of totals [B, g] + log p of scores [B · g, V], the best first; of each `which · V + token`."""
    (B, g), V = totals.shape, scores.shape[1]
    scores, totals = scores.contiguous(), totals.contiguous()
    best, index = torch.empty(B, count), torch.empty(B, count, dtype=torch.long)
    given = scores.data_ptr(), totals.data_ptr(), B, g, V, excluded(never, V), count
    LIBRARY.continuations(*given, best.data_ptr(), index.data_ptr())
    return best, index
