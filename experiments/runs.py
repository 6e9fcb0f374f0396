"""The runs of an experiment: those that are not done yet, a few at a time; one that does not end well ends it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from peftlab.compare.grid import Job, run_grid
from peftlab.compare.watch import watching
from peftlab.errors import UserError


def run_all(jobs: Sequence[Job], workers: int, out: Path) -> None:
    """Train what is not trained yet."""
    with watching() as watch:
        run_grid(jobs, workers, watch, out)
    for job in jobs:
        if job.state != "done":
            raise UserError(f"{job.title} did not end well: {job.note}")
