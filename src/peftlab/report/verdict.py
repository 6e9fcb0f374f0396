"""The verdict: which method to use, what it is indistinguishable from, and what it costs, in two sentences.

The choice: of the methods that leave the base as it is, the one that scores highest, or, among those that the test
can't tell apart from it and that are at most half a point lower, the one that trains the fewest parameters; unless one
that trains the whole base is better than it. A method of which a run collapsed is chosen only where there is no other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from peftlab.compare.results import RunResult
from peftlab.report.numbers import count, duration, listed, percent, points, signed, size, with_interval
from peftlab.report.summary import MethodSummary, Summary

COSTS: list[tuple[str, str, Callable[[MethodSummary], float | None]]] = [
    ("parameters", "fewest parameters", lambda method: method.trainable),
    ("memory", "least memory", lambda method: method.memory),
    ("time", "fastest", lambda method: method.seconds),
]
"""a cost, what the lowest is called, and how much it is"""
PREPOSITION = {"indistinguishable": "from", "better": "than", "worse": "than", "not compared": "with"}
MARGIN = 0.005
"""a lower score that fewer parameters make up for, if the test can't see it either"""
RULE = (
    "Chosen is the method with the highest score among those that leave the base as it is; if others are"
    " indistinguishable from it and at most half a point lower, the one of them that trains the fewest parameters."
    " A method that trains the whole base is chosen only if it is better than all of these, and one with a collapsed"
    " run only if there is no other."
)


@dataclass(frozen=True)
class Verdict:
    """What the reader should do, and why."""

    method: str | None
    """to use; None if no run has a score"""
    headline: str
    reasons: tuple[str, ...]
    """one or two sentences"""
    caveats: tuple[str, ...]
    """what makes it less sure, a sentence each"""

    def __str__(self) -> str:
        return " ".join([f"{self.headline}.", *self.reasons, *self.caveats])


def decide(summary: Summary) -> Verdict:
    """The verdict on a comparison."""
    scored = [method for method in summary.methods if method.score is not None]
    caveats = tuple(_caveats(summary))
    if not scored:
        return Verdict(None, "No verdict", ("No method has a score on every task.",), caveats)
    if all(run.status != "done" for method in scored for run in method.runs):
        advice = "train longer, on more rows, or at another learning rate"
        return Verdict(None, "No method learned anything", (f"Every run collapsed or failed: {advice}.",), caveats)
    if len(scored) == 1:
        only = scored[0]
        return Verdict(only.name, f"Only {only.name} has a score", (f"{_score(summary, only)}.",), caveats)
    chosen, heavy = _choose(summary, scored)
    reasons = (_why(summary, chosen, heavy), _others(summary, chosen, [m for m in scored if m not in (chosen, heavy)]))
    return Verdict(chosen.name, f"Use {chosen.name}", tuple(filter(None, reasons)), caveats)


def _choose(summary: Summary, scored: list[MethodSummary]) -> tuple[MethodSummary, MethodSummary | None]:
    """The method to use, and the best that trains the whole base if that is another one."""
    steady = [m for m in scored if not m.collapsed] or scored
    light, heavy = ([m for m in steady if m.trains_base is whole] for whole in (False, True))
    if not light:
        return heavy[0], None
    as_good = [m for m in light if _as_good(summary, m, light[0])]
    chosen = min(as_good, key=lambda m: math.inf if m.trainable is None else m.trainable)
    if not heavy:
        return chosen, None
    return (heavy[0], None) if _verdict(summary, heavy[0], light[0]) == "better" else (chosen, heavy[0])


def _as_good(summary: Summary, method: MethodSummary, best: MethodSummary) -> bool:
    difference = summary.overall.between(best.name, method.name)
    if method is best or difference is None:
        return method is best
    return difference.verdict == "indistinguishable" and difference.mean <= MARGIN


def _verdict(summary: Summary, first: MethodSummary, second: MethodSummary) -> str:
    difference = summary.overall.between(first.name, second.name)
    return difference.verdict if difference else "not compared"


def _score(summary: Summary, method: MethodSummary) -> str:
    if method.without_head is None:
        cost = ""
    elif method.trains_base:
        cost = ", training the whole base"
    elif method.without_head == 0:
        cost = ", training the head alone"
    else:
        cost = f", training {count(method.without_head)} parameters ({percent(method.share)} of the base) and the head"
    return f"It has {with_interval(method.score)}{summary.unit} {summary.score_name}{cost}"


def _why(summary: Summary, chosen: MethodSummary, heavy: MethodSummary | None) -> str:
    """Score and cost, next to training the whole base where that was tried."""
    if heavy is None or heavy.score is None:
        took = f"; a run took {duration(chosen.seconds)}" if chosen.seconds else ""
        held = f" and {size(chosen.memory)} of memory" if took and chosen.memory else ""
        return f"{_score(summary, chosen)}{took}{held}."
    relation = _verdict(summary, chosen, heavy)
    beside = f"{relation} {PREPOSITION[relation]}"
    shares = []
    for name, _, of in COSTS[1:]:
        mine, theirs = of(chosen), of(heavy)
        if mine is not None and theirs:
            shares.append(f"{percent(mine / theirs)} of its {name}")
    cost = f" at {listed(shares)}" if shares else ""
    whole = f"{heavy.name} ({points(heavy.score.mean)}{summary.unit}, the whole base)"
    return f"{_score(summary, chosen)}: {beside} {whole}{cost}."


def _others(summary: Summary, chosen: MethodSummary, others: list[MethodSummary]) -> str:
    """What it can't be told apart from, and what is better or worse."""
    groups: dict[str, list[MethodSummary]] = {}
    for method in others:
        if not method.collapsed:
            groups.setdefault(_verdict(summary, method, chosen), []).append(method)
    same = groups.get("indistinguishable", [])
    asides: dict[str, list[str]] = {}
    for _, lowest, of in COSTS:
        known = [(cost, method.name) for method in [chosen, *same] if (cost := of(method)) is not None]
        if known:
            asides.setdefault(min(known)[1], []).append(lowest)
    parts = []
    if same:
        named = []
        for method in same:
            difference = summary.overall.between(method.name, chosen.name)
            assert difference is not None
            named.append(f"{method.name} ({'; '.join([signed(difference.mean), *asides.get(method.name, [])])})")
        parts.append(f"indistinguishable from it: {listed(named)}")
    for verdict in ("better", "worse"):
        if verdict in groups:
            parts.append(f"{verdict}: {listed([method.name for method in groups[verdict]])}")
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}." if sentence else ""


def _caveats(summary: Summary) -> list[str]:
    comparison = summary.comparison
    rows = min(len(task.gold) for task in comparison.tasks)
    seeds = max((method.score.seeds for method in summary.methods if method.score), default=0)
    found = []
    if comparison.quick:
        found.append(f"A quick look ({seeds} seed{'s' * (seeds != 1)}, {rows:,} test rows): run it in full to decide.")
    if seeds == 1:
        found.append("With one seed, differences are between these runs: another seed may turn them.")
    if rows < 200:
        found.append(f"With {rows} test rows small differences can't be seen.")
    found += [f"In {task.name}, {task.note}." for task in comparison.tasks if task.note]
    for status, so in (("collapsed", ", which counts in its score"), ("failed", "")):
        runs = [run for run in comparison.runs if run.status == status]
        if runs:
            found.append(f"{status.capitalize()}: {_named(runs)}{so}.")
    return found


def _named(runs: list[RunResult]) -> str:
    if len(runs) > 3:
        return f"{len(runs)} runs of {listed(list(dict.fromkeys(run.method for run in runs)))}"
    return listed([f"{run.method} on {run.task} with seed {run.seed}" for run in runs])
