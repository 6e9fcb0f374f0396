"""Score against cost: each method a point, the Pareto front, and the lines of the whole base and the majority class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from peftlab.compare.statistics import Analysis
from peftlab.report.axes import CHARACTER, Box, Scale, fit, padded, place, svg, x_axis, y_axis
from peftlab.report.markup import Markup, tag
from peftlab.report.numbers import count, duration, points, short, size, tick, with_interval
from peftlab.report.summary import MethodSummary, Summary, pareto


@dataclass(frozen=True)
class Cost:
    """What the horizontal axis may count."""

    key: str
    name: str
    axis: str
    of: Callable[[MethodSummary], float | None]
    text: Callable[[float], str]
    tick: Callable[[float], str]


def _short_bytes(value: float) -> str:
    return f"{short(value)}B"


COSTS = [
    Cost("parameters", "parameters", "trainable parameters, with the head", lambda m: m.trainable, count, short),
    Cost("memory", "memory", "peak memory of a run", lambda m: m.memory, size, _short_bytes),
    Cost("time", "time", "time of a run", lambda m: m.seconds, duration, lambda value: f"{short(value)} s"),
    Cost("bytes", "bytes on disk", "size of what is saved", lambda m: m.adapter_bytes, size, _short_bytes),
]


def cost_chart(
    summary: Summary, title: str, analysis: Analysis, majority: float, cost: Cost, chosen: str | None, width: float
) -> Markup:
    """Score (up is better) against a cost on a log axis (left is cheaper)."""
    known = [
        (method, cost_value, estimate)
        for method in summary.methods
        if (cost_value := cost.of(method)) and (estimate := analysis.estimates.get(method.name))
    ]
    name = f"{title}: score against {cost.name}"
    if not known:
        return svg(width, 60, name, tag("text", "No method has both a score and this cost.", x=8, y=30, class_="tick"))
    height = 320.0 if width < 600 else 380.0
    left, right, top, bottom = 44.0, width - 14, 16.0, height - 44
    ends = [end for _, _, estimate in known for end in (estimate.low, estimate.high)]
    span = max(ends) - min(ends)
    shown = min(ends) - majority < 0.5 * span  # else the line would press all points together
    y = Scale(*padded([*ends, majority] if shown else ends), bottom, top)
    x = Scale(*padded([value for _, value, _ in known], log=True, share=0.09), left, right, log=True)
    inside = Box(left, top, right, bottom)

    means = [(method.name, value, estimate.mean) for method, value, estimate in known]
    front = pareto(means)
    where = {name: (x(value), y(mean)) for name, value, mean in means}
    taken = [Box(px - 7, py - 7, px + 7, py + 7, weight=4) for px, py in where.values()]
    taken += [Box(x(value) - 1, y(estimate.high), x(value) + 1, y(estimate.low)) for _, value, estimate in known]
    lines = []
    heavy = [(estimate.mean, method.name) for method, _, estimate in known if method.trains_base]
    if heavy:
        lines.append(_line(f"{max(heavy)[1]} {points(max(heavy)[0])}", y(max(heavy)[0]), left, right, taken, "whole"))
    if shown:
        lines.append(_line(f"majority class {points(majority)}", y(majority), left, right, taken, "majority"))
    else:
        below = f"↓ majority class {points(majority)}"
        lines.append(tag("text", below, x=left + 6, y=bottom - 7, class_="tick majority"))
    marks, labels = [], []
    for method, value, estimate in known:
        px, py = where[method.name]
        kind = " ".join(
            ["point", "front" if method.name in front else "behind"]
            + ["chosen"] * (method.name == chosen)
            + ["collapsed"] * method.collapsed
        )
        said = f"{method.name}: {with_interval(estimate)}, {cost.text(value)}"
        marks.append(
            tag(
                "g",
                tag("title", said),
                tag("line", x1=px, x2=px, y1=y(estimate.low), y2=y(estimate.high), class_="whisker"),
                tag("circle", cx=px, cy=py, r=6.5 if method.name == chosen else 5.0),
                class_=kind,
            )
        )
        text = fit(method.name, 0.4 * width)
        lx, ly, anchor = place(text, px, py, taken, inside)
        labels.append(tag("text", text, x=lx, y=ly, text_anchor=anchor, class_=f"label {kind}"))

    steps = "".join(f"L{where[name][0]:.1f} {where[name][1]:.1f}" for name in front)
    return svg(
        width,
        height,
        name,
        x_axis(x, bottom, top, f"{cost.axis} →", cost.tick, about=max(3, int(width / 130))),
        y_axis(y, left, right, tick),
        *lines,
        tag("path", d="M" + steps[1:], class_="pareto") if len(front) > 1 else "",
        *labels,
        *marks,
    )


def _line(text: str, y: float, left: float, right: float, taken: list[Box], kind: str) -> Markup:
    """A horizontal line with its name where there is most room."""
    wide = CHARACTER * len(text)
    boxes = [Box(at, y - 16, at + wide, y - 2) for at in (left + 6, right - wide - 6)]
    box = min(boxes, key=lambda box: sum(box.overlap(other) for other in taken))
    taken += [box, Box(left, y - 2, right, y + 2)]
    return tag(
        "g",
        tag("line", x1=left, x2=right, y1=y, y2=y),
        tag("text", text, x=box.left, y=y - 5, class_="tick"),
        class_=f"reference {kind}",
    )
