"""The library of kernels: loaded where it was built, is wanted, and the processor has what it needs."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from peftlab.native.building import KINDS, library
from peftlab.processor import facts

AVX2 = {"avx2", "fma", "bmi2"}
NEEDED = {"avx512": AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"}, "avx2": AVX2}
"""what a processor of each kind can do, in Linux's words"""


def find() -> tuple[str, Path] | tuple[None, None]:
    """The best kind of kernels that were built and that this processor can run, and their file. `PEFTLAB_NATIVE` may be
    the only one that is wanted, or 0 for none.
    """
    wanted, able = os.environ.get("PEFTLAB_NATIVE"), set(facts().get("flags", "").split())
    for kind in [wanted] if wanted in KINDS else KINDS if wanted != "0" else ():
        if NEEDED[kind] <= able and (file := library(kind)).is_file():
            return kind, file
    return None, None


KIND, FILE = find()
LIBRARY: Any = None if FILE is None else ctypes.CDLL(str(FILE))
NAME = "torch's" if FILE is None else FILE.stem
"""what computes, as a comparison tells it"""
TALL = KIND == "avx512" or facts().get("vendor_id") == "AuthenticAMD"
"""whether products of many rows are the kernels' too: with AVX2 they were measured to be faster than MKL's on an AMD"""
INTEGERS = KIND is not None and TALL
"""whether they may be in integers"""


def declare(name: str, *arguments: Any, gives: Any = None) -> None:
    """What a kernel is called with; what it gives, or what `gives` makes of its number, where it has one to tell."""
    if LIBRARY is not None:
        call = getattr(LIBRARY, name)
        call.argtypes, call.restype = arguments, gives


def enough(failed: int) -> None:
    """What a kernel gives that needs memory of its own."""
    if failed:
        raise MemoryError("not enough memory for a kernel")
