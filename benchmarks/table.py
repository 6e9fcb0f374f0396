"""The table of the race track for people, and its comparison with one that was kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

ALLOWED = 0.2
"""share of a ratio that may be lost before it is a regression"""
Figures = Mapping[str, Any]


def table(found: Sequence[Figures], title: str) -> Table:
    """A line a row: figures of ours and the peer, ratios with quartiles and goals, peak memory, share of the peak."""
    shown = Table(title=title, box=None)
    for name in ("row", "ours", "default", "best"):
        shown.add_column(name, justify="left" if name == "row" else "right")
    for name in ("× default", "goal", "× best", "goal", "peak MB of each", "of GFLOP/s"):
        shown.add_column(name, justify="right")
    for row in found:
        figures = [amount(row[key], row["unit"]) for key in ("ours", "peer_default", "peer_best")]
        default, best = ([ratio(row, side), goal(row, side)] for side in ("default", "best"))
        peaks = ", ".join(megabytes(row[f"memory_{side}"]) for side in ("ours", "default", "best"))
        used = "–" if row["roofline"] is None else f"{row['roofline']:.0%} of {row['peak'] / 1e9:,.0f}"
        name = f"{row['row']} ({row['point']})" if "point" in row else row["row"]
        shown.add_row(name, *figures, *default, *best, peaks, used)
    return shown


def amount(value: float | None, unit: str) -> str:
    """Seconds or megabytes."""
    if value is None:
        return "–"
    if unit == "bytes":
        return f"{value / 1e6:,.0f} MB"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def megabytes(value: int | None) -> str:
    return "–" if value is None else f"{value / 1e6:,.0f}"


def ratio(row: Figures, side: str) -> str:
    """The median, and the quartiles."""
    if row[f"ratio_{side}"] is None:
        return "–"
    low, high = row[f"quartiles_{side}"]
    return f"{row[f'ratio_{side}']:.2f} ({low:.2f} … {high:.2f})"


def goal(row: Figures, side: str) -> str:
    """The goal, and whether it is met; where it is not, the ratio that ours would have at the machine's peak."""
    wanted, reached = row[f"goal_{side}"], row[f"ratio_{side}"]
    if wanted is None:
        return "–"
    if reached >= wanted:
        return f"{wanted:.2f} [green]met[/]"
    most = "" if row["roofline"] is None else f", peak {reached / row['roofline']:.1f}"
    return f"{wanted:.2f} [red]missed[/]{most}"


def regressions(row: Figures, kept: Sequence[Figures]) -> list[str]:
    """A sentence for each ratio that is more than a fifth lower than in the kept table.

    A ratio depends on processor and precision, too: it is compared with one that was kept with the same.
    """
    told = []
    for before in kept:
        if any(row[key] != before.get(key) for key in ("row", "processor", "precision")):
            continue
        for side in ("default", "best"):
            now, then = row[f"ratio_{side}"], before[f"ratio_{side}"]
            if now is not None and then is not None and now < (1 - ALLOWED) * then:
                told.append(f"{row['row']}: {now:.2f} times the peer's {side}, which was {then:.2f}")
    return told
