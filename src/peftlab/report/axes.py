"""Scales, ticks and axes for charts in SVG.

Charts are drawn here and not by a charting library: plain SVG takes its colours from the page's style, so it follows a
dark theme, and it needs no script, so the page can forbid all. A page with all its charts is a third of the size of
vega-lite's JavaScript alone (0.3 and 0.9 MB).

Coordinates are pixels; each chart is drawn for a wide page and again for a phone, so that its text is never scaled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from peftlab.report.markup import Markup, tag

CHARACTER = 6.6
"""mean width of a character at the size of labels"""
ALONE = """
svg { font: 13px system-ui, sans-serif; --ink: #1f2328; --grid: #d8dee4; }
@media (prefers-color-scheme: dark) { svg { --ink: #d1d7e0; --grid: #3d444d; } }
text { fill: var(--ink); } .tick { font-size: 11px; } .grid { stroke: var(--grid); }
"""
"""the style of a chart that is a file of its own: no page gives it one"""


@dataclass(frozen=True)
class Scale:
    """From values to pixels."""

    low: float
    high: float
    start: float
    """pixel of `low`"""
    end: float
    """pixel of `high`"""
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, about: int) -> list[float]:
        """Round values inside the scale, about so many.

        >>> Scale(0.71, 0.86, 0, 100).ticks(4)
        [0.75, 0.8, 0.85]
        >>> Scale(300, 200_000, 0, 100, log=True).ticks(4)
        [1000.0, 10000.0, 100000.0]
        """
        if not self.log or self.high < 8 * self.low:
            step = _nice((self.high - self.low) / about)
            first = math.ceil(self.low / step - 1e-9)
            return [round(i * step, 10) for i in range(first, math.floor(self.high / step + 1e-9) + 1)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for factors in ((1,), (1, 3), (1, 2, 5)):
            ticks = [float(f"{factor * 10.0**decade:.6g}") for decade in decades for factor in factors]
            ticks = [tick for tick in ticks if self.low <= tick <= self.high]
            if len(ticks) >= min(about, 3):
                break
        return ticks[:: math.ceil(len(ticks) / (about + 2))]


def _nice(step: float) -> float:
    """The next round number above a step: 1, 2 or 5 times a power of ten, or 2.5 times."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * 0.999)


def fit(text: str, pixels: float) -> str:
    """A text that is not wider than so many pixels.

    >>> fit("a_method_with_a_long_name", 80)
    'a_method_wi…'
    """
    longest = max(int(pixels / CHARACTER), 2)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def padded(values: Sequence[float], log: bool = False, share: float = 0.06) -> tuple[float, float]:
    """The range of some values with room at both ends; a single value gets room too."""
    low, high = min(values), max(values)
    if log:
        factor = max(high / low, 2) ** share
        return low / factor, high * factor
    room = share * (high - low) or max(abs(high) * 0.05, 0.01)
    return low - room, high + room


def x_axis(scale: Scale, y: float, top: float, label: str, text: Callable[[float], str], about: int = 6) -> Markup:
    """Grid lines with numbers below, and what they count."""
    lines = []
    for tick in scale.ticks(about):
        x = scale(tick)
        lines.append(tag("line", x1=x, x2=x, y1=top, y2=y, class_="grid"))
        lines.append(tag("text", text(tick), x=x, y=y + 16, class_="tick", text_anchor="middle"))
    middle = (scale.start + scale.end) / 2
    name = tag("text", label, x=middle, y=y + 34, class_="axis", text_anchor="middle") if label else ""
    return tag("g", lines, name)


def y_axis(scale: Scale, x: float, right: float, text: Callable[[float], str], about: int = 5) -> Markup:
    """Grid lines with numbers at the left."""
    lines = []
    for tick in scale.ticks(about):
        y = scale(tick)
        lines.append(tag("line", x1=x, x2=right, y1=y, y2=y, class_="grid"))
        lines.append(tag("text", text(tick), x=x - 7, y=y + 4, class_="tick", text_anchor="end"))
    return tag("g", lines)


def apart(places: Sequence[float], gap: float = 15.0) -> list[float]:
    """Where labels stand that would be nearer to each other than `gap`: as a column around their middle.

    >>> apart([100.0, 20.0, 104.0])
    [94.5, 20.0, 109.5]
    """
    columns: list[list[int]] = []

    def column(members: list[int]) -> list[float]:
        first = fmean(places[i] for i in members) - gap * (len(members) - 1) / 2
        return [first + gap * k for k in range(len(members))]

    for place in sorted(range(len(places)), key=lambda i: places[i]):
        columns.append([place])
        while len(columns) > 1 and column(columns[-1])[0] - column(columns[-2])[-1] < gap:
            columns[-2:] = [columns[-2] + columns[-1]]
    found = {i: y for members in columns for i, y in zip(members, column(members), strict=True)}
    return [found[i] for i in range(len(places))]


def svg(width: float, height: float, title: str, *content: str, class_: str = "") -> Markup:
    """A drawing of that size, shrunk where the page is narrower."""
    return tag(
        "svg",
        tag("title", title),
        *content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
        aria_label=title,
        class_=class_ or None,
    )


@dataclass(frozen=True)
class Box:
    """A rectangle that text or a mark covers."""

    left: float
    top: float
    right: float
    bottom: float
    weight: float = 1.0
    """how bad it is to cover it"""

    def overlap(self, other: Box) -> float:
        """The area of the other that this covers, by its weight."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        tall = min(self.bottom, other.bottom) - max(self.top, other.top)
        return other.weight * wide * tall if wide > 0 and tall > 0 else 0.0


PLACES = [
    *((9, 4, "start"), (-9, 4, "end"), (0, -10, "middle"), (0, 19, "middle")),
    *((9, -9, "start"), (-9, -9, "end"), (9, 17, "start"), (-9, 17, "end")),
    *((12, -20, "start"), (12, 28, "start"), (-12, -20, "end"), (-12, 28, "end")),
]
"""of a label around its point, the best first"""


def place(text: str, x: float, y: float, taken: list[Box], inside: Box) -> tuple[float, float, str]:
    """Where a point's label stands so that it covers least: its x, y and anchor. The place is then taken."""
    wide = CHARACTER * len(text)
    best: tuple[float, Box, tuple[float, float, str]] | None = None
    for cost, (dx, dy, anchor) in enumerate(PLACES):
        left = x + dx - {"start": 0.0, "end": wide, "middle": wide / 2}[anchor]
        box = Box(left, y + dy - 11, left + wide, y + dy + 3)
        outside = (box.right - box.left) * (box.bottom - box.top) - box.overlap(inside)
        covered = sum(box.overlap(other) for other in taken) + 10 * outside + cost
        if best is None or covered < best[0]:
            best = (covered, box, (x + dx, y + dy, anchor))
    assert best is not None
    taken.append(best[1])
    return best[2]
