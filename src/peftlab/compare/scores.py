"""Scores of runs, on the test rows and on resamples of them, from predictions and gold labels.

Every metric is a function of how often each label is the row's own, was given, and both: counts, which are sums over
rows. So a resample is a product of a matrix of 0 and 1 with how often each row was drawn, for all runs at once (2,000
resamples of 10,000 rows for 24 runs take half a second).

Shapes: M methods, S seeds, N test rows, K labels, R resamples, P runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from peftlab.errors import unknown
from peftlab.tasks.metrics import METRICS, Floats, accuracy, macro_f1

RESAMPLES = 2000
COUNTED = {"accuracy": accuracy, "f1": macro_f1, "las": accuracy}
"""the same of tasks whose rows hold several things to find, which are one label: so F1 is that of entities, and LAS the
share of the words"""


@dataclass(frozen=True)
class Scores:
    """The score of each run, on the test rows and on each resample of them; nan where there is no run."""

    observed: Floats
    """[M, S]"""
    resampled: Floats
    """[R, M, S]"""
    lowest: float
    """what the metric can't fall below"""
    least: float
    """the variance if a single row were wrong: what can't be seen where every row is right"""


def resample(
    gold: ArrayLike,
    predictions: ArrayLike,
    labels: int,
    metric: str = "accuracy",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Scores:
    """Scores of the runs on the rows and on resamples of them; a missing run's predictions [M, S, N] are all −1."""
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    truth, all_runs = np.asarray(gold), np.asarray(predictions)
    N = all_runs.shape[2]
    assert truth.shape == (N,), "one gold label for each row"
    there = all_runs[:, :, 0] >= 0
    indicators = _indicators(truth, all_runs[there], labels)
    least = 1 / N**2
    return _resampled(indicators, there, METRICS[metric], -1.0 if metric == "matthews" else 0.0, least, resamples, seed)


def resample_counts(
    there: ArrayLike, given: ArrayLike, metric: str, resamples: int = RESAMPLES, seed: int = 0
) -> Scores:
    """The same where a row has several things to find: how many are `there` [N], and of each run [M, S, N, 2] how many
    it gave and how many of these are right; −1 for a missing run.
    """
    if metric not in COUNTED:
        raise unknown("metric", metric, COUNTED)
    counts, runs = np.asarray(there), np.asarray(given)
    found = runs[:, :, 0, 0] >= 0
    rows = np.concatenate([counts[None], np.moveaxis(runs[found], -1, 1).reshape(-1, len(counts))])
    least = 1 / max(int(counts.sum()), 1) ** 2
    return _resampled(csr_array(rows.astype(np.float32)), found, COUNTED[metric], 0.0, least, resamples, seed)


def _resampled(
    indicators: csr_array,
    there: NDArray[np.bool_],
    metric: Callable[[Floats, Floats, Floats], Floats],
    lowest: float,
    least: float,
    resamples: int,
    seed: int,
) -> Scores:
    """Scores from what each row adds [(1 + 2P)·K, N]: to the counts that are there, and of each run to its two."""
    N, (M, S) = indicators.shape[1], there.shape
    labels = indicators.shape[0] // (1 + 2 * int(there.sum()))
    rng = np.random.default_rng(seed)

    def scored(weights: NDArray[np.float32]) -> Floats:
        """[R, M, S] from how often each row was drawn, [N, R]."""
        counts = (indicators @ weights).astype(np.float64).reshape(-1, labels, weights.shape[1])
        runs = counts[1:].reshape(-1, 2, labels, weights.shape[1])
        scores = np.full((weights.shape[1], M, S), np.nan)
        scores[:, there] = metric(counts[0], runs[:, 0], runs[:, 1]).T
        return scores

    observed = scored(np.ones((N, 1), np.float32))[0]
    parts = []
    for start in range(0, resamples, 50):  # a few at a time: all of them are N × R numbers
        R = min(50, resamples - start)
        drawn = rng.integers(0, N, (N, R)) * R + np.arange(R)
        parts.append(scored(np.bincount(drawn.ravel(), minlength=N * R).reshape(N, R).astype(np.float32)))
    return Scores(observed, np.concatenate(parts), lowest, least)


def _indicators(gold: NDArray[np.int64], runs: NDArray[np.int64], labels: int) -> csr_array:
    """[(1 + 2P)·K, N] of 0 and 1: is label k the row's own, what a run gave, both? All metrics are sums of these."""
    P, N = runs.shape
    rows, columns = [gold], [np.arange(N)]
    for p in range(P):
        right = np.flatnonzero(runs[p] == gold)
        rows += [(1 + 2 * p) * labels + runs[p], (2 + 2 * p) * labels + gold[right]]
        columns += [np.arange(N), right]
    row, column = np.concatenate(rows), np.concatenate(columns)
    return csr_array((np.ones(len(row), np.float32), (row, column)), shape=((1 + 2 * P) * labels, N))


def average(tasks: Sequence[Scores]) -> Scores:
    """The macro-average over tasks, as GLUE has it; a run counts where its method and seed are there for every task."""
    assert tasks
    return Scores(
        np.mean([task.observed for task in tasks], axis=0),
        np.mean([task.resampled for task in tasks], axis=0),
        float(np.mean([task.lowest for task in tasks])),
        float(np.sum([task.least for task in tasks])) / len(tasks) ** 2,
    )


def majority_score(gold: ArrayLike, labels: int, metric: str = "accuracy") -> float:
    """What giving every row the most frequent label scores."""
    truth = np.asarray(gold)
    constant = np.full((1, 1, len(truth)), np.bincount(truth, minlength=labels).argmax())
    return float(resample(truth, constant, labels, metric, resamples=1).observed[0, 0])
