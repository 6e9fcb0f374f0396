"""How sure a comparison is: intervals, paired differences between methods, and runs that learned nothing.

A score varies for two reasons: other test rows, and another seed. The rows are resampled (a bootstrap, the same rows
for every run, so that differences are paired by row). Seeds are too few to resample: two of them have three different
samples. Their part is a t-distribution instead, with the variance that the differences show between seeds (so they are
paired by seed), in which the other methods have a say as four more degrees of freedom (a moderated variance: Smyth
2004, doi 10.2202/1544-6115.1027). The sum of the two parts is a Behrens–Fisher distribution: a normal one whose
variance is uncertain. Over the pairs of methods, p-values are corrected as Holm (1979) has it. With a single seed only
the rows are left: differences are then between these runs, not between methods.

Checked by simulation in tests/compare/test_statistics.py: on methods that do not differ, with two or three seeds and
any variance between them, a pair is called different in at most about 5 % of the comparisons.

    scores = resample(gold, predictions, labels=2)      # predictions [M, S, N]
    analysis = judge(scores, ["lora", "prefix", "full"])
    analysis.between("lora", "full").verdict            # better, worse or indistinguishable

Shapes: M methods, S seeds, N test rows, R resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import chdtri, ndtr

from peftlab.compare.scores import Scores
from peftlab.tasks.metrics import Floats

LEVEL = 0.05
PRIOR = 4
"""degrees of freedom that the other methods add to a pair's own variance between seeds; more would hide a method that
is less steady than the others, fewer would leave two seeds without any power"""


@dataclass(frozen=True)
class Estimate:
    """A method's mean over seeds, with its 95 % interval."""

    mean: float
    low: float
    high: float
    seeds: int


@dataclass(frozen=True)
class Difference:
    """How much higher the first method scores than the second, on the same rows and seeds."""

    first: str
    second: str
    mean: float
    low: float
    high: float
    """of this pair's 95 % interval"""
    p: float
    """how probable so large a difference is if there is none, for this pair alone"""
    corrected: float
    """the same over all pairs (Holm)"""
    seeds: int
    """that both have"""

    @property
    def verdict(self) -> str:
        """Of the first: better, worse or indistinguishable."""
        return "indistinguishable" if self.corrected >= LEVEL else "better" if self.mean > 0 else "worse"

    def turned(self) -> Difference:
        """The second against the first."""
        return replace(self, first=self.second, second=self.first, mean=-self.mean, low=-self.high, high=-self.low)


@dataclass(frozen=True)
class Analysis:
    """What a task's scores say of the methods."""

    estimates: dict[str, Estimate]
    differences: tuple[Difference, ...]

    def between(self, first: str, second: str) -> Difference | None:
        """The difference of two methods; None where they share no seed."""
        for difference in self.differences:
            if (difference.first, difference.second) == (first, second):
                return difference
            if (difference.second, difference.first) == (first, second):
                return difference.turned()
        return None


def judge(scores: Scores, methods: Sequence[str], unsteady: Sequence[str] = ()) -> Analysis:
    """Intervals and paired differences. The `unsteady` (with collapsed runs) have no say in the others' variance."""
    steady = [m not in unsteady for m in methods]
    seeds = int(np.sum(~np.isnan(scores.observed[steady]), axis=1).max(initial=0))
    alone = [_spread(scores.observed[m], scores.resampled[:, m]) for m in range(len(methods))]
    estimates = {}
    for method, spread, law in zip(methods, alone, _laws(alone, steady, sum(steady) * (seeds - 1)), strict=True):
        if spread is not None and law is not None:
            half = replace(law, rows=max(law.rows, scores.least)).half_width()
            low, high = max(spread.mean - half, scores.lowest), min(spread.mean + half, 1.0)
            estimates[method] = Estimate(spread.mean, low, high, spread.seeds)

    pairs = list(combinations(range(len(methods)), 2))
    apart = [
        _spread(scores.observed[a] - scores.observed[b], scores.resampled[:, a] - scores.resampled[:, b])
        for a, b in pairs
    ]
    laws = _laws(apart, [steady[a] and steady[b] for a, b in pairs], (sum(steady) - 1) * (seeds - 1))
    found = [(pair, s, law) for pair, s, law in zip(pairs, apart, laws, strict=True) if s is not None and law]
    p = [law.tail(s.mean) for _, s, law in found]
    differences = tuple(
        Difference(
            methods[a], methods[b], s.mean, s.mean - law.half_width(), s.mean + law.half_width(), alone_p, over, s.seeds
        )
        for ((a, b), s, law), alone_p, over in zip(found, p, holm(p), strict=True)
    )
    return Analysis(estimates, differences)


def holm(p: Sequence[float]) -> list[float]:
    """p-values corrected for their number, so that any false "different" among them is as rare as the level says.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, largest = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        largest = max(largest, min(1.0, p[i] * (len(p) - rank)))
        corrected[i] = largest
    return corrected


@dataclass(frozen=True)
class _Spread:
    """A mean over seeds, and what it varies by."""

    mean: float
    rows: float
    """variance of the mean with other rows and the same seeds"""
    between: float
    """variance of one seed's value between seeds, on the same rows"""
    noise: float
    """the part of it that comes from single rows turning, which `rows` holds already"""
    seeds: int


def _spread(values: Floats, resampled: Floats) -> _Spread | None:
    """Of one value a seed [S] and its resamples [R, S]; seeds that are nan are left out."""
    there = ~np.isnan(values)
    S = int(there.sum())
    if S == 0:
        return None
    values, resampled = values[there], resampled[:, there]
    rows = float(resampled.mean(1).var(ddof=1))
    if S == 1:
        return _Spread(float(values[0]), rows, 0.0, 0.0, 1)
    noise = S / (S - 1) * (float(resampled.var(0, ddof=1).mean()) - rows)
    return _Spread(float(values.mean()), rows, float(values.var(ddof=1)), noise, S)


@dataclass(frozen=True)
class _Law:
    """How far a mean may be off: a normal part from the rows, and a t-distributed part from the seeds."""

    rows: float
    seeds: float
    """variance of the mean"""
    freedom: int
    """degrees of freedom of it; 0: nothing is known of the seeds"""

    def tail(self, distance: float) -> float:
        """The probability to be off by so much or more, to either side."""
        if distance == 0 or self.rows + self.seeds == 0:
            return float(distance == 0)
        # t is normal with the variance freedom / χ²: the sum is normal given χ², and χ² is averaged over.
        stretch, weights = _quadrature(self.freedom)
        return float(2 * weights @ ndtr(-abs(distance) / np.sqrt(self.rows + self.seeds * stretch)))

    def half_width(self) -> float:
        """Of the 95 % interval."""
        scale = (self.rows + self.seeds) ** 0.5
        if scale == 0:
            return 0.0
        width: float = brentq(lambda distance: self.tail(distance * scale) - LEVEL, 0, 1000)
        return width * scale


@cache
def _quadrature(freedom: int) -> tuple[Floats, Floats]:
    """Values of freedom / χ² and their weights, for an integral over its probability."""
    if freedom == 0:
        return np.zeros(1), np.ones(1)
    x, weights = np.polynomial.legendre.leggauss(200)
    return freedom / chdtri(freedom, (x + 1) / 2), weights / 2


def _laws(spreads: Sequence[_Spread | None], steady: Sequence[bool], freedom: int) -> list[_Law | None]:
    """The law of each mean; `freedom`: how many independent deviations between seeds the steady ones hold together."""
    pool = [s for s, ok in zip(spreads, steady, strict=True) if ok and s is not None and s.seeds > 1]
    pooled, pooled_noise = (float(np.mean([getattr(s, of) for s in pool] or [0.0])) for of in ("between", "noise"))

    def law(spread: _Spread) -> _Law:
        own = spread.seeds - 1
        prior = min(PRIOR, max(freedom - own, 0)) if pool else 0
        if own + prior == 0:
            return _Law(spread.rows, 0.0, 0)
        moderated = max((own * spread.between + prior * pooled) / (own + prior), spread.between)
        # What single rows do is in `rows` already; but with few seeds the rest can look like nothing by chance.
        beyond = max(moderated - (spread.noise if own else pooled_noise), moderated / 2)
        return _Law(spread.rows, beyond / spread.seeds, own + prior)

    return [None if spread is None else law(spread) for spread in spreads]


def diverged(losses: Sequence[float | None]) -> str | None:
    """Why a run's losses say that it has learned nothing."""
    known = np.array([loss for loss in losses if loss is not None], dtype=float)
    if np.isfinite(known).all():
        return None
    at = int(np.flatnonzero(~np.isfinite(known))[0]) + 1
    return f"the loss was no longer a number at entry {at} of {len(known)}: a lower learning rate may help"


def no_better(score: float, majority: float, losses: Sequence[float | None] = ()) -> str | None:
    """The same as `collapsed` where a row has several answers: by the score of the most frequent one.

    >>> no_better(0.0, 0.0)
    'its score of 0.0 % is no better than the 0.0 % of the most frequent answer'
    """
    if (why := diverged(losses)) is not None or score > majority:
        return why
    said = f"its score of {score:.1%} is no better than the {majority:.1%} of the most frequent answer"
    return said.replace("%", " %")


def collapsed(predictions: ArrayLike, gold: ArrayLike, losses: Sequence[float | None] = ()) -> str | None:
    """Why a run has learned nothing, in a sentence; None if it has learned. `losses`: of training, in order.

    >>> collapsed([1, 1, 1, 1], [1, 0, 1, 0])
    'every row got the same label, which is right for 50.0 % of them'
    """
    given, truth = np.asarray(predictions), np.asarray(gold)
    if (why := diverged(losses)) is not None:
        return why
    known = np.array([loss for loss in losses if loss is not None], dtype=float)
    right = float(np.mean(given == truth))
    most = float(np.bincount(truth).max() / len(truth))
    common = float(np.bincount(given).max() / len(given))
    if most < 1 and common == 1:
        return f"every row got the same label, which is right for {right:.1%} of them".replace("%", " %")
    if common > 0.995 > 0.95 > most:
        return f"{common:.1%} of the rows got the same label, and {right:.1%} are right".replace("%", " %")
    third = max(len(known) // 3, 1)
    fell = len(known) < 2 or known[-third:].mean() < 0.98 * known[:third].mean()
    chance = most + (most * (1 - most) / len(truth)) ** 0.5
    if most < 1 and right <= chance and not fell:
        return (
            f"its accuracy of {right:.1%} is no better than the most frequent label's {most:.1%},"
            " and the loss did not fall"
        ).replace("%", " %")
    return None
