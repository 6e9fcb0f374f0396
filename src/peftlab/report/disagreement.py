"""The test rows on which methods disagree most: some always get them right, others never."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from peftlab.report.summary import Summary

LONGEST = 400
"""characters of a text that are shown"""


@dataclass(frozen=True)
class Given:
    """What a method said of a row."""

    method: str
    label: str
    """what most of its seeds gave"""
    right: int
    """seeds that gave the row's own label"""
    seeds: int


@dataclass(frozen=True)
class DisputedRow:
    """A test row and what each method said of it."""

    number: int
    """counted from 1"""
    text: str | None
    gold: str
    given: tuple[Given, ...]


def disputed(summary: Summary, task: str, number: int = 5) -> list[DisputedRow]:
    """The rows whose share of right seeds varies most between methods, the most disputed first.

    None of a task without labels, where a row is right in part.
    """
    about = summary.comparison.task(task)
    if not about.labels:
        return []
    gold = np.array(about.gold)
    predictions: dict[str, np.ndarray] = {}
    for method in summary.methods:
        runs = [run.predictions for run in method.runs if run.task == task and run.scored]
        if runs:
            predictions[method.name] = np.array(runs)
    if len(predictions) < 2:
        return []
    shares = np.stack([(given == gold).mean(0) for given in predictions.values()])
    spread = shares.var(0)
    order = np.argsort(-spread, kind="stable")[:number]
    rows = []
    for row in order[spread[order] > 0].tolist():
        given = tuple(
            Given(
                name,
                about.labels[Counter(labels[:, row].tolist()).most_common(1)[0][0]],
                int((labels[:, row] == gold[row]).sum()),
                len(labels),
            )
            for name, labels in predictions.items()
        )
        text = None if about.texts is None else _shown(about.texts[row])
        rows.append(DisputedRow(row + 1, text, about.labels[gold[row]], given))
    return rows


def _shown(text: str | tuple[str, str]) -> str:
    whole = text if isinstance(text, str) else " ⏐ ".join(text)
    return whole if len(whole) <= LONGEST else f"{whole[:LONGEST]}…"
