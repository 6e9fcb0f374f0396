"""Probes: a few inputs with the output that an adapter gave for them when it was saved, replayed when it is loaded.

Hashes say that a file is what was written; probes say that what was built from it does what it did.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peftlab.data.batch import Batch
from peftlab.errors import UserError
from peftlab.models.model import Model
from peftlab.peft.attach import activate

TEXTS = ["a probe", "the quick brown fox jumps over the lazy dog, and nothing of it is lost", "…"]
TOLERANCE = 1e-4
"""how far an output may be off, over its size: another number of threads changes the last bits"""


def probe_ids(tokenizer: Any) -> list[list[int]]:
    """The texts as token ids, kept with the adapter, so that its probes do not change with a later version."""
    batch = tokenizer.encode(TEXTS)
    return [row[real].tolist() for row, real in zip(batch.ids, batch.mask, strict=True)]


@torch.no_grad()
def probe_output(model: Model, name: str, ids: list[list[int]]) -> Tensor:
    """What the adapter alone gives in evaluation mode: logits, or without a head the mean hidden state of each row."""
    longest = max(map(len, ids))
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    mask = torch.tensor([[t < len(row) for t in range(longest)] for row in ids])
    training, active = model.training, model.active
    try:
        activate(model, [name])
        out = model.eval()(Batch(padded, mask).to(next(model.parameters()).device))
    finally:
        activate(model, active)
        model.train(training)
    if out.logits is not None:
        return out.logits.float().cpu()
    real = mask[..., None].to(out.hidden.device)
    return ((out.hidden * real).sum(1) / real.sum(1)).float().cpu()


def replay(model: Model, name: str, ids: list[list[int]], expected: Tensor, folder: Path) -> None:
    """The adapter gives for its probes what it gave when it was saved."""
    got = probe_output(model, name, ids)
    off = float("inf")
    if got.shape == expected.shape:
        off = float((got - expected).abs().max() / expected.abs().max().clamp(min=1.0))
    if not off <= TOLERANCE:  # NaN is not
        raise UserError(
            f"{folder} gives another output for its probes than when it was saved (off by {off:.1e}): save it again"
        )
