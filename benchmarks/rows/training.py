"""Training on rows of a task: ours is `peftlab train`'s own way from a configuration to trained weights.

Rows, batch size and head are the same on all sides; texts are tokenised before. In each turn a model is trained anew,
so that nothing that an earlier turn computed (such as the states of a frozen part) is there already.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.contestant import Contestant, Turn
from benchmarks.roofline import training
from benchmarks.row import Settings
from peftlab.data.examples import Examples, Labelled, limit, split_stratified
from peftlab.data.glue import load_task
from peftlab.data.sources import fetch_base
from peftlab.train.checkpoint import Checkpoints
from peftlab.train.classifying import Classifying
from peftlab.train.config import Config, make_config
from peftlab.train.loop import Training, train
from peftlab.train.stop import Stop

BATCH, WARM_UP, VALIDATION = 32, 3, 1e-4
"""rows a step, steps, and a share of the rows that comes to one of each class: evaluation is not what is raced"""


def build(side: str, asked: dict[str, Any], settings: Settings) -> Contestant:
    data = part_of(settings.task, asked["rows"])
    if side == "ours":
        return Ours(data, asked["method"], asked["epochs"], settings)
    return Theirs(side, data, asked["method"], asked["epochs"], settings)


def part_of(task: str, rows: int) -> Labelled:
    """So many rows of a task to train on, and one more of each class, by which nothing is chosen."""
    data = load_task(task)
    return replace(data, train=limit(data.train, rows + len(data.labels), seed=0), tests={})


def trained_on(data: Labelled) -> Examples:
    """The rows of a part that training sees."""
    return split_stratified(data.train, VALIDATION, 0)[0]


def method_settings(method: str, base: str) -> dict[str, Any]:
    """A method by name as a configuration has it; where its peer has no default of the same size, of that size."""
    if method == "p_tuning":
        return {"name": method, "hidden": 128}
    if method == "top2":
        layers = json.loads((fetch_base(base) / "config.json").read_text())["num_hidden_layers"]
        return {"name": "lora", "layers": [layers - 2, layers - 1]}
    return {"name": method}


def configured(method: str, settings: Settings, length: int = 128, **train: Any) -> Config:
    """What `peftlab train` is told; the head reads the first token through the base's pooler, as the peer's does."""
    fixed = {"pool": "first", "evaluations": 1, "validation": VALIDATION, "checkpoint": 1e9}
    shared = {"threads": settings.threads, "precision": settings.precision}
    content = {
        "base": settings.base,
        "task": {"name": settings.task, "max_length": length},
        "method": method_settings(method, settings.base),
        "train": fixed | shared | train,
    }
    return make_config(content, "the benchmark")


class Given(Classifying):
    """Work on rows that are there already."""

    def __init__(self, config: Config, data: Labelled) -> None:
        self.given = data
        super().__init__(config)

    def read(self) -> Labelled:
        return self.given


class Ours(Contestant):
    """A whole training by `peftlab.train.loop.train`."""

    def __init__(self, data: Labelled, method: str, epochs: int, settings: Settings) -> None:
        self.method, self.epochs = method, epochs
        self.work = Given(configured(method, settings, epochs=epochs, batch=BATCH), data)
        self.training: Training | None = self.work.prepare()
        self.model = self.training.model

    def warm_up(self) -> None:
        assert self.training is not None
        self.training.model.train()
        for _ in range(min(WARM_UP, self.training.steps)):
            self.training.step()

    def turn(self) -> Turn:
        self.training = self.model = None
        del self.work.base  # or there would be two models at once
        self.training = new = self.work.prepare()
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            done = train(new, Checkpoints(Path(folder), "race"), Stop(), lambda line: None)
            seconds = time.perf_counter() - start
        flops = training(new.model.config, new.lengths, self.method, self.epochs)
        return Turn(seconds, done.tokens, flops, new.precision)


class Theirs(Contestant):
    """The same in the peer's loop."""

    def __init__(self, side: str, data: Labelled, method: str, epochs: int, settings: Settings) -> None:
        import transformers

        from benchmarks import peer

        torch.manual_seed(0)
        torch.set_num_threads(settings.threads)
        folder, self.how, self.epochs = fetch_base(settings.base), peer.how(side, settings), epochs
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.data = peer.tokenised(self.tokenizer, trained_on(data))
        self.model = peer.classifier(folder, len(data.labels), method, self.how)
        self.first = self.loop()  # what the first optimizer imports counts as loaded, as on our side

    def loop(self) -> Any:
        """A new optimizer and schedule."""
        from benchmarks import peer

        steps = self.epochs * -(-len(self.data) // BATCH)
        return peer.Loop(self.model, self.tokenizer, self.data, self.how, BATCH, steps)

    def warm_up(self) -> None:
        for batch in islice(self.first.loader, WARM_UP):
            self.first.step(batch)

    def turn(self) -> Turn:
        loop = self.loop()
        start = time.perf_counter()
        for _ in range(self.epochs):
            for batch in loop.loader:
                loop.step(batch)
        seconds = time.perf_counter() - start
        return Turn(seconds, self.epochs * sum(len(row["input_ids"]) for row in self.data))
