"""Accuracy, macro F1 and Matthews' correlation from counts: how often each label is the row's own, was given, and both.

Shapes: K labels, P runs, R resamples of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def accuracy(gold: Floats, given: Floats, right: Floats) -> Floats:
    """The share of rows that are right. Counts of each label: `gold` [K, R], `given` and `right` [P, K, R]."""
    return right.sum(1) / gold.sum(0)


def macro_f1(gold: Floats, given: Floats, right: Floats) -> Floats:
    """The mean of the labels' F1, over the labels that occur; 0 where none does, as with sentences without entities."""
    both = gold + given
    return (2 * right / np.maximum(both, 1)).sum(1) / np.maximum((both > 0).sum(1), 1)


def matthews(gold: Floats, given: Floats, right: Floats) -> Floats:
    """Matthews' correlation, for any number of labels (Gorodkin 2004); 0 where one label is all there is."""
    rows = gold.sum(0)
    covariance = right.sum(1) * rows - (given * gold).sum(1)
    square = (rows**2 - (given**2).sum(1)) * (rows**2 - (gold**2).sum(0))
    return np.where(square > 0, covariance / np.sqrt(np.maximum(square, 1)), 0.0)


METRICS: dict[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "accuracy": accuracy,
    "f1": macro_f1,
    "matthews": matthews,
}


def scores(predictions: Sequence[int], labels: Sequence[int]) -> dict[str, float]:
    """Each metric of one run, on all rows."""
    given, gold = np.asarray(predictions), np.asarray(labels)
    size = int(max(given.max(), gold.max())) + 1
    counted = (gold, given, gold[gold == given])
    own, told, right = (np.bincount(found, minlength=size).astype(float)[:, None] for found in counted)
    return {name: float(metric(own, told[None], right[None])[0, 0]) for name, metric in METRICS.items()}
