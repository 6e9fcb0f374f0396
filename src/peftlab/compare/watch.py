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
EVERY = 60.0
"""seconds between two lines on how far the runs are, where there is no terminal"""


@contextmanager
def watching() -> Iterator[Callable[[Sequence[Job]], None]]:
    """What to call with the jobs again and again."""
    console = Console(stderr=True)
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:  # a run may end before the next time
            yield lambda jobs: live.update(table(jobs, console.height - 6), refresh=True)
    else:
        yield Lines()


def table(jobs: Sequence[Job], room: int) -> Table:
    """Method, progress, time left, current score of each run; where there is no room for all, of those that matter."""
    now = time.monotonic()
    shown_first = {"running": 0, "failed": 1, "done": 2, "waiting": 3}
    chosen = sorted(jobs, key=lambda job: (shown_first[job.state], -job.ended))[: max(room, 1)]
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("run", "state", "step", "left", "validation"):
        shown.add_column(heading, no_wrap=True)
    for job in (job for job in jobs if any(job is other for other in chosen)):
        left = job.left(now) if job.state == "running" else None
        shown.add_row(
            job.title,
            f"[{COLOURS[job.state]}]{job.state}[/]",
            f"{job.step}/{job.steps}" if job.steps else "",
            "" if left is None else clock(left),
            "" if job.score is None else f"{job.score:.3f}",
        )
    shown.caption = summary(jobs, now)
    return shown


def summary(jobs: Sequence[Job], now: float) -> str:
    """How many runs have ended, and about how long the others take."""
    done = sum(job.state in ("done", "failed") for job in jobs)
    left = time_left(jobs, now)
    return f"{done} of {len(jobs)} runs ended" + ("" if left is None else f", about {clock(left)} left")


def time_left(jobs: Sequence[Job], now: float) -> float | None:
    """Seconds until the last run ends, if those to come take as long as the mean of those so far."""
    took = [job.ended - job.started for job in jobs if job.state == "done"]
    running = [job for job in jobs if job.state == "running"]
    left = [job.left(now) for job in running]
    took += [now - job.started + rest for job, rest in zip(running, left, strict=True) if rest is not None]
    if not took or not running:
        return None
    waiting = sum(job.state == "waiting" for job in jobs)
    return sum(rest or 0.0 for rest in left) / len(running) + waiting * sum(took) / len(took) / len(running)


class Lines:
    """A line when a run starts and when it ends, and now and then one on how far they are."""

    def __init__(self) -> None:
        self.told: dict[int, str] = {}
        self.last = time.monotonic()

    def __call__(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.state != "waiting" and self.told.get(id(job)) != job.state:
                self.told[id(job)] = job.state
                score = "" if job.score is None or job.state == "running" else f", validation {job.score:.3f}"
                took = f" in {clock(job.ended - job.started)}" if job.ended else ""
                note = f": {job.note}" if job.note else ""
                print(f"{job.title}: {job.state}{took}{score}{note}", file=sys.stderr, flush=True)
        now = time.monotonic()
        if now - self.last >= EVERY:
            self.last = now
            running = [f"{job.title} {job.step}/{job.steps}" for job in jobs if job.state == "running" and job.steps]
            print(f"{summary(jobs, now)}; {', '.join(running)}", file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """1:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
