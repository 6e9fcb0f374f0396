"""Learning curves: a small chart a method, its seeds as a band, the other methods in grey behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from peftlab.compare.results import RunResult
from peftlab.report.axes import Scale, fit, padded, svg, x_axis, y_axis
from peftlab.report.markup import Markup, tag
from peftlab.report.numbers import short, tick
from peftlab.report.summary import Summary

HEIGHT = 148.0

Curve = list[tuple[float, float, float, float]]
"""step, and over the seeds: lowest, mean, highest"""


def curve_charts(summary: Summary, task: str, of: str, chosen: str | None, width: float) -> list[Markup]:
    """The curves of `score` or `loss` on a task, a chart a method."""
    curves = {m.name: band(summary.comparison.of(m.name, task), of) for m in summary.methods}
    curves = {name: curve for name, curve in curves.items() if curve}
    if not curves:
        return []
    steps = [point[0] for curve in curves.values() for point in curve]
    ends = [end for curve in curves.values() for point in curve for end in point[1:]]
    x = Scale(0, max(steps) * 1.04 or 1, 36, width - 6)
    y = Scale(*padded(ends), HEIGHT - 24, 24)
    charts = []
    for name, curve in curves.items():
        others = [tag("path", d=_path(x, y, other), class_="other") for key, other in curves.items() if key != name]
        charts.append(
            svg(
                width,
                HEIGHT,
                f"{name} on {task}: {of} by step",
                x_axis(x, HEIGHT - 24, 24, "", short, about=2),
                y_axis(y, 36, width - 6, tick if of == "score" else lambda value: f"{value:.2f}", about=3),
                *others,
                tag("path", d=_area(x, y, curve), class_="spread"),
                tag("path", d=_path(x, y, curve), class_="curve"),
                tag("text", fit(name, width - 42), x=36, y=15, class_="label"),
                class_="small chosen" if name == chosen else "small",
            )
        )
    return charts


def band(runs: Sequence[RunResult], of: str) -> Curve:
    """Lowest, mean and highest over the seeds at each step; a value that is not a number ends its seed's curve."""
    values: dict[float, list[float]] = {}
    for run in runs:
        for point in run.curve:
            step, value = point.get("step"), point.get(of)
            if step is None or value is None or not math.isfinite(value):
                break
            values.setdefault(step, []).append(value)
    return [(step, min(at), sum(at) / len(at), max(at)) for step, at in sorted(values.items())]


def _path(x: Scale, y: Scale, curve: Curve) -> str:
    return "M" + "L".join(f"{x(step):.1f} {y(mean):.1f}" for step, _, mean, _ in curve)


def _area(x: Scale, y: Scale, curve: Curve) -> str:
    over = [f"{x(step):.1f} {y(high):.1f}" for step, _, _, high in curve]
    under = [f"{x(step):.1f} {y(low):.1f}" for step, low, _, _ in reversed(curve)]
    return "M" + "L".join([*over, *under]) + "Z"
