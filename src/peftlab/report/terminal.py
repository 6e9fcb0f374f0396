"""The verdict and the table on a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from peftlab.report.summary import Summary
from peftlab.report.table import fitting
from peftlab.report.verdict import decide


def terminal(summary: Summary, width: int = 120) -> RenderableType:
    """What `rich` prints: the table and below it, where the eye is when a command ends, the verdict."""
    verdict = decide(summary)
    shown = fitting(summary, width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in shown:
        table.add_column(Text(column.heading), justify="right" if column.number else "left")
    for method in summary.methods:
        style = "green" if method.name == verdict.method else "yellow" if method.state() != "done" else ""
        table.add_row(*(Text(column.cell(method)) for column in shown), style=style)  # Text: no markup from data
    lines = [Text.assemble((f"{verdict.headline}. ", "bold green"), " ".join(verdict.reasons))]
    lines += [Text(caveat, style="yellow") for caveat in verdict.caveats]
    return Group(table, Text(""), *lines)
