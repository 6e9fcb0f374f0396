"""Probes: a few inputs with the output that an adapter gave for them when it was saved, replayed when it is loaded.

Hashes say that a file is what was written; probes say that what was built from it does what it did. What is kept of
a model that reads are its logits, of one that writes the scores of the next token, once it has written a little: what
only acts between two tokens of a decoder must act, too. A model that reads images is given the texts' bytes as pixels.

Shapes: B probes, T tokens of the longest, D width, V tokens of the vocabulary; C channels, S × S pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peftlab.data.batch import Batch, Images
from peftlab.errors import UserError
from peftlab.models.base import Base
from peftlab.models.model import Model
from peftlab.models.writer import Writer
from peftlab.peft.attach import activate

TEXTS = ["a probe", "the quick brown fox jumps over the lazy dog, and nothing of it is lost", "…"]
TOLERANCE = 1e-4
"""how far an output may be off, over its size: another number of threads changes the last bits"""
WRITTEN = 3
"""tokens that a model has written before its scores are kept"""


def probe_vocabulary(base: Base) -> int:
    """How many numbers a probe may be made of: tokens, or shades of a pixel."""
    return 256 if base.model.reads_images else base.tokenizer.vocab_size


def probe_ids(base: Base, name: str) -> list[list[int]]:
    """The texts as token ids, kept with the adapter, so that its probes do not change with a later version."""
    if base.model.reads_images:
        return [list(text.encode()) for text in TEXTS]
    batch = base.tokenizer.encode(TEXTS)
    with alone(base.model, name):
        room = None if base.room is None else base.room - WRITTEN
    return [row[real].tolist()[:room] for row, real in zip(batch.ids, batch.mask, strict=True)]


@torch.no_grad()
def probe_output(model: Model, name: str, ids: list[list[int]]) -> Tensor:
    """What the adapter alone gives in evaluation mode for each probe."""
    device = next(model.parameters()).device
    with alone(model, name):
        if model.reads_images:
            return read(model, probe_images(model, ids).to(device)).float().cpu()
        batch = probe_batch(ids).to(device)
        return (written(model, batch) if isinstance(model, Writer) else read(model, batch)).float().cpu()


def probe_batch(ids: list[list[int]]) -> Batch:
    """Rows of token ids, padded."""
    longest = max(map(len, ids))
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    mask = torch.tensor([[t < len(row) for t in range(longest)] for row in ids])
    return Batch(padded, mask)


def probe_images(model: Model, ids: list[list[int]]) -> Images:
    """Rows of shades, over and over until an image [C, S, S] is full, from −1 to 1."""
    C, S = model.config.channels, model.config.image
    full = [torch.tensor(row).repeat(C * S * S // len(row) + 1)[: C * S * S] for row in ids]
    return Images(torch.stack(full).reshape(-1, C, S, S) / 127.5 - 1)


def read(model: Any, batch: Batch | Images) -> Tensor:
    """What the head keeps of its logits, or without a head the mean hidden state [B, D]."""
    out = model(batch)
    if out.logits is not None:
        return model.sites()[model.head_address].acting(None)[-1].probed(out.logits)
    real = batch.mask[..., None] if isinstance(batch, Batch) else torch.ones_like(out.hidden[..., :1])
    return (out.hidden * real).sum(1) / real.sum(1)


def written(model: Writer, batch: Batch) -> Tensor:
    """The scores [B, V] of the next token, after the probe's own first ones were written."""
    memory, scores = model.begin(batch)
    for tokens in batch.ids.T[:WRITTEN]:
        scores = model.next(tokens, memory)
    return scores


@contextmanager
def alone(model: Model, name: str) -> Iterator[None]:
    """Only this adapter acts, in evaluation mode."""
    training, active = model.training, model.active
    try:
        activate(model, [name])
        model.eval()
        yield
    finally:
        activate(model, active)
        model.train(training)


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
