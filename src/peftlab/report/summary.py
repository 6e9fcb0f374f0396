"""What the page, the tables and the verdict tell of: each method's scores, costs and state, computed once.

Costs are means over a method's runs, because two seeds of a method differ only by what else the machine did. A method
that trains (nearly) the whole base is recognised by its count of parameters, not by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from peftlab.compare.results import ComparedTask, Comparison, RunResult
from peftlab.compare.scores import Scores, average
from peftlab.compare.statistics import Analysis, Estimate, judge

METRIC_NAMES = {"accuracy": "accuracy", "f1": "macro F1", "matthews": "Matthews' correlation × 100", "las": "LAS"}


def metric_name(task: ComparedTask) -> str:
    """What a task's score is called; where a row has several things to find, they are entities."""
    return "F1 of entities" if task.metric == "f1" and not task.labels else METRIC_NAMES[task.metric]


@dataclass(frozen=True)
class MethodSummary:
    """A line of the table."""

    name: str
    runs: tuple[RunResult, ...]
    score: Estimate | None
    """on the one task, or the average over tasks; None where no seed has a score on every task"""
    by_task: dict[str, Estimate]

    def mean(self, of: Callable[[RunResult], float | None]) -> float | None:
        """The mean of a cost over the runs that know it."""
        known = [value for run in self.runs if (value := of(run)) is not None]
        return sum(known) / len(known) if known else None

    @property
    def trainable(self) -> float | None:
        """Parameters that train, with the head; a mean, because tasks have heads of different sizes."""
        return self.mean(lambda run: run.trainable)

    @property
    def without_head(self) -> float | None:
        """Parameters that train, without the head."""
        return self.mean(lambda run: run.trainable_without_head)

    @property
    def share(self) -> float | None:
        """Of the base's parameters, without the head."""
        base = self.mean(lambda run: run.base_parameters)
        return None if self.without_head is None or not base else self.without_head / base

    @property
    def trains_base(self) -> bool:
        """It changes the base itself."""
        return self.share is not None and self.share > 0.5

    @property
    def collapsed(self) -> bool:
        """A run of it learned nothing."""
        return any(run.status == "collapsed" for run in self.runs)

    @property
    def memory(self) -> float | None:
        """Peak bytes."""
        return self.mean(lambda run: run.peak_memory)

    @property
    def adapter_bytes(self) -> float | None:
        """Bytes of what is saved."""
        return self.mean(lambda run: run.adapter_bytes)

    @property
    def seconds(self) -> float | None:
        """Of a run."""
        return self.mean(lambda run: run.seconds)

    @property
    def total_seconds(self) -> float | None:
        """Of all its runs."""
        known = [run.seconds for run in self.runs if run.seconds is not None]
        return sum(known) if known else None

    def state(self) -> str:
        """`done`, or how many runs are not."""
        parts = []
        for status in ("collapsed", "failed"):
            found = sum(run.status == status for run in self.runs)
            if found:
                parts.append(f"{found} of {len(self.runs)} {status}")
        return ", ".join(parts) or "done"


@dataclass(frozen=True)
class Summary:
    """A comparison with its statistics."""

    comparison: Comparison
    methods: tuple[MethodSummary, ...]
    """the best first"""
    overall: Analysis
    """of the one task, or of the average over tasks"""
    by_task: dict[str, Analysis]
    observed: dict[str, dict[str, dict[int, float]]]
    """the score of each run: task, method, seed"""

    @property
    def several(self) -> bool:
        """There is an average over tasks."""
        return len(self.comparison.tasks) > 1

    @property
    def score_name(self) -> str:
        """What `overall` is."""
        tasks = self.comparison.tasks
        metrics = list(dict.fromkeys(map(metric_name, tasks)))
        what = metrics[0] if len(metrics) == 1 else "score"
        return f"{what} on average over {len(tasks)} tasks" if self.several else f"{what} on {tasks[0].name}"

    @property
    def unit(self) -> str:
        """A correlation is no percentage."""
        return "" if any(task.metric == "matthews" for task in self.comparison.tasks) else " %"

    def method(self, name: str) -> MethodSummary:
        """The line of a method."""
        return next(method for method in self.methods if method.name == name)

    def views(self) -> list[tuple[str, Analysis, float]]:
        """What charts are drawn for: the average, if there are several tasks, and each task; with the majority's."""
        tasks = [(task.name, self.by_task[task.name], task.majority_score()) for task in self.comparison.tasks]
        if not self.several:
            return tasks
        return [("average", self.overall, sum(majority for _, _, majority in tasks) / len(tasks)), *tasks]


def summarise(comparison: Comparison) -> Summary:
    """Compute the statistics of a comparison."""
    names, seeds = comparison.methods, comparison.seeds
    scores = {task.name: comparison.scores(task.name) for task in comparison.tasks}
    by_task = {name: judge(of, names, comparison.unsteady(name)) for name, of in scores.items()}
    overall = judge(average(list(scores.values())), names, comparison.unsteady())
    methods = [
        MethodSummary(
            name,
            tuple(comparison.of(name)),
            overall.estimates.get(name),
            {task: analysis.estimates[name] for task, analysis in by_task.items() if name in analysis.estimates},
        )
        for name in names
    ]
    methods.sort(key=lambda method: -method.score.mean if method.score else 2.0)
    observed = {task.name: _observed(scores[task.name], names, seeds) for task in comparison.tasks}
    return Summary(comparison, tuple(methods), overall, by_task, observed)


def _observed(scores: Scores, names: list[str], seeds: list[int]) -> dict[str, dict[int, float]]:
    """The score of each run that has one: method, seed."""
    return {
        name: {seed: float(scores.observed[m, s]) for s, seed in enumerate(seeds) if scores.observed[m, s] >= -1}
        for m, name in enumerate(names)
    }


def pareto(points: list[tuple[str, float, float]]) -> list[str]:
    """The names of points (name, cost, score) that no other beats in both; the cheapest first.

    >>> pareto([("full", 100, 0.9), ("lora", 1, 0.9), ("head", 0.1, 0.7), ("prompt", 0.5, 0.6)])
    ['head', 'lora']
    """
    front, best = [], float("-inf")
    for name, _, score in sorted(points, key=lambda point: (point[1], -point[2])):
        if score > best:
            front.append(name)
            best = score
    return front
