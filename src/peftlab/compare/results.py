"""What a comparison found: its runs with scores, costs and predictions, its tasks, and the files it leaves.

save(comparison, folder)        # comparison.json (everything), results.json and results.csv (a row a run)
comparison = load(folder)
comparison                      # a table in a notebook; peftlab.report.render(comparison) is the whole page
"""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from peftlab.compare.scores import COUNTED, Scores, average, majority_score, resample, resample_counts
from peftlab.compare.statistics import judge
from peftlab.data.files import make_folder, write_text
from peftlab.errors import UserError, unknown
from peftlab.tasks.metrics import METRICS

STATUSES = ("done", "collapsed", "failed")
"""trained, trained but learned nothing, no result; `note` says why"""


@dataclass(frozen=True)
class RunResult:
    """One run: a method on a task with a seed."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    method: str
    task: str
    seed: int
    status: str = "done"
    note: str = ""
    """why it failed or collapsed, in a sentence"""
    scores: dict[str, float] = field(default_factory=dict)
    """accuracy, f1, matthews (or what else a task has) on the test rows; where a test has several splits also
    `split.accuracy` and so on"""
    trainable: int | None = None
    """parameters that train, with the head; costs are None where a run failed before they were known"""
    trainable_without_head: int | None = None
    base_parameters: int | None = None
    adapter_bytes: int | None = None
    """size of what was saved"""
    peak_memory: int | None = None
    """bytes"""
    ms_step: float | None = None
    tokens_second: float | None = None
    seconds: float | None = None
    """of the whole run"""
    steps: int | None = None
    run: str = ""
    """its folder"""
    predictions: list[int] | list[tuple[int, int]] = field(default_factory=list)
    """the label given to each test row, in order; of a task without labels how many things it gave for the row, and how
    many of them are right; empty if it failed"""
    curve: list[dict[str, float | None]] = field(default_factory=list)
    """at each evaluation: step, loss, score"""
    settings: dict[str, Any] = field(default_factory=dict)
    """what it was trained with: the learning rate, the method's own settings"""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise unknown("status of a run", self.status, STATUSES)

    @property
    def scored(self) -> bool:
        """It has a score. A collapsed run has one: leaving it out would flatter a method that is not steady."""
        return self.status != "failed" and bool(self.predictions)

    def row(self, metrics: Iterable[str] = METRICS) -> dict[str, Any]:
        """Its line in results.json, with a place for each metric."""
        percent = None
        if self.trainable_without_head is not None and self.base_parameters:
            percent = 100 * self.trainable_without_head / self.base_parameters
        return {
            "method": self.method,
            "task": self.task,
            "seed": self.seed,
            "status": self.status,
            **dict.fromkeys(metrics),
            **self.scores,
            "trainable": self.trainable,
            "trainable_without_head": self.trainable_without_head,
            "percent_of_base": percent,
            "base_parameters": self.base_parameters,
            "adapter_bytes": self.adapter_bytes,
            "peak_memory": self.peak_memory,
            "ms_step": self.ms_step,
            "tokens_second": self.tokens_second,
            "seconds": self.seconds,
            "steps": self.steps,
            "run": self.run,
            "note": self.note,
            "settings": self.settings,
        }


@dataclass(frozen=True)
class ComparedTask:
    """A task of the comparison and its test rows."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    name: str
    labels: list[str]
    """the name of each label; empty where a row holds several things to find, such as words or entities"""
    gold: list[int]
    """the label of each test row; without labels, how many things it holds"""
    metric: str = "accuracy"
    """by which methods are compared: accuracy, f1 or matthews; without labels accuracy, f1 or las"""
    texts: list[str] | list[tuple[str, str]] | None = None
    """the test rows themselves, for the page"""
    splits: dict[str, int] = field(default_factory=dict)
    """rows of each split, in order, where there are several (mnli: matched, mismatched): their scores are averaged"""
    majority: float | None = None
    """score of the most frequent label; None: computed"""
    note: str = ""
    """what was done to its data before anything was learned, such as words that were cut off"""

    def __post_init__(self) -> None:
        metrics = METRICS if self.labels else COUNTED
        if self.metric not in metrics:
            raise unknown(f"metric of the task {self.name}", self.metric, metrics)
        if not self.labels and self.majority is None:
            raise UserError(f"the task {self.name} has no labels to count the most frequent of: give its majority")
        if not self.gold:
            raise UserError(f"the task {self.name} has no test rows")
        if self.texts is not None and len(self.texts) != len(self.gold):
            raise UserError(f"the task {self.name} has {len(self.gold)} test labels and {len(self.texts)} texts")
        if self.splits and sum(self.splits.values()) != len(self.gold):
            raise UserError(f"the splits of the task {self.name} do not add up to its {len(self.gold)} test rows")

    def parts(self) -> list[slice]:
        """The rows of each split."""
        ends = np.cumsum([*self.splits.values()] or [len(self.gold)]).tolist()
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def majority_score(self) -> float:
        """What giving every row the most frequent label scores."""
        if self.majority is not None:
            return self.majority
        scores = [majority_score(self.gold[part], len(self.labels), self.metric) for part in self.parts()]
        return sum(scores) / len(scores)


@dataclass(frozen=True)
class Comparison:
    """Methods × tasks × seeds, all on one base."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    title: str
    base: str
    tasks: list[ComparedTask]
    runs: list[RunResult]
    versions: dict[str, str] = field(default_factory=dict)
    """of the packages that matter"""
    hashes: dict[str, str] = field(default_factory=dict)
    """SHA-256 of base and data"""
    command: str = ""
    """that makes it again"""
    config: str = ""
    """what was asked for, as TOML"""
    quick: bool = False
    """a first look: fewer rows, one seed"""

    def __post_init__(self) -> None:
        seen = set()
        for run in self.runs:
            task = self.task(run.task)
            name = f"the run of {run.method} on {run.task} with seed {run.seed}"
            if run.predictions and len(run.predictions) != len(task.gold):
                raise UserError(f"{name} has {len(run.predictions)} predictions for {len(task.gold)} test rows")
            if run.predictions and isinstance(run.predictions[0], tuple) == bool(task.labels):
                raise UserError(f"{name} has {'counts' if task.labels else 'labels'}, and {run.task} has none")
            if task.labels and not all(label in range(len(task.labels)) for label in run.predictions):
                raise UserError(f"{name} predicts a label outside the {len(task.labels)} of {run.task}")
            if (run.method, run.task, run.seed) in seen:
                raise UserError(f"{name} is there twice")
            seen.add((run.method, run.task, run.seed))

    @property
    def methods(self) -> list[str]:
        """In the order in which they were asked for."""
        return list(dict.fromkeys(run.method for run in self.runs))

    @property
    def seeds(self) -> list[int]:
        """All that were asked for."""
        return sorted({run.seed for run in self.runs})

    def task(self, name: str) -> ComparedTask:
        """The task of that name."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise unknown("task", name, [task.name for task in self.tasks])

    def of(self, method: str, task: str | None = None) -> list[RunResult]:
        """The runs of a method, on one task or on all."""
        return [run for run in self.runs if run.method == method and task in (None, run.task)]

    def unsteady(self, task: str | None = None) -> list[str]:
        """The methods with a collapsed run."""
        return [m for m in self.methods if any(run.status == "collapsed" for run in self.of(m, task))]

    def scores(self, name: str) -> Scores:
        """The scores on a task [methods, seeds], with resamples; splits are averaged as GLUE does."""
        task, methods, seeds = self.task(name), self.methods, self.seeds
        predictions = np.full((len(methods), len(seeds), len(task.gold), *([] if task.labels else [2])), -1)
        for run in self.runs:
            if run.task == name and run.scored:
                predictions[methods.index(run.method), seeds.index(run.seed)] = run.predictions
        # its own draw for each part: the rows of two tasks have nothing to do with each other
        first = 1000 * [task.name for task in self.tasks].index(name)
        parts = [(task.gold[part], predictions[:, :, part], first + i) for i, part in enumerate(task.parts())]
        if not task.labels:
            return average([resample_counts(gold, runs, task.metric, seed=seed) for gold, runs, seed in parts])
        return average([resample(gold, runs, len(task.labels), task.metric, seed=seed) for gold, runs, seed in parts])

    def rows(self) -> list[dict[str, Any]]:
        """A row a run, as in results.json."""
        metrics = list(dict.fromkeys(name for run in self.runs for name in run.scores))
        return [run.row(metrics) for run in self.runs]

    def to_json(self) -> str:
        """Everything; what is not a number (a loss that diverged) becomes null."""
        return ADAPTER.dump_json(self).decode() + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "the comparison") -> Comparison:
        """Read strictly: an unknown or missing field is an error that names it."""
        try:
            return ADAPTER.validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] == "value_error":  # one of our own, raised while the parts were put together
                raise UserError(f"{where} can't be used: {first['ctx']['error']}") from None
            place = ".".join(map(str, first["loc"]))
            raise UserError(f"{place or 'its content'} in {where} can't be read: {first['msg'].lower()}") from None

    def _repr_html_(self) -> str:
        """One small table a task; the page is `peftlab.report.render`."""
        return "".join(self._table(task) for task in self.tasks)

    def _table(self, task: ComparedTask) -> str:
        estimates = judge(self.scores(task.name), self.methods, self.unsteady(task.name)).estimates
        lines = []
        for method in self.methods:
            runs, estimate = self.of(method, task.name), estimates.get(method)
            score = "–" if estimate is None else f"{estimate.mean:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
            trainable = [run.trainable for run in runs if run.trainable is not None]
            status = ", ".join(sorted({run.status for run in runs}))
            cells = [method, score, str(sum(run.scored for run in runs)), f"{trainable[0]:,}" if trainable else "–"]
            lines.append((estimate.mean if estimate else -2.0, [*cells, status]))
        headings = ["method", f"{task.metric} [95 %]", "seeds", "trainable", "status"]
        lines.sort(key=lambda line: -line[0])
        body = "".join(f"<tr>{_cells('td', cells)}</tr>" for _, cells in lines)
        caption = f"<caption>{html.escape(task.name)}</caption>"
        return f"<table>{caption}<thead><tr>{_cells('th', headings)}</tr></thead><tbody>{body}</tbody></table>"


def _cells(tag: str, cells: Iterable[str]) -> str:
    return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)


ADAPTER = TypeAdapter(Comparison)


def to_csv(rows: Iterable[dict[str, Any]]) -> str:
    """Rows as CSV; settings, which are nested, as JSON."""
    rows = list(rows)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: json.dumps(value) if isinstance(value, dict) else value for key, value in row.items()})
    return text.getvalue()


def save(comparison: Comparison, folder: Path) -> None:
    """Write comparison.json, results.json and results.csv into the folder, each whole or not at all."""
    make_folder(folder)
    write_text(folder / "comparison.json", comparison.to_json())
    write_text(folder / "results.json", json.dumps(comparison.rows(), indent=2, allow_nan=False) + "\n")
    write_text(folder / "results.csv", to_csv(comparison.rows()))


def load(folder: Path) -> Comparison:
    """Read what `save` wrote."""
    path = folder / "comparison.json"
    if not path.is_file():
        raise UserError(f"{folder} holds no comparison: it has no comparison.json")
    return Comparison.from_json(path.read_bytes(), str(path))
