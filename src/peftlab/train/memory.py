"""Memory: how much a process held, and whether an error says that there is no more."""

from __future__ import annotations

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


def out_of_memory(error: BaseException) -> bool:
    """Whether an error of torch or Python means that memory ran out; on a CPU torch has no type for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)


def peak_memory() -> int:
    """The most memory that this process held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
