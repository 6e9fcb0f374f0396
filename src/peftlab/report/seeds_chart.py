"""Seeds as a strip plot: each run a dot, each method's mean with its interval behind them."""

from __future__ import annotations

from peftlab.compare.statistics import Analysis
from peftlab.report.axes import CHARACTER, Scale, fit, padded, svg, x_axis
from peftlab.report.markup import Markup, tag
from peftlab.report.numbers import points, tick, with_interval
from peftlab.report.summary import Summary

ROW = 30.0


def seeds_chart(summary: Summary, task: str, chosen: str | None, width: float) -> Markup:
    """The scores of all runs on a task, the best method first."""
    analysis: Analysis = summary.by_task[task]
    majority = summary.comparison.task(task).majority_score()
    names = sorted(analysis.estimates, key=lambda name: -analysis.estimates[name].mean)
    title = f"{task}: the score of each seed"
    if not names:
        return svg(width, 60, title, tag("text", "No run has a score.", x=8, y=30, class_="tick"))
    runs = summary.observed[task]
    ends = [end for name in names for end in (analysis.estimates[name].low, analysis.estimates[name].high)]
    ends += [score for name in names for score in runs[name].values()]
    left = min(14 + CHARACTER * max(map(len, names)), 0.4 * width)
    right, top, bottom = width - 12, 10.0, 10 + ROW * len(names)
    shown = min(ends) - majority < 0.4 * (max(ends) - min(ends))
    x = Scale(*padded([*ends, majority] if shown else ends, share=0.04), left, right)
    collapsed = {
        (run.method, run.seed) for run in summary.comparison.runs if run.task == task and run.status == "collapsed"
    }
    rows = []
    for i, name in enumerate(names):
        y, estimate = top + ROW * (i + 0.5), analysis.estimates[name]
        dots = [
            _dot(x(score), y + offset, name, seed, score, (name, seed) in collapsed)
            for offset, (seed, score) in zip(_offsets(len(runs[name])), sorted(runs[name].items()), strict=True)
        ]
        band = tag("line", x1=x(estimate.low), x2=x(estimate.high), y1=y, y2=y, class_="band")
        mean = tag("line", x1=x(estimate.mean), x2=x(estimate.mean), y1=y - 9, y2=y + 9, class_="mean")
        label = tag("text", fit(name, left - 12), x=left - 10, y=y + 4, text_anchor="end", class_="label")
        said = tag("title", f"{name}: {with_interval(estimate)}")
        rows.append(tag("g", said, label, band, mean, dots, class_="row chosen" if name == chosen else "row"))
    line = tag("line", x1=x(majority), x2=x(majority), y1=top, y2=bottom) if shown else ""
    at = f"majority class {points(majority)}"
    axis = f"score ({at} is dotted)" if shown else f"score (← {at})"
    return svg(
        width,
        bottom + 42,
        title,
        x_axis(x, bottom, top, axis, tick, about=max(3, int(width / 90))),
        tag("g", line, class_="reference majority"),
        *rows,
    )


def _offsets(number: int) -> list[float]:
    """Dots of a method stand a little apart, because seeds with the same score would hide each other."""
    step = min(5.0, 14 / max(number - 1, 1))
    return [step * (i - (number - 1) / 2) for i in range(number)]


def _dot(x: float, y: float, name: str, seed: int, score: float, collapsed: bool) -> Markup:
    said = tag("title", f"{name}, seed {seed}: {points(score)}{' (collapsed)' if collapsed else ''}")
    if collapsed:
        return tag("path", said, d=f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8", class_="dot collapsed")
    return tag("circle", said, cx=x, cy=y, r=3.5, class_="dot")
