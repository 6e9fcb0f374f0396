"""Cross-entropy over a large vocabulary, some tokens at a time: the scores of all of them are never in memory.

Of 8,192 tokens and 50,257 words the scores take 1.6 GB, and their gradient as much. Here those of a chunk are made,
read and forgotten; the backward pass makes them again (Kitaev et al. 2020, arXiv 2001.04451, section 3).

    chunked_cross_entropy(model.read, hidden, labels, chunk=1024)        # = F.cross_entropy(model.read(hidden), labels)

Shapes: N tokens, D width, V words of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def chunked_cross_entropy(
    read: Callable[[Tensor], Tensor], hidden: Tensor, labels: Tensor, chunk: int, smoothing: float = 0.0
) -> Tensor:
    """The mean over all N tokens; `read` turns hidden states [n, D] into scores [n, V], labels are [N]."""

    def total(hidden: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(read(hidden).float(), labels, reduction="sum", label_smoothing=smoothing)

    parts = zip(hidden.split(chunk), labels.split(chunk), strict=True)
    return torch.stack([checkpoint(total, *part, use_reentrant=False) for part in parts]).sum() / len(labels)
