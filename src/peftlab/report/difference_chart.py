"""Differences between methods: each against the chosen one as a chart, and all pairs as a table."""

from __future__ import annotations

from peftlab.compare.statistics import Analysis
from peftlab.report.axes import CHARACTER, Scale, fit, padded, svg, x_axis
from peftlab.report.markup import Markup, tag
from peftlab.report.numbers import interval, probability, signed, tick

ROW = 30.0


def difference_chart(analysis: Analysis, chosen: str, width: float) -> Markup:
    """How much higher or lower each method scores than the chosen one, with the pair's interval."""
    found = [analysis.between(name, chosen) for name in analysis.estimates if name != chosen]
    pairs = sorted((pair for pair in found if pair is not None), key=lambda pair: -pair.mean)
    title = f"difference from {chosen}"
    if not pairs:
        return svg(width, 60, title, tag("text", "There is no other method to compare with.", x=8, y=30, class_="tick"))
    wide = width > 600
    left = min(14 + CHARACTER * max(len(pair.first) for pair in pairs), 0.4 * width)
    right, top, bottom = width - (280 if wide else 56), 10.0, 10 + ROW * len(pairs)
    x = Scale(*padded([0.0, *(end for pair in pairs for end in (pair.low, pair.high))], share=0.04), left, right)
    rows = []
    for i, pair in enumerate(pairs):
        y = top + ROW * (i + 0.5)
        text = f"{interval(pair)}  {pair.verdict}" if wide else signed(pair.mean)
        said = f"{pair.first}: {interval(pair)}, {pair.verdict}, corrected p {probability(pair.corrected)}"
        rows.append(
            tag(
                "g",
                tag("title", said),
                tag("text", fit(pair.first, left - 12), x=left - 10, y=y + 4, text_anchor="end", class_="label"),
                tag("line", x1=x(pair.low), x2=x(pair.high), y1=y, y2=y, class_="whisker"),
                tag("circle", cx=x(pair.mean), cy=y, r=5.0),
                tag("text", text, x=right + 14, y=y + 4, class_="label said"),
                class_=f"pair {pair.verdict}",
            )
        )
    zero = tag("line", x1=x(0), x2=x(0), y1=top, y2=bottom, class_="zero")
    axis = x_axis(x, bottom, top, f"points above or below {chosen}", tick, about=max(3, int(width / 170)))
    return svg(width, bottom + 42, title, axis, zero, *rows)


def difference_table(analysis: Analysis, title: str) -> Markup:
    """All pairs: the row's method minus the column's, in points."""
    names = sorted(analysis.estimates, key=lambda name: -analysis.estimates[name].mean)
    columns = [tag("th", name, scope="col", class_="number") for name in names]
    head = tag("tr", tag("th", "row − column", scope="col"), *columns)
    body = []
    for first in names:
        cells = []
        for second in names:
            pair = analysis.between(first, second)
            if pair is None:
                cells.append(tag("td", "" if first == second else "–", class_="none"))
            else:
                p = f"p {probability(pair.p)}, corrected {probability(pair.corrected)}"
                said = f"{first} − {second}: {interval(pair)}, {p}"
                cells.append(tag("td", signed(pair.mean), title=said, class_=pair.verdict))
        body.append(tag("tr", tag("th", first, scope="row"), *cells))
    table = tag("table", tag("thead", head), tag("tbody", *body), class_="matrix")
    return tag("div", tag("h3", title), table, class_="card scroll")
