"""How a race is timed: contestants take turns (ABBA…, so that neither is always first), and the medians count."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple


class Result(NamedTuple):
    """Two medians in seconds, and the median, lowest and highest quartile of peer / ours (above 1: we are faster)."""

    ours: float
    peer: float
    ratio: float
    low: float
    high: float


def race(ours: Callable[[], object], peer: Callable[[], object], seconds: float = 6.0, warm_up: int = 2) -> Result:
    """Run both in turns for about `seconds`, at least five times each."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(warm_up):
        ours()
        peer()
    end = time.perf_counter() + seconds
    while len(times[1]) < 5 or time.perf_counter() < end:
        turns = list(zip((ours, peer), times, strict=True))
        for contestant, seen in turns if len(times[0]) % 2 else reversed(turns):
            start = time.perf_counter()
            contestant()
            seen.append(time.perf_counter() - start)
    ratios = sorted(theirs / our for our, theirs in zip(*times, strict=True))
    low, ratio, high = statistics.quantiles(ratios, n=4)
    return Result(statistics.median(times[0]), statistics.median(times[1]), ratio, low, high)
