"""Whether the kernels compute: only where work turns them on, and with tensors that fit them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from peftlab.native.library import LIBRARY

MANY, WIDE = 96, 128
"""rows, and inputs and outputs, from which a matrix that learns is worth making integers of at each step"""


class Switch(threading.local):
    """Whether this thread computes with the kernels, again with the same weights, and has what it keeps in integers."""

    on, again, integers = False, False, False


SWITCH = Switch()


@contextmanager
def computing(on: bool = True, again: bool = False, integers: bool = False) -> Iterator[None]:
    """In this thread the kernels compute what fits them; `again`: with the same weights again and again;
    `integers`: products with weights that they keep are in 16-bit integers.
    """
    before = SWITCH.on, SWITCH.again, SWITCH.integers
    SWITCH.on, SWITCH.again, SWITCH.integers = on, again, integers
    try:
        yield
    finally:
        SWITCH.on, SWITCH.again, SWITCH.integers = before


def keeps(weight: Tensor, x: Tensor) -> bool:
    """Whether a weight is worth keeping as the kernels want it for xWᵀ; in integers every frozen one is, with gradients
    or without, so that what is computed twice is the same, and one that learns where there are many rows: it is made
    anew after each step.
    """
    if weight.requires_grad:
        return SWITCH.integers and min(weight.shape) >= WIDE and x.numel() >= MANY * x.shape[-1]
    return SWITCH.again or SWITCH.integers


def takes(x: Tensor) -> bool:
    """Whether the kernels can compute with a tensor."""
    return LIBRARY is not None and x.dtype is torch.float32 and x.is_cpu


def reads(*tensors: Tensor) -> bool:
    """Whether they can read tensors where they lie."""
    return LIBRARY is not None and all(t.dtype is torch.float32 and t.is_cpu and t.is_contiguous() for t in tensors)


def fits(x: Tensor, y: Tensor) -> bool:
    """Whether they are to compute with both; of nothing torch knows better what it is."""
    there = x.numel() > 0 and y.numel() > 0
    return SWITCH.on and there and takes(x) and takes(y) and not torch.compiler.is_compiling()
