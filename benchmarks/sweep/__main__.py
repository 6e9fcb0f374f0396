"""Train each method at each rate of sweep.toml, and write results.json beside it.

python -m benchmarks.sweep --task path/to/SST-2

Runs are kept in `--out`; called again, it goes on where it was.
"""

import argparse
import json
import os
import tomllib
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from peftlab.compare.grid import Job, run_grid
from peftlab.compare.watch import watching
from peftlab.data.files import write_text
from peftlab.peft import METHODS
from peftlab.train.config import make_config

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="sst2", help="as for peftlab compare")
    parser.add_argument("--out", type=Path, default=Path("runs/sweep"))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    jobs = plan(tomllib.loads((HERE / "sweep.toml").read_text(encoding="utf-8")), given.task, given.out)
    with watching() as watch:
        run_grid(jobs, given.workers, watch, given.out)
    rows = [row(job) for job in jobs if job.state == "done"]
    write_text(HERE / "results.json", json.dumps(rows, indent=1) + "\n")
    Console().print(table(rows))


def plan(sweep: dict[str, Any], task: str, out: Path) -> list[Job]:
    """A run for each method and rate."""
    jobs = []
    for method, rates in sweep["rates"].items():
        for lr in rates:
            content = json.loads(json.dumps(sweep["settings"]))
            content["task"]["name"] = task
            content["method"] = {"name": method}
            content["train"]["lr"] = lr
            name = f"{method}-{lr:g}"
            jobs.append(Job(make_config(content, "the sweep"), out / name, name))
    return jobs


def row(job: Job) -> dict[str, Any]:
    """What is kept of a run."""
    result = json.loads((job.folder / "result.json").read_text(encoding="utf-8"))
    kept = {key: result[key] for key in ("method", "task", "seed", "validation", "curve", "trainable", "seconds")}
    return {"lr": job.config.train.lr, **kept}


def table(rows: list[dict[str, Any]]) -> Table:
    """Validation accuracy by method and rate, the best of each method in bold, the default marked."""
    shown = Table("method", "lr", "validation", "", box=None)
    for found in rows:
        best = max(other["validation"] for other in rows if other["method"] == found["method"])
        style = "bold" if found["validation"] == best else ""
        default = "default" if found["lr"] == METHODS[found["method"]].lr else ""
        shown.add_row(found["method"], f"{found['lr']:g}", f"{found['validation']:.3f}", default, style=style)
    return shown


if __name__ == "__main__":
    main()
