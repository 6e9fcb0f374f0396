"""What a finished run is good for: answering texts, and going elsewhere as an adapter or a merged checkpoint."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from peftlab.data.batch import Batch
from peftlab.data.parallel import Pairs
from peftlab.errors import UserError, unknown
from peftlab.generate.search import Written
from peftlab.models.base import Base
from peftlab.peft.attach import merge
from peftlab.peft.formats import save_adapter
from peftlab.peft.stock import why_not_stock
from peftlab.tasks.translate import Encoded, encode
from peftlab.train.classifying import ADAPTER, open_run
from peftlab.train.config import Config, read_config_file
from peftlab.train.order import sorted_batches
from peftlab.train.translating import open_translator, search, translate

CHUNK = 256
"""lines read before the first are answered"""
MARKS = 2
"""tokens of a source without words: its start and its end"""

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


class Labeller:
    """A finished classifier: for each text its label, the probability of each label, and the logits."""

    def __init__(self, folder: Path) -> None:
        self.base, config = open_run(folder)
        self.names = self.base.model.adapters[ADAPTER].head.names
        self.length = min(config.task.max_length, self.base.room)

    def read(self, lines: list[Line]) -> Batch:
        """The tokens of the texts; what is too long loses its end."""
        return self.base.tokenizer.encode(lines, max_length=self.length, truncate=True)

    @torch.no_grad()
    def answer(self, lines: list[Line], before: int) -> Iterator[Answer]:
        """An answer for each line; `before` them so many were read."""
        logits = self.base.model(self.read(lines), logits_only=True).logits
        for text, row in zip(lines, logits, strict=True):
            probabilities = dict(zip(self.names, row.softmax(0).tolist(), strict=True))
            label = self.names[int(row.argmax())]
            yield {"text": text, "label": label, "probabilities": probabilities, "logits": row.tolist()}


class Translator:
    """A finished translator: for each text its translation; a text without words stays empty."""

    def __init__(self, folder: Path) -> None:
        self.model, self.tokenizer, self.asked = open_translator(folder)

    def answer(self, lines: list[Line], before: int) -> Iterator[Answer]:
        """An answer for each line; `before` them so many were read."""
        for line, best in zip(lines, self.write(self.read(lines, before)), strict=True):
            yield {"text": line, "translation": self.text(best)}

    def read(self, lines: list[Line], before: int) -> Encoded:
        """The tokens of the texts; of one that is empty or too long it is told by its line."""
        texts = [(line if isinstance(line, str) else " ".join(line)).strip() for line in lines]
        part = encode(
            self.tokenizer, Pairs(texts, texts, list(range(before + 1, before + 1 + len(texts)))), sys.maxsize
        )
        for i, ids in enumerate(part.sources):
            if len(ids) == MARKS:
                warnings.warn(f"line {part.rows[i]} is empty: so is its translation", stacklevel=2)
            elif len(ids) > self.asked.max_length:
                problem = f"line {part.rows[i]} has {len(ids)} tokens and the model reads {self.asked.max_length}"
                warnings.warn(f"{problem}: its end is left out", stacklevel=2)
                part.sources[i] = [*ids[: self.asked.max_length - 1], ids[-1]]
        return part

    def write(self, part: Encoded) -> list[Written | None]:
        """Their translations; None for a text without words."""
        found: list[Written | None] = [None] * len(part)
        left = [i for i, ids in enumerate(part.sources) if len(ids) > MARKS]
        for rows in sorted_batches([len(part.sources[i]) for i in left]):
            places = [left[row] for row in rows]
            written = translate(self.model, part.batch(places)[0].source, search(self.asked), self.asked.max_length)
            for place, best in zip(places, written, strict=True):
                found[place] = best
        return found

    def text(self, best: Written | None) -> str:
        """A translation in one line, so that there are as many lines as were given."""
        return "" if best is None else " ".join(self.tokenizer.decode(best.tokens).splitlines())


def open_finished(folder: Path) -> Labeller | Translator:
    """What a finished run trained, ready to answer."""
    if not (folder / "result.json").is_file():
        raise UserError(f"{folder} is not a finished run: it has no result.json")
    return (Labeller if read_config_file(folder / "config.toml").translate is None else Translator)(folder)


def answer_lines(folder: Path, lines: Iterator[Line]) -> Iterator[Answer]:
    """What a finished run says to each text, in their order: a label, or a translation."""
    trained = open_finished(folder)
    number = 0
    while chunk := list(islice(lines, CHUNK)):
        yield from trained.answer(chunk, number)
        number += len(chunk)


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
