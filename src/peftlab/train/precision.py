"""Device and precision, chosen by what there is: CUDA, MPS or CPU; bf16 where the processor computes with it."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from peftlab import native
from peftlab.processor import tiles_hidden


def pick_device() -> torch.device:
    """The fastest device there is."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def pick_precision(wanted: str, device: torch.device) -> str:
    """fp32 or bf16."""
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bf16" if device.type == "cpu" and fast and not tiles_hidden() else "fp32"


def computing_in(precision: str, device: torch.device, again: bool = False) -> AbstractContextManager[object]:
    """In bf16 matrix products run in it, while weights, norms, losses and the optimizer stay in fp32; for fp32 on a
    processor there are kernels of our own, which keep frozen weights as they want them where they compute `again`.
    """
    if precision == "fp32":
        return native.computing(again=again)
    return torch.autocast(device.type, dtype=torch.bfloat16)
