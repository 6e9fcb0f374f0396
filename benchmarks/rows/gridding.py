"""A comparison of eight methods with two seeds: `peftlab compare` against the same sixteen runs one after the other.

A run has as many steps on the same rows on both sides, is scored three times on its validation part, and is tested.
Ours has as many runs at once as there are threads, each with one; the peer's have all threads, and read the data once.
"""

from __future__ import annotations

import math
import tempfile
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import torch

from benchmarks.contestant import Contestant, Repeated
from benchmarks.roofline import predicting, training
from benchmarks.row import Settings
from peftlab.data.examples import Examples, limit, split_stratified
from peftlab.data.glue import load_task
from peftlab.data.sources import fetch_base
from peftlab.train.precision import pick_precision

METHODS = ("lora", "adapter", "prompt", "p_tuning", "prefix", "full", "head", "bitfit")
BATCH, VALIDATION, EVALUATIONS, SEEDS = 32, 0.1, 3, 2


class Grid(Repeated):
    """Nothing is warmed up: a comparison starts from nothing, too."""

    def warm_up(self) -> None:
        pass


def build(side: str, asked: dict[str, Any], settings: Settings) -> Contestant:
    """`steps` steps a run, tested on `tested` rows."""
    return (ours if side == "ours" else theirs)(side, asked["steps"], asked["tested"], settings)


def ours(side: str, steps: int, tested: int, settings: Settings) -> Contestant:
    import peftlab
    from peftlab.compare.compare import Question, compare
    from peftlab.tasks.classify import encode

    question = Question(
        tasks=[{"name": settings.task}],
        methods=METHODS,
        seeds=SEEDS,
        base=settings.base,
        steps=steps,
        batch=BATCH,
        test_limit=tested,
        workers=settings.threads,
        overrides=(
            "train.threads=1",
            "train.pool=first",
            f"train.precision={settings.precision}",
            "p_tuning.hidden=128",
        ),
    )

    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            done = compare(question, Path(folder) / "race")
            assert len(list(Path(folder).rglob("result.json"))) >= len(METHODS) * SEEDS, done

    base, (rows, tests) = peftlab.load(settings.base), parts(steps, tested, settings)
    train, held, *seen = (
        encode(base.tokenizer, part, 128).lengths() for part in (*split_stratified(rows, VALIDATION, 0), *tests)
    )
    scored = EVALUATIONS * predicting(base.config, held) + sum(predicting(base.config, test) for test in seen)
    flops = SEEDS * sum(training(base.config, train, method) + scored for method in METHODS)
    return Grid(work, flops=flops, precision=pick_precision(settings.precision, torch.device("cpu")))


def parts(steps: int, tested: int, settings: Settings) -> tuple[Examples, list[Examples]]:
    """The rows that a run sees once, with those that it is chosen by; and those of each test."""
    data = load_task(settings.task)
    rows = limit(data.train, math.ceil(steps * BATCH / (1 - VALIDATION)), 0)
    return rows, [limit(part, tested, 0) for part in data.tests.values()]


def theirs(side: str, steps: int, tested: int, settings: Settings) -> Contestant:
    import transformers

    from benchmarks import peer

    torch.set_num_threads(settings.threads)
    folder, how = fetch_base(settings.base), peer.how(side, settings)

    def run(method: str, seed: int, rows: Examples, tests: list[Examples]) -> None:
        transformers.set_seed(seed)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = peer.classifier(folder, len(set(rows.labels)), method, how)
        train, held = split_stratified(rows, VALIDATION, seed)
        loop = peer.Loop(model, tokenizer, peer.tokenised(tokenizer, train), how, BATCH, steps)
        every = math.ceil(steps / EVALUATIONS)
        for number, batch in enumerate(islice(chain.from_iterable(repeat(loop.loader)), steps), 1):
            loop.step(batch)
            if number % every == 0 or number == steps:
                answer(model, tokenizer, held.texts)
        for test in tests:
            answer(model, tokenizer, test.texts)

    def answer(model: Any, tokenizer: Any, texts: Any) -> None:
        model.eval()
        peer.labels_of(model, tokenizer, texts, how)
        model.train()

    def work() -> None:
        rows, tests = parts(steps, tested, settings)
        for method in METHODS:
            for seed in range(SEEDS):
                run(method, seed, rows, tests)

    return Grid(work)
