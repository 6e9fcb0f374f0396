"""How a grid is watched: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from peftlab.compare.grid import Job

COLOURS = {"waiting": "dim", "running": "cyan", "done": "green", "failed": "red"}


@contextmanager
def watching() -> Iterator[Callable[[Sequence[Job]], None]]:
    """What to call with the jobs again and again."""
    console = Console(stderr=True)
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4) as live:
            yield lambda jobs: live.update(table(jobs))
    else:
        yield Lines()


def table(jobs: Sequence[Job]) -> Table:
    """Method, progress, time left, current score of each run."""
    now = time.monotonic()
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("run", "state", "step", "left", "validation"):
        shown.add_column(heading, no_wrap=True)
    for job in jobs:
        left = job.left(now) if job.state == "running" else None
        shown.add_row(
            job.title,
            f"[{COLOURS[job.state]}]{job.state}[/]",
            f"{job.step}/{job.steps}" if job.steps else "",
            "" if left is None else clock(left),
            "" if job.score is None else f"{job.score:.3f}",
        )
    done = sum(job.state in ("done", "failed") for job in jobs)
    shown.caption = f"{done} of {len(jobs)} runs ended"
    return shown


class Lines:
    """A line when a run starts and when it ends."""

    def __init__(self) -> None:
        self.told: dict[int, str] = {}

    def __call__(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.state != "waiting" and self.told.get(id(job)) != job.state:
                self.told[id(job)] = job.state
                score = "" if job.score is None or job.state == "running" else f", validation {job.score:.3f}"
                took = f" in {clock(job.ended - job.started)}" if job.ended else ""
                note = f": {job.note}" if job.note else ""
                print(f"{job.title}: {job.state}{took}{score}{note}", file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """1:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
