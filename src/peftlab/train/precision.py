"""Device and precision, chosen by what there is: CUDA, MPS or CPU; int16 where our own kernels have it, bf16 where that
is faster than fp32.

In bf16 what is multiplied is rounded to 8 bits. In int16 a layer's values, and their gradients, are multiplied with its
weights as 16-bit integers, whose sums are exact (native/int16.c): it differs from fp32 a tenth as much. Gradients of
weights, and whatever is small and learns, are in fp32.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from peftlab import native
from peftlab.errors import UserError
from peftlab.processor import intel, tiles_hidden


def pick_device() -> torch.device:
    """The fastest device there is."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def pick_precision(wanted: str, device: torch.device, fresh: bool = False) -> str:
    """fp32, bf16 or int16; by itself no int16 for a `fresh` model, which has no base."""
    integers = device.type == "cpu" and native.INTEGERS
    if wanted == "int16" and not integers:
        raise UserError(
            "train.precision: int16 needs peftlab's kernels, and either AVX-512 and VNNI or an AMD with AVX2; "
            "a run that began in it goes on there, a new one may have fp32 or bf16"
        )
    if wanted != "auto":
        return wanted
    if integers and not fresh and not tiles():
        return "int16"
    return "bf16" if bf16_pays(device) else "fp32"


def pick_answering(trained: str, device: torch.device) -> str:
    """What a run that was trained in a precision answers in: int16, in which it was tested too, where that can be had
    here; and else fp32.
    """
    return "int16" if trained == "int16" and device.type == "cpu" and native.INTEGERS else "fp32"


def bf16_pays(device: torch.device) -> bool:
    """Whether products in bf16 are faster than in fp32; on a processor of Intel's only with tiles."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    return device.type == "cpu" and (tiles() or (torch.cpu._is_avx512_bf16_supported() and not intel()))


def tiles() -> bool:
    """Whether the processor multiplies whole tiles of bf16 at once (AMX)."""
    return torch.cpu._is_amx_tile_supported() and not tiles_hidden()


def computing_in(precision: str, device: torch.device, again: bool = False) -> AbstractContextManager[object]:
    """In bf16 matrix products run in it, while weights, norms, losses and the optimizer stay in fp32; for others on a
    processor there are kernels of our own, which keep weights as they want them where they compute `again`.
    """
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return with_kernels(precision, again)


def with_kernels(precision: str, again: bool = False) -> AbstractContextManager[object]:
    """The kernels alone, where a precision has them: a backward pass is not to be under autocast."""
    return native.computing(precision != "bf16", again, integers=precision == "int16")
