"""The duplication task: of a sequence `0w0w` the second half is to be told from the first.

Kitaev et al. 2020 (arXiv 2001.04451), section 5, table 2: a model is trained with full attention or with n rounds of
hashing, and tested with m. There 511 symbols of 127 and 150,000 steps, here 63 of 63 and 1,500, in which a decoder of
one layer learns it all the same.

    lines = duplication(Sizes())            # one for each way to train: (rounds when tested, share that is right)

Shapes: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, ClassVar

import torch
from torch import Tensor

from peftlab.data.batch import Batch
from peftlab.layers.lsh import LSHAttention
from peftlab.models.reformer import ReformerConfig, ReformerDecoder
from peftlab.peft import Full
from peftlab.tasks.language_model import LanguageModel
from peftlab.tasks.next_token import IGNORED
from peftlab.train.asking import ask
from peftlab.train.config import Train
from peftlab.train.loop import Training
from peftlab.train.stop import Stop

FEW = 16
"""tokens of a chunk: a round sees a quarter of all"""
BATCH, LR = 8, 5e-3
VALIDATION, TEST = range(2**30, 2**30 + 16), range(2**31, 2**32)
"""numbers of their sequences, far from those to train on"""
FULL = "full"


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    word: int = 63
    """symbols of w"""
    symbols: int = 64
    """from which they are drawn, with the 0 before it"""
    steps: int = 1500
    tested: int = 64
    """sequences, each with some rotations"""
    rotations: int = 4
    rounds: tuple[int, ...] = (1, 2, 4, 8)


@dataclass(frozen=True)
class Duplicates:
    """Sequences `0w0w` of 2 · half tokens, each w drawn from its number."""

    numbers: range
    half: int
    symbols: int
    fixed: ClassVar[bool] = True

    @property
    def rows(self) -> list[int]:
        return list(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def lengths(self) -> list[int]:
        return [2 * self.half - 1] * len(self)

    def weight(self, rows: Sequence[int]) -> int:
        return len(rows)

    def batch(self, rows: Sequence[int]) -> tuple[Batch, Tensor]:
        """All tokens but the last, and as labels [B, T] the token after each, −100 where w is new."""
        tokens = torch.stack([self.drawn(row) for row in rows]).repeat(1, 2)
        labels = tokens[:, 1:].clone()
        labels[:, : self.half] = IGNORED
        return Batch(tokens[:, :-1], torch.ones_like(labels)), labels

    def drawn(self, row: int) -> Tensor:
        """[half] 0 and w."""
        draw = torch.Generator().manual_seed(self.numbers[row])  # of which torch reads 32 bits
        return torch.cat(
            [torch.zeros(1, dtype=torch.long), torch.randint(1, self.symbols, (self.half - 1,), generator=draw)]
        )


class Duplicate(LanguageModel):
    """The score is the share of symbols that are told rightly."""

    def judge(self, model: Any, inputs: Batch, labels: Tensor) -> Sequence[float]:
        hidden, wanted = self.states(model, inputs, labels)
        right = model.read(hidden).argmax(-1) == wanted
        return right.view(len(labels), -1).float().mean(1).tolist()

    def score(self, judged: Sequence[float], rows: Any) -> float:
        return mean(judged)


def duplication(sizes: Sizes) -> dict[str, list[tuple[float, float]]]:
    """How often symbols are right, trained with full attention or some rounds, tested with each; full stands last."""
    found: dict[str, list[tuple[float, float]]] = {}
    beyond = 2 * max(sizes.rounds)
    for trained in (None, *reversed(sizes.rounds)):
        model = learn(trained, sizes)
        name = f"trained with {FULL if trained is None else trained}"
        found[name] = [(rounds or beyond, test(model, rounds, sizes)) for rounds in (*sizes.rounds, None)]
    return found


def learn(rounds: int | None, sizes: Sizes) -> ReformerDecoder:
    """A decoder of one layer after so many rounds of hashing, or full attention, in each step."""
    torch.manual_seed(0)
    half = sizes.word + 1
    model = ReformerDecoder(
        ReformerConfig(
            vocab=sizes.symbols,
            dim=64,
            layers=1,
            heads=2,
            inner=64,
            dropout=0.0,
            max_length=2 * half,
            axes=(1, 2 * half),  # each position has a vector of its own
            axis_dims=(1, 63),
        )
    )
    look_with(model, rounds)
    rows, held = (Duplicates(part, half, sizes.symbols) for part in (range(sizes.steps * BATCH), VALIDATION))
    how = Train(
        steps=sizes.steps,
        batch=BATCH,
        lr=LR,
        weight_decay=0.0,
        warmup=0.03,
        schedule="cosine",
        evaluations=5,
        precision="fp32",
    )
    training = Training(model.train(), Full(), Duplicate(), rows, held, how)
    while not training.done:
        if training.due:
            training.evaluate(Stop())
        else:
            training.step()
    training.finish()
    return model


def look_with(model: ReformerDecoder, rounds: int | None) -> None:
    """So many rounds of hashing from now on; None: one chunk of all tokens, which is full attention."""
    for module in model.modules():
        if isinstance(module, LSHAttention):
            module.rounds, module.chunk = (1, model.config.max_length) if rounds is None else (rounds, FEW)


def test(model: ReformerDecoder, rounds: int | None, sizes: Sizes) -> float:
    """The mean over rotations, which are the same for all."""
    look_with(model, rounds)
    rows, shares = Duplicates(TEST[: sizes.tested], sizes.word + 1, sizes.symbols), []
    for seed in range(sizes.rotations if rounds else 1):
        model.config = replace(model.config, seed=seed)
        shares.append(mean(ask(model, rows, Duplicate().judge, "fp32")))
    return mean(shares)
