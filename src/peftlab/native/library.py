"""The library of kernels: loaded where it was built, is wanted, and the processor has what it needs."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from peftlab.native.building import KINDS, library
from peftlab.processor import facts

NEEDED = {
    "avx512": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"},
    "avx2": {"avx2", "fma"},
}
"""what a processor of each kind can do, in Linux's words"""


def kind() -> str | None:
    """The best kind of kernels that were built, that this processor can run, and that are wanted: `PEFTLAB_NATIVE` may
    name one, or be 0.
    """
    wanted, able = os.environ.get("PEFTLAB_NATIVE"), set(facts().get("flags", "").split())
    fit = [name for name in KINDS if NEEDED[name] <= able and library(name).is_file()]
    return next((name for name in fit if wanted in (None, "", name)), None)


KIND = kind()
LIBRARY: Any = None if KIND is None else ctypes.CDLL(str(library(KIND)))
NAME = "torch's" if KIND is None else library(KIND).stem
"""what computes, as a comparison tells it"""
LANES = 0 if KIND is None else LIBRARY.lanes()
"""numbers of a vector"""
TALL = KIND == "avx512" or facts().get("vendor_id") == "AuthenticAMD"
"""whether products of many rows are the kernels' too: with AVX2 they were measured to be faster than MKL's on an AMD"""
INTEGERS = KIND is not None and TALL
"""whether those with frozen weights may be in integers"""


def declare(name: str, *arguments: Any, gives: Any = None) -> None:
    """What a kernel is called with; what it gives, or what `gives` makes of its number, where it has one to tell."""
    if LIBRARY is not None:
        call = getattr(LIBRARY, name)
        call.argtypes, call.restype = arguments, gives


def enough(failed: int) -> None:
    """What a kernel gives that needs memory of its own."""
    if failed:
        raise MemoryError("not enough memory for attention")
