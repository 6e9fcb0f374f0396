"""What a finished run is good for: labelling texts, and going elsewhere as an adapter or a merged checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from peftlab.errors import UserError, unknown
from peftlab.models.base import Base
from peftlab.peft.attach import merge
from peftlab.peft.formats import save_adapter
from peftlab.peft.stock import why_not_stock
from peftlab.train.config import Config
from peftlab.train.run import ADAPTER, open_run

CHUNK = 256
"""lines read before the first are answered"""

Line = str | tuple[str, str]


def read_lines(texts: Sequence[str] | None, file: Path | None, pair: bool) -> Iterator[Line]:
    """Texts from arguments, a file, or standard input, in that order; with `pair` two texts with a tab between them."""
    if file is not None and texts:
        raise UserError(f"texts and --file {file} are given: give one of them")
    if file is not None:
        if not file.is_file():
            raise UserError(f"{file} is missing: give a file with one text a line")
        source: Iterator[str] | list[str] = iter(file.read_text(encoding="utf-8").splitlines())
    else:
        source = list(texts) if texts and list(texts) != ["-"] else (line.rstrip("\n") for line in sys.stdin)
    for number, line in enumerate(source, 1):
        parts = line.split("\t")
        if pair and len(parts) != 2:
            raise UserError(f"line {number} has {len(parts)} texts: with --pair each has two, with a tab between them")
        yield (parts[0], parts[1]) if pair else line


@torch.no_grad()
def label_texts(folder: Path, lines: Iterator[Line]) -> Iterator[dict[str, Any]]:
    """For each text its label, the probability of each label, and the logits."""
    base, config = open_run(folder)
    names = base.model.adapters[ADAPTER].head.names
    length = min(config.task.max_length, base.room)
    chunk: list[Line] = []

    def answers() -> Iterator[dict[str, Any]]:
        batch = base.tokenizer.encode(chunk, max_length=length, truncate=True)
        logits = base.model(batch, logits_only=True).logits
        for text, row in zip(chunk, logits, strict=True):
            probabilities = dict(zip(names, row.softmax(0).tolist(), strict=True))
            label = names[int(row.argmax())]
            yield {"text": text, "label": label, "probabilities": probabilities, "logits": row.tolist()}

    for line in lines:
        chunk.append(line)
        if len(chunk) == CHUNK:
            yield from answers()
            chunk = []
    if chunk:
        yield from answers()


def export_run(folder: Path, out: Path, to: str) -> None:
    """Write a run's adapter for stock `peft`, or its base with the adapter merged into it and its head.

    A head that pools the mean is written as `sentence-transformers` reads it, another as `transformers` does.
    """
    if to not in ("peft", "merged"):
        raise unknown("target of an export", to, ("peft", "merged"))
    base, config = open_run(folder)
    why = why_not_exported(base, config)
    if (reason := why.pop(to)) is not None:
        ((other, obstacle),) = why.items()
        instead = f"use --to {other}" if obstacle is None else f"load {folder / 'adapter'} with peftlab.load_adapter"
        raise UserError(f"{folder} can't be exported with --to {to}: {reason}; as it is, {instead}")
    if to == "peft":
        save_adapter(base, ADAPTER, out, to="peft")
    else:
        if config.build_method().kinds:
            merge(base.model, ADAPTER)
        base.save(out, head=ADAPTER, max_length=min(config.task.max_length, base.config.max_length))


def why_not_exported(base: Base, config: Config) -> dict[str, str | None]:
    """Why a run can't go to each target; None if it can."""
    method, head = config.build_method(), base.model.head_address
    additions = [addition for key, addition in base.model.additions(ADAPTER).items() if key != head]
    mergeable = all(addition.mergeable for addition in additions)
    nothing = f"{method.name} puts nothing into the base that an adapter could hold"
    return {
        "peft": why_not_stock(base, base.model.adapters[ADAPTER]) if method.kinds else nothing,
        "merged": None if mergeable else f"{method.name} is no change of the base's weights",
    }
