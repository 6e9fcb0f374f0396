"""Writing with the Marian of `benchmarks/generate.py`, greedily or by beam search: all sides write the same tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.contestant import Contestant, Repeated
from benchmarks.generate import SOURCE, WRITTEN, marian, mine, theirs
from benchmarks.roofline import writing
from benchmarks.row import Settings
from peftlab.data.batch import Batch
from peftlab.generate import Beam, Greedy
from peftlab.models.pretrained import load_checkpoint

VOCAB = 8000


def build(side: str, asked: dict[str, Any], settings: Settings) -> Contestant:
    torch.manual_seed(0)
    torch.set_num_threads(settings.threads)
    beams, rows = asked["beams"], asked["batch"]
    peer: Any = marian(asked["dim"], asked["layers"], VOCAB)
    ids = torch.randint(3, VOCAB, (rows, SOURCE), generator=torch.Generator().manual_seed(1))
    work: Callable[[], list[list[int]]] = lambda: theirs(peer, ids, beams)  # noqa: E731
    model = peer
    if side == "best":
        work = torch.inference_mode()(work)
    elif side == "ours":
        with tempfile.TemporaryDirectory() as folder:
            peer.save_pretrained(folder)
            model, _, _ = load_checkpoint(Path(folder))
        batch, how = Batch(ids, torch.ones_like(ids)), Greedy() if beams == 1 else Beam(beams)
        work = lambda: mine(model, batch, how)  # noqa: E731
    flops = writing(asked["dim"], asked["layers"], VOCAB, rows * SOURCE, rows * beams * WRITTEN)
    return Repeated(work, model, checked=True, tokens=rows * WRITTEN, flops=flops)
