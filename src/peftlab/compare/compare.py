"""A comparison from end to end: check, show the first rows, run the grid, gather.

peftlab compare --task reviews --methods lora,prefix --seeds 2 --out comparison
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peftlab.compare.budget import parse, spend
from peftlab.compare.gather import gather
from peftlab.compare.grid import Job, plan, run_grid
from peftlab.compare.results import Comparison
from peftlab.compare.watch import watching
from peftlab.data.examples import Labelled
from peftlab.data.files import make_folder
from peftlab.data.glue import first_rows
from peftlab.data.sources import fetch_base
from peftlab.errors import UserError, unknown
from peftlab.peft import METHODS
from peftlab.train.config import Config
from peftlab.train.lock import locked
from peftlab.train.run import finished, load_data


@dataclass(frozen=True)
class Question:
    """What is to be compared."""

    tasks: Sequence[dict[str, Any]]
    """the settings of each task: its name, and of a file its columns"""
    methods: Sequence[str] | None = None
    """None: those that a comparison has by default"""
    seeds: int = 2
    base: str = "minilm"
    steps: int = 300
    """optimizer steps of each run"""
    epochs: float | None = None
    """passes over the training rows, instead of steps"""
    limit: int | None = None
    """training rows; None: as many as the steps see"""
    test_limit: int | None = None
    """test rows"""
    budget: str | None = None
    """seconds=60 or params=50000, instead of the same number of steps"""
    overrides: Sequence[str] = ()
    """section.key=value, on top of all the rest"""
    workers: int | None = None
    """runs at once; None: as many as cores"""
    quick: bool = False
    """a first look, which the verdict says"""

    def shortened(self) -> Question:
        """The same for a first look."""
        return replace(self, seeds=1, steps=min(self.steps, 40), test_limit=400, quick=True)

    @property
    def at_once(self) -> int:
        """How many runs."""
        return self.workers or os.cpu_count() or 1

    def jobs(self, out: Path) -> list[Job]:
        """The runs, each with its complete configuration."""
        methods = self.methods or [name for name, method in METHODS.items() if method.by_default]
        for name in methods:
            if name not in METHODS:
                raise unknown("method", name, METHODS)
        stems = [Path(task["name"]).stem for task in self.tasks]
        for stem in stems:
            if stems.count(stem) > 1:
                raise UserError(f"two tasks are called {stem}: rename a file, or compare them one after the other")
        if self.budget is not None:
            parse(self.budget)
        length = {"steps": self.steps, "batch": 8} if self.epochs is None else {"epochs": self.epochs}
        settings = {
            "base": self.base,
            "task": {"limit": self.limit, "test_limit": self.test_limit},
            "train": {"threads": max(1, (os.cpu_count() or 1) // self.at_once), "evaluations": 3, **length},
        }

        def settle(config: Config) -> list[str]:
            if self.budget is not None:
                return spend(self.budget, config, out)
            if config.train.steps is None or config.task.limit is not None:
                return []
            seen = config.train.steps * config.train.batch
            return [f"task.limit={math.ceil(seen / (1 - config.train.validation))}"]

        return plan(methods, self.tasks, self.seeds, out, settings, self.overrides, settle)


def compare(question: Question, out: Path, command: str = "") -> Comparison:
    """Run what is not done yet; gives what the runs in `out` make together."""
    make_folder(out)
    with locked(out):
        fetch_base(question.base)
        jobs = question.jobs(out)
        data: dict[str, Labelled] = {}
        for job in jobs:
            name = job.config.task.name
            if name not in data:
                data[name] = load_data(job.config)
                show(data[name])
            finished(job.folder, job.config, job.config.fingerprint(data[name].fingerprint()))
        with watching() as watch:
            run_grid(jobs, question.at_once, watch, out)
        if not any(job.state == "done" for job in jobs):
            raise UserError(f"no run ended well; the first said: {jobs[0].note}")
        return gather(jobs, data, command, question.quick)


def show(data: Labelled) -> None:
    """What the rows look like, before anything runs."""
    print(f"{data.name}: {data.about}", file=sys.stderr)
    for text, label in first_rows(data):
        shown = text if isinstance(text, str) else " ⇥ ".join(text)
        print(f"  {label}: {shown[:100]}{'…' if len(shown) > 100 else ''}", file=sys.stderr)
