"""Memory: how much a process held, and whether an error says that there is no more."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

SIGNS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "bad allocation",
    "bad_alloc",
    "could not create a primitive",  # how oneDNN says it, in the middle of a matrix product
)
MEMORY, LIMIT = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
"""where Linux tells what there is, and a container how much of it may be taken"""
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
"""as malloc.h numbers them: the free bytes from which the library's store is made smaller, those from which on a piece
comes from the system and not from that store, and how many pieces may"""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error of torch or Python means that memory ran out; on a CPU torch has no type for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)


def peak_memory() -> int:
    """The most memory that this process held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def available_memory() -> int:
    """The bytes that can still be had; where the system does not say, those of the whole machine."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    if MEMORY.is_file():
        lines = dict(line.split(":") for line in MEMORY.read_text().splitlines())
        found += [1024 * int(lines["MemAvailable"].split()[0])] if "MemAvailable" in lines else []
    if LIMIT.is_file() and (most := LIMIT.read_text().strip()) != "max":
        taken = dict(line.split() for line in LIMIT.with_name("memory.stat").read_text().splitlines())
        found.append(int(most) - int(taken["anon"]))  # what else it counts are files that can be read again
    return max(0, min(found))


def keep_freed() -> None:
    """Let the C library keep the memory that a step frees for the next one, where it is glibc.

    Otherwise it goes back to the system after each large tensor, and the next one is cleared page by page: a tenth of
    a step. So all of it is to come from the library's own store, the gradient of a vocabulary of 50 MB, too.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(MMAP_MAX, 0)
        library.mallopt(TRIM_THRESHOLD, 2**31 - 1)


def return_freed() -> None:
    """Give it back, now and from now on: where memory has run out, others need it, such as oneDNN for its code."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.mallopt(MMAP_MAX, 1 << 16)
        library.mallopt(MMAP_THRESHOLD, 128 << 10)
        library.mallopt(TRIM_THRESHOLD, 128 << 10)
        library.malloc_trim(0)


@contextmanager
def settled() -> Iterator[None]:
    """Let Python look for garbage only among what comes from now on.

    A step makes so many objects that all others, those of torch and the rows among them, are gone through every few
    steps: a fiftieth of the time of a small model. What is garbage already waits until the end: to look for it here
    would take as long as a step or two.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
