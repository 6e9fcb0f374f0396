"""What a finished run is good for: answering texts, and going elsewhere as an adapter or a merged checkpoint."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from peftlab.data.parallel import Pairs
from peftlab.errors import UserError, unknown
from peftlab.models.base import Base
from peftlab.peft.attach import merge
from peftlab.peft.formats import save_adapter
from peftlab.peft.stock import why_not_stock
from peftlab.tasks.translate import encode
from peftlab.train.classifying import ADAPTER, open_run
from peftlab.train.config import Config, read_config_file
from peftlab.train.order import sorted_batches
from peftlab.train.translating import open_translator, search, translate

CHUNK = 256
"""lines read before the first are answered"""

Line = str | tuple[str, str]
Answer = dict[str, Any]


def read_lines(texts: Sequence[str] | None, file: Path | None, pair: bool) -> Iterator[Line]:
    """Texts from arguments, a file, or standard input, in that order; with `pair` two texts with a tab between them."""
    if file is not None and texts:
        raise UserError(f"texts and --file {file} are given: give one of them")
    if file is not None and not file.is_file():
        raise UserError(f"{file} is missing: give a file with one text a line")
    given = [] if file is not None or texts is None or list(texts) == ["-"] else list(texts)
    for number, line in enumerate(given or decoded_lines(file), 1):
        parts = line.split("\t")
        if pair and len(parts) != 2:
            raise UserError(f"line {number} has {len(parts)} texts: with --pair each has two, with a tab between them")
        yield (parts[0], parts[1]) if pair else line


def decoded_lines(file: Path | None) -> Iterator[str]:
    """The lines of a file or of standard input; bytes that are no UTF-8 are told and become U+FFFD."""
    with sys.stdin.buffer if file is None else file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                warnings.warn(f"line {number} is not UTF-8 (byte {error.start}): read without it", stacklevel=2)
                yield line.decode("utf-8", "replace").rstrip("\r\n")


def answer_lines(folder: Path, lines: Iterator[Line]) -> Iterator[Answer]:
    """What a finished run says to each text, in their order: a label, or a translation."""
    if not (folder / "result.json").is_file():
        raise UserError(f"{folder} is not a finished run: it has no result.json")
    config = read_config_file(folder / "config.toml")
    answer = (labeller if config.translate is None else translator)(folder)
    number = 0
    while chunk := list(islice(lines, CHUNK)):
        yield from answer(chunk, number)
        number += len(chunk)


def labeller(folder: Path) -> Callable[[list[Line], int], Iterator[Answer]]:
    """For each text its label, the probability of each label, and the logits."""
    base, config = open_run(folder)
    names = base.model.adapters[ADAPTER].head.names
    length = min(config.task.max_length, base.room)

    @torch.no_grad()
    def answer(chunk: list[Line], before: int) -> Iterator[Answer]:
        batch = base.tokenizer.encode(chunk, max_length=length, truncate=True)
        logits = base.model(batch, logits_only=True).logits
        for text, row in zip(chunk, logits, strict=True):
            probabilities = dict(zip(names, row.softmax(0).tolist(), strict=True))
            label = names[int(row.argmax())]
            yield {"text": text, "label": label, "probabilities": probabilities, "logits": row.tolist()}

    return answer


def translator(folder: Path) -> Callable[[list[Line], int], Iterator[Answer]]:
    """For each text its translation and the score that the search gave it; a text without words stays empty."""
    model, tokenizer, asked = open_translator(folder)
    how = search(asked)

    def answer(chunk: list[Line], before: int) -> Iterator[Answer]:
        texts = [(line if isinstance(line, str) else " ".join(line)).strip() for line in chunk]
        part = encode(tokenizer, Pairs(texts, texts, list(range(before + 1, before + 1 + len(texts)))), sys.maxsize)
        found: dict[int, str] = {}
        for i, (text, ids) in enumerate(zip(texts, part.sources, strict=True)):
            if not text:
                warnings.warn(f"line {part.rows[i]} is empty: so is its translation", stacklevel=2)
                found[i] = ""
            elif len(ids) > asked.max_length:
                problem = f"line {part.rows[i]} has {len(ids)} tokens and the model reads {asked.max_length}"
                warnings.warn(f"{problem}: its end is left out", stacklevel=2)
                part.sources[i] = [*ids[: asked.max_length - 1], ids[-1]]
        left = [i for i in range(len(texts)) if i not in found]
        for rows in sorted_batches([len(part.sources[i]) for i in left]):
            places = [left[row] for row in rows]
            written = translate(model, part.batch(places)[0].source, tokenizer, how, asked.max_length)
            found |= dict(zip(places, written, strict=True))
        for i, line in enumerate(chunk):
            yield {"text": line, "translation": " ".join(found[i].splitlines())}  # as many lines as were given

    return answer


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
