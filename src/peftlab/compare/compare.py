"""A comparison from end to end: check, show the first rows, run the grid, gather.

peftlab compare --task reviews --methods lora,prefix --seeds 2 --out comparison
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peftlab.compare.gather import gather
from peftlab.compare.grid import plan, run_grid
from peftlab.compare.results import Comparison
from peftlab.compare.watch import watching
from peftlab.data.glue import first_rows
from peftlab.data.sources import fetch_base
from peftlab.errors import UserError
from peftlab.peft import METHODS
from peftlab.train.run import load_data


def compare(
    tasks: Sequence[dict[str, Any]],
    methods: Sequence[str] | None,
    seeds: int,
    base: str,
    limit: int | None,
    steps: int,
    out: Path,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    quick: bool = False,
    command: str = "",
) -> Comparison:
    """Run what is not done yet; gives what the runs in `out` make together."""
    names = [name for name, method in METHODS.items() if method.by_default] if methods is None else list(methods)
    cores = os.cpu_count() or 1
    workers = workers or cores
    settings = {
        "base": base,
        "task": {} if limit is None else {"limit": limit},
        "train": {"steps": steps, "batch": 16, "threads": max(1, cores // workers)},
    }
    jobs = plan(names, tasks, seeds, out, settings, overrides)
    data = {job.config.task.name: load_data(job.config) for job in jobs[:: len(names) * seeds]}
    fetch_base(base)
    for labelled in data.values():
        print(f"{labelled.name}: {labelled.about}", file=sys.stderr)
        for text, label in first_rows(labelled):
            print(f"  {label}: {str(text)[:100]}", file=sys.stderr)
    with watching() as watch:
        run_grid(jobs, workers, watch)
    if not any(job.state == "done" for job in jobs):
        raise UserError(f"no run ended well; the first said: {jobs[0].note}")
    return gather(jobs, data, command, quick)
