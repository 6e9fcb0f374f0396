"""Memory: how much a process held, and whether an error says that there is no more."""

from __future__ import annotations

import ctypes
import resource
import sys

import torch

SIGNS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "bad allocation",
    "bad_alloc",
    "could not create a primitive",  # how oneDNN says it, in the middle of a matrix product
)
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""as malloc.h numbers them"""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error of torch or Python means that memory ran out; on a CPU torch has no type for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)


def peak_memory() -> int:
    """The most memory that this process held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def keep_freed() -> None:
    """Let the C library keep the memory that a step frees for the next one, where it is glibc.

    Otherwise it goes back to the system after each large tensor, and the next one is cleared page by page: a tenth of
    a step. 32 MiB is the most that glibc takes from its own store and not from the system.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, 32 << 20)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
