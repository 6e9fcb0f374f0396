"""The library of kernels: loaded where it was built, is wanted, and the processor has what it needs."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from peftlab.native.building import library
from peftlab.processor import facts

FILE = library()


def load() -> Any:
    """The library, or None where it was not built, is not wanted, or would be of no use."""
    if os.environ.get("PEFTLAB_NATIVE") == "0" or not FILE.is_file() or not {"avx2", "fma"} <= flags():
        return None
    return ctypes.CDLL(str(FILE))


def flags() -> set[str]:
    """What the processor can do, in Linux's words."""
    return set(facts().get("flags", "").split())


LIBRARY = load()
NAME = "torch's" if LIBRARY is None else FILE.stem
"""what computes, as a comparison tells it"""
TALL = facts().get("vendor_id") == "AuthenticAMD" and "avx512f" not in flags()
"""whether products of many rows are the kernels' too: on an AMD with AVX2 they were measured to be faster than MKL's"""
INTEGERS = LIBRARY is not None and TALL
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
