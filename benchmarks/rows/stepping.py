"""Steps of LoRA on rows of one length, made up: for the memory that they take, and their time by length and batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.contestant import Contestant, Repeated
from benchmarks.roofline import training
from benchmarks.row import Settings
from benchmarks.rows.training import Given, configured, trained_on
from peftlab.data.examples import Examples, Labelled
from peftlab.data.sources import fetch_base

LABELS = ("bad", "good")


def build(side: str, asked: dict[str, Any], settings: Settings) -> Contestant:
    """`steps` steps of `batch` rows with `tokens` tokens each."""
    tokens, batch, steps = asked["tokens"], asked["batch"], asked["steps"]
    data = made_up(batch * 4, tokens)
    model, step, told = (ours if side == "ours" else theirs)(side, data, tokens, batch, settings)
    return Repeated(step, model, times=steps, tokens=batch * tokens, **told)


def made_up(rows: int, tokens: int) -> Labelled:
    """Rows with so many tokens each, and one more of each class, by which nothing is chosen."""
    count = rows + len(LABELS)
    texts = [" ".join(["film"] * (tokens - 2))] * count
    part = Examples(texts, [row % 2 for row in range(count)], list(range(1, count + 1)))
    return Labelled("made-up", part, {}, LABELS, "accuracy", "made up")


Step = Callable[[], object]


def ours(side: str, data: Labelled, tokens: int, batch: int, settings: Settings) -> tuple[Any, Step, dict[str, Any]]:
    config = configured("lora", settings, length=tokens, steps=1_000_000, batch=batch)
    new = Given(config, data).prepare()
    new.model.train()
    flops = training(new.model.config, [tokens] * batch, "lora")
    return new.model, new.step, {"flops": flops, "precision": new.precision}


def theirs(side: str, data: Labelled, tokens: int, batch: int, settings: Settings) -> tuple[Any, Step, dict[str, Any]]:
    import transformers

    from benchmarks import peer

    torch.manual_seed(0)
    torch.set_num_threads(settings.threads)
    folder, how = fetch_base(settings.base), peer.how(side, settings)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = peer.classifier(folder, len(LABELS), "lora", how)
    rows = peer.tokenised(tokenizer, trained_on(data), tokens)
    assert {len(row["input_ids"]) for row in rows} == {tokens}
    loop = peer.Loop(model, tokenizer, rows, how, batch, steps=1_000_000)

    def batches() -> Iterator[Any]:
        while True:
            yield from loop.loader

    given = batches()
    return model, lambda: loop.step(next(given)), {}
