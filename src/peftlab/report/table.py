"""The table of a comparison, once for all its forms: page, Markdown, terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from peftlab.report.numbers import NONE, count, duration, percent, size, with_interval
from peftlab.report.summary import MethodSummary, Summary, metric_name
from peftlab.report.verdict import decide


@dataclass(frozen=True)
class Column:
    """A heading and its cells."""

    heading: str
    cell: Callable[[MethodSummary], str]
    rank: int
    """where there is little room, columns of a higher rank are left out"""
    number: bool = True


def columns(summary: Summary) -> list[Column]:
    """All columns; those of the tasks only if there are several."""

    def of_task(name: str) -> Column:
        return Column(name, lambda method: with_interval(method.by_task.get(name)), 3)

    tasks = [of_task(task.name) for task in summary.comparison.tasks] if summary.several else []
    metric = metric_name(summary.comparison.tasks[0])
    return [
        Column("method", lambda method: method.name, 0, number=False),
        Column("average" if summary.several else metric, lambda method: with_interval(method.score), 0),
        *tasks,
        Column("seeds", lambda method: str(method.score.seeds) if method.score else NONE, 6),
        Column("trainable", lambda method: count(method.trainable), 1),
        Column("without head", lambda method: count(method.without_head), 9),
        Column("% of base", lambda method: percent(method.share), 5),
        Column("saved", lambda method: size(method.adapter_bytes), 7),
        Column("peak memory", lambda method: size(method.memory), 4),
        Column("ms/step", lambda method: count(method.mean(lambda run: run.ms_step)), 8),
        Column("tokens/s", lambda method: count(method.mean(lambda run: run.tokens_second)), 8),
        Column("total time", lambda method: duration(method.total_seconds), 2),
        Column("status", lambda method: method.state(), 0, number=False),
    ]


def fitting(summary: Summary, width: int, gap: int = 2) -> list[Column]:
    """The columns that a line of so many characters has room for."""
    every = columns(summary)
    room, kept = width + gap, []
    for column in sorted(every, key=lambda column: column.rank):
        room -= max(len(text) for text in [column.heading, *map(column.cell, summary.methods)]) + gap
        if room < 0 and column.rank > 0:
            break
        kept.append(column)
    return [column for column in every if column in kept]


def markdown(summary: Summary) -> str:
    """The verdict and the table, to paste."""
    shown = columns(summary)
    lines = [
        [column.heading for column in shown],
        ["---:" if column.number else "---" for column in shown],
        *([column.cell(method) for column in shown] for method in summary.methods),
    ]
    table = "\n".join(f"| {' | '.join(_plain(cell) for cell in line)} |" for line in lines)
    return f"{_plain(str(decide(summary)))}\n\n{table}\n"


def _plain(text: str) -> str:
    """Text that Markdown takes for nothing else."""
    for old, new in (("\\", "\\\\"), ("|", "\\|"), ("<", "&lt;"), ("`", "\\`"), ("_", "\\_"), ("*", "\\*")):
        text = text.replace(old, new)
    return " ".join(text.split())
