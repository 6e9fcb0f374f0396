"""Numbers as people read them: scores in points, counts, bytes, times."""

from __future__ import annotations

from peftlab.compare.statistics import Difference, Estimate

NONE = "–"


def points(score: float | None) -> str:
    """A score in percent, one digit after the point.

    >>> points(0.8512)
    '85.1'
    """
    return NONE if score is None else f"{100 * score:.1f}".replace("-", "−")


def signed(difference: float) -> str:
    """A difference of scores in points, with its sign.

    >>> signed(-0.0121)
    '−1.2'
    """
    text = f"{100 * difference:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def tick(score: float) -> str:
    """A score on an axis, without needless digits.

    >>> [tick(value) for value in (0.8, 0.825, -0.05)]
    ['80', '82.5', '−5']
    """
    return f"{100 * score:.4g}".replace("-", "−")


def with_interval(estimate: Estimate | None) -> str:
    """A score ± half of its interval; where the interval ends at 0 or 100, the longer half."""
    if estimate is None:
        return NONE
    return f"{points(estimate.mean)} ± {points(max(estimate.high - estimate.mean, estimate.mean - estimate.low))}"


def interval(difference: Difference) -> str:
    """A difference with its interval."""
    return f"{signed(difference.mean)} [{signed(difference.low)}, {signed(difference.high)}]"


def count(value: float | None) -> str:
    """A whole number with thousands apart.

    >>> count(73728)
    '73,728'
    """
    return NONE if value is None else f"{value:,.0f}"


def short(value: float) -> str:
    """A number for an axis.

    >>> [short(value) for value in (0, 0.2, 30, 2000, 1.5e6, 3e9)]
    ['0', '0.2', '30', '2k', '1.5M', '3G']
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def size(value: float | None) -> str:
    """Bytes, in decimal units.

    >>> [size(value) for value in (900, 889_352, 1.49e9)]
    ['900 B', '889 kB', '1.49 GB']
    """
    if value is None:
        return NONE
    for bytes_, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= bytes_:
            return f"{value / bytes_:.3g} {unit}"
    return f"{value:.0f} B"


def duration(seconds: float | None) -> str:
    """A time.

    >>> [duration(value) for value in (0.4, 48.3, 200, 7300)]
    ['0.4 s', '48 s', '3 min 20 s', '2 h 1 min']
    """
    if seconds is None:
        return NONE
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def percent(share: float | None) -> str:
    """A share in percent, two digits that matter.

    >>> [percent(value) for value in (1.0, 0.123, 0.00325, 0.0)]
    ['100 %', '12 %', '0.33 %', '0 %']
    """
    if share is None:
        return NONE
    return "100 %" if share >= 0.995 else f"{100 * share:.2g} %"


def probability(p: float) -> str:
    """A p-value.

    >>> [probability(value) for value in (0.0312, 0.00004)]
    ['0.031', '< 0.001']
    """
    return "< 0.001" if p < 0.001 else f"{p:.2g}" if p < 0.1 else f"{p:.2f}"


def listed(names: list[str]) -> str:
    """Names as a phrase.

    >>> listed(["lora", "prefix", "full"])
    'lora, prefix and full'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
