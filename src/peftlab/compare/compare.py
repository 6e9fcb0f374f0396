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
from peftlab.compare.grid import Job, make_ready, plan, run_grid
from peftlab.compare.results import Comparison
from peftlab.compare.watch import watching
from peftlab.data.files import make_folder, writing_to
from peftlab.data.sources import fetch_base
from peftlab.errors import UserError, unknown
from peftlab.models.base import base_fingerprint, load
from peftlab.models.model import Model
from peftlab.peft import METHODS
from peftlab.peft.attach import build, no_place
from peftlab.train.config import TASKS, Config
from peftlab.train.lock import locked
from peftlab.train.run import finished, open_work, settle
from peftlab.train.work import Comparable

SHOWN = 3
"""training rows that are shown first"""
TESTED = 1500
"""test rows of a comparison by steps: enough for ± 2.5 points, and testing takes an eighth of the time"""


@dataclass(frozen=True)
class Question:
    """What is to be compared."""

    tasks: Sequence[dict[str, Any]]
    """the settings of each task: its name, and of a file its columns"""
    kind: str = "task"
    """what is asked of them, a section of a configuration: task, tag, parse or images"""
    methods: Sequence[str] | None = None
    """None: those that a comparison has by default"""
    seeds: int = 2
    base: str = "minilm"
    steps: int = 300
    """optimizer steps of each run"""
    batch: int = 6
    """rows a step: few, so that 300 steps of seven methods with two seeds fit into ten minutes on two cores"""
    epochs: float | None = None
    """passes over the training rows, instead of steps"""
    limit: int | None = None
    """training rows; None: as many as the steps see"""
    test_limit: int | None = None
    """test rows; None: all where passes over the training rows are asked for, else `TESTED`"""
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
        return replace(self, seeds=1, steps=min(self.steps, 60), batch=8, epochs=None, test_limit=400, quick=True)

    @property
    def at_once(self) -> int:
        """How many runs."""
        return self.workers or os.cpu_count() or 1

    @property
    def threads(self) -> int:
        """Each run's share of the cores."""
        return max(1, (os.cpu_count() or 1) // self.at_once)

    @property
    def named(self) -> Sequence[str]:
        """The methods to compare."""
        return self.methods or [name for name, method in METHODS.items() if method.by_default]

    def jobs(self, out: Path) -> list[Job]:
        """The runs, each with what its configuration is to say."""
        methods = self.named
        self.check(methods)
        length = {"steps": self.steps, "batch": self.batch} if self.epochs is None else {"epochs": self.epochs}
        tested = TESTED if self.test_limit is None and self.epochs is None else self.test_limit
        task: dict[str, Any] = {"limit": self.limit, "test_limit": tested}
        settings = {"base": self.base, self.kind: task, "train": {"evaluations": 3, **length}}
        settled: dict[str, list[str]] = {}

        def within_budget(config: Config) -> list[str]:
            key = f"{config.method['name']} {getattr(config, self.kind).name}"
            if key not in settled:
                train = config.train.model_copy(update={"threads": config.train.threads or self.threads})
                timed = config.model_copy(update={"train": train})
                settled[key] = [] if self.budget is None else spend(self.budget, timed, out)
            return settled[key]

        drafts = plan(methods, self.kind, self.tasks, 1, out, settings, self.overrides, within_budget)
        if self.limit is None and all(job.config.train.steps for job in drafts):
            task["limit"] = max(rows_seen(job.config) for job in drafts)  # the same rows for every method
        return plan(methods, self.kind, self.tasks, self.seeds, out, settings, self.overrides, within_budget)

    def check(self, methods: Sequence[str]) -> None:
        """The mistakes that no single configuration shows."""
        for name in methods:
            if name not in METHODS:
                raise unknown("method", name, METHODS)
        for what, names in (("method", methods), ("task", [Path(task["name"]).stem for task in self.tasks])):
            for name in names:
                if list(names).count(name) > 1:
                    raise UserError(f"the {what} {name} is there twice: name each once")
        for override in self.overrides:
            first = override.partition(".")[0]
            if first in METHODS and first not in methods:
                raise UserError(f"--set {override} changes nothing: {first} is not among the methods of the comparison")
            if first in ("task", *TASKS) and first != self.kind:
                raise UserError(f"--set {override} is of another task: the comparison is of [{self.kind}]")
        if self.budget is not None:
            parse(self.budget)

    def check_base(self, model: Model) -> None:
        """A base that can't do the task, or can't carry some of the methods."""
        if model.head_address is None:
            kind = type(model).__name__
            raise UserError(f"base {self.base} is a {kind}, which has no place for a head: give an encoder")
        why = {name: no_place(model, METHODS[name]) for name in self.named if name in METHODS}
        if refused := {name: reason for name, reason in why.items() if reason is not None}:
            problem = f"base {self.base} can't carry {', '.join(refused)} ({next(iter(refused.values()))})"
            others = ",".join(name for name in self.named if name not in refused)
            raise UserError(f"{problem}: leave out what it can't, by --methods {others or 'full,head'}")


def rows_seen(config: Config) -> int:
    """The training rows of which a run sees each once, and those that choose its checkpoint."""
    assert config.train.steps is not None
    return math.ceil(config.train.steps * config.train.batch / (1 - config.train.validation))


def compare(question: Question, out: Path, command: str = "") -> Comparison:
    """Run what is not done yet; gives what the runs in `out` make together."""
    make_folder(out)
    with writing_to(out), locked(out):
        question.check(question.named)
        folder = fetch_base(question.base).absolute()
        if question.budget is None:  # which may take the time of some steps, and they are to be alone
            make_ready(folder)
        base, base_hash = load(question.base), base_fingerprint(question.base)
        question.check_base(base.model)
        jobs = question.jobs(out)
        make_ready(folder)
        base.shallow(jobs[0].config.layers)
        works: dict[str, Comparable] = {}
        hashes = {question.base: base_hash}
        for job in jobs:
            if job.task not in works:
                work = open_work(job.config)
                assert isinstance(work, Comparable)
                show(work)
                works[job.task], hashes[work.name] = work, work.hashes()[0]
                if work.light:
                    work.share(base)
            job.like = works[job.task] if works[job.task].light else None
            complete = settle(job.config, job.folder)
            build(base.model, complete.build_method(), None)
            finished(job.folder, complete.fingerprint(hashes[works[job.task].name], base_hash))
        with watching() as watch:
            run_grid(jobs, question.at_once, watch, out)
        if not any(job.state == "done" for job in jobs):
            raise UserError(f"no run ended well; the first said: {jobs[0].note}")
        return gather(jobs, works, hashes, command, question.quick)


def show(work: Comparable) -> None:
    """What the rows look like, before anything runs."""
    print(f"{work.name}: {work.data.about}", file=sys.stderr)
    for row in work.first(SHOWN):
        print(f"  {row[:110]}{'…' if len(row) > 110 else ''}", file=sys.stderr)
