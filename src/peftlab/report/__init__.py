"""Results to table, charts, one self-contained HTML page.

from peftlab.report import markdown, render, terminal, write

write(comparison, folder)               # report.html, results.md, and the files of compare/results.py
text = render(comparison)               # the page
rich.print(terminal(comparison))
"""

from pathlib import Path

from rich.console import RenderableType

from peftlab.compare.results import Comparison, save
from peftlab.data.files import write_text
from peftlab.report import page, table, verdict
from peftlab.report import terminal as on_terminal
from peftlab.report.summary import summarise

__all__ = ["markdown", "render", "terminal", "verdict_of", "write"]


def render(comparison: Comparison) -> str:
    """The page, as HTML."""
    return page.page(summarise(comparison))


def markdown(comparison: Comparison) -> str:
    """The verdict and the table, to paste."""
    return table.markdown(summarise(comparison))


def terminal(comparison: Comparison, width: int = 120) -> RenderableType:
    """The verdict and the table, for `rich.print`."""
    return on_terminal.terminal(summarise(comparison), width)


def verdict_of(comparison: Comparison) -> verdict.Verdict:
    """Which method to use, and why."""
    return verdict.decide(summarise(comparison))


def write(comparison: Comparison, folder: Path) -> Path:
    """Leave everything in the folder, and give the page's path."""
    save(comparison, folder)
    summary = summarise(comparison)
    write_text(folder / "results.md", table.markdown(summary))
    write_text(folder / "report.html", page.page(summary))
    return folder / "report.html"
