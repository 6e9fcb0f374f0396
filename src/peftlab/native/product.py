"""Products of a linear map and of its gradients (product.c), with weights that are kept also in integers (int16.c).

Shapes: M rows, K inputs, N outputs.
"""

from __future__ import annotations

import threading
from ctypes import c_int, c_long, c_void_p

import torch
from torch import Tensor

from peftlab.native.library import LIBRARY, declare
from peftlab.native.switch import SWITCH, takes

UNPACKED = 16
"""rows up to which a product packs nothing"""
FEW = 48
"""rows up to which a product is the kernels' on any processor; of more MKL is as fast on an Intel with AVX2"""
NAMES = {
    (integers, across): f"{'integers' if integers else 'packed'}_{across}"
    for integers in (False, True)
    for across in (False, True)
}
"""of the attributes of a weight that have what was packed of it"""
PACKING = threading.Lock()
"""so that several threads that need a weight pack it once"""

declare("packed_size", *[c_long] * 2, *[c_int] * 2, gives=c_long)
declare("pack", c_void_p, *[c_long] * 2, *[c_int] * 2, c_void_p)
declare("linear", *[c_void_p] * 5, *[c_long] * 3)
declare("linear_input", *[c_void_p] * 5, *[c_long] * 3)
declare("linear_weight", *[c_void_p] * 3, *[c_long] * 3)
declare("add_linear", *[c_void_p] * 3, *[c_long] * 3)
declare("add_linear_input", *[c_void_p] * 4, *[c_long] * 3)
declare("linear_gelu", *[c_void_p] * 6, *[c_long] * 3)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, kept: bool = False, over: Tensor | None = None
) -> Tensor:
    """x [..., K], weight [N, K], bias [N] → [..., N]. A weight is `kept` as the kernel wants it, until it changes. The
    result is written `over` a tensor where that has the room: new memory of some megabytes takes long to ask for.
    """
    (N, K), x, weight = weight.shape, x.contiguous(), weight.contiguous()
    y, panels = placed(over, x, N), packed(weight, False) if kept else None
    LIBRARY.linear(*map(address, (x, weight, panels, bias, y)), x.numel() // K, N, K)
    return y


def linear_gelu(
    x: Tensor, weight: Tensor, bias: Tensor | None, learning: bool = False, kept: bool = False
) -> tuple[Tensor, Tensor | None]:
    """x [..., K], weight [N, K], bias [N] → GELU of the product [..., N], and its slope there where it learns."""
    (N, K), x, weight = weight.shape, x.contiguous(), weight.contiguous()
    y, panels = x.new_empty(*x.shape[:-1], N), packed(weight, False) if kept else None
    slope = torch.empty_like(y) if learning else None
    LIBRARY.linear_gelu(*map(address, (x, weight, panels, bias, y, slope)), x.numel() // K, N, K)
    return y, slope


def linear_input(gradient: Tensor, weight: Tensor, slope: Tensor | None = None, kept: bool = False) -> Tensor:
    """[..., N], [N, K] → x's gradient [..., K]; where x is a function of something with a slope, that one's."""
    (N, K), gradient, weight = weight.shape, gradient.contiguous(), weight.contiguous()
    dx, panels = gradient.new_empty(*gradient.shape[:-1], K), packed(weight, True) if kept else None
    LIBRARY.linear_input(*map(address, (gradient, weight, panels, slope, dx)), gradient.numel() // N, N, K)
    return dx


def add_linear(y: Tensor, x: Tensor, weight: Tensor) -> None:
    """y [..., N] += x [..., K] · weight [N, K]ᵀ, where y lies row by row."""
    assert y.is_contiguous()
    assert (*y.shape[:-1], *weight.shape) == (*x.shape[:-1], y.shape[-1], x.shape[-1])
    (N, K), x, weight = weight.shape, x.contiguous(), weight.contiguous()
    LIBRARY.add_linear(x.data_ptr(), weight.data_ptr(), y.data_ptr(), x.numel() // K, N, K)


def add_linear_input(dx: Tensor, gradient: Tensor, weight: Tensor) -> None:
    """dx [..., K] += gradient [..., N] · weight [N, K], where dx lies row by row."""
    assert dx.is_contiguous()
    assert (*dx.shape[:-1], *weight.shape) == (*gradient.shape, dx.shape[-1])
    (N, K), gradient, weight = weight.shape, gradient.contiguous(), weight.contiguous()
    LIBRARY.add_linear_input(*map(address, (gradient, weight, None, dx)), gradient.numel() // N, N, K)


def linear_weight(gradient: Tensor, x: Tensor) -> Tensor:
    """[..., N], [..., K] → the weight's gradient [N, K]."""
    N, K, gradient, x = gradient.shape[-1], x.shape[-1], gradient.contiguous(), x.contiguous()
    dw = x.new_empty(N, K)
    LIBRARY.linear_weight(gradient.data_ptr(), x.data_ptr(), dw.data_ptr(), x.numel() // K, N, K)
    return dw


def placed(over: Tensor | None, x: Tensor, N: int) -> Tensor:
    """Room for [..., N] of x [..., K]: a part of `over`, if that has it."""
    shape, size = (*x.shape[:-1], N), x.numel() // x.shape[-1] * N
    if over is None or not takes(over) or not over.is_contiguous() or over.numel() < size:
        return x.new_empty(shape)
    return over.view(-1)[:size].view(shape)


def packed(weight: Tensor, across: bool) -> Tensor:
    """A weight in panels, for y = xwᵀ or `across` for gw; made anew where it changed since it was asked for last.

    As far as torch tells: of a fused optimizer and of tensors of inference mode it does not (`forget`).
    """
    integers = SWITCH.integers
    name, state = NAMES[integers, across], (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
    kept = getattr(weight, name, None)
    if kept is None or kept[0] != state:
        with PACKING:
            kept = getattr(weight, name, None)
            if kept is None or kept[0] != state:
                kept = state, pack(weight, across, integers)
                setattr(weight, name, kept)
    return kept[1]


def pack(weight: Tensor, across: bool, integers: bool) -> Tensor:
    """A weight in panels."""
    panels = torch.empty(LIBRARY.packed_size(*weight.shape, across, integers), dtype=torch.uint8)
    LIBRARY.pack(weight.data_ptr(), *weight.shape, across, integers, panels.data_ptr())
    return panels


def forget(weight: Tensor) -> None:
    """A weight may have changed in a way that nobody tells."""
    for name in NAMES.values():
        if hasattr(weight, name):
            delattr(weight, name)


def address(t: Tensor | None) -> int | None:
    """Where a tensor lies, as C is told."""
    return None if t is None else t.data_ptr()
