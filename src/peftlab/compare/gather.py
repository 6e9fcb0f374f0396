"""From the folders of a grid's runs to one comparison: scores, costs, predictions, and what failed and why."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peftlab.compare.grid import Job
from peftlab.compare.results import ComparedTask, Comparison, RunResult
from peftlab.compare.statistics import collapsed
from peftlab.data.examples import Labelled
from peftlab.train.config import read_config_file

LIBRARIES = ("peftlab", "torch", "tokenizers", "safetensors", "numpy", "scipy")


def gather(jobs: Sequence[Job], data: dict[str, Labelled], base_hash: str, command: str, quick: bool) -> Comparison:
    """The comparison that the jobs make together; `data` by the name that the configuration gives the task."""
    tasks = {labelled.name: compared(labelled) for labelled in data.values()}
    runs = [result_of(job, tasks[data[job.config.task.name].name]) for job in jobs]
    first = jobs[0].config
    return Comparison(
        title=f"{len({run.method for run in runs})} methods on {', '.join(tasks)}",
        base=first.base,
        tasks=list(tasks.values()),
        runs=runs,
        versions={name: version(name) for name in LIBRARIES} | {"python": platform.python_version()},
        hashes={first.base: base_hash} | {labelled.name: labelled.fingerprint() for labelled in data.values()},
        command=command,
        config=first.to_toml(),
        quick=quick,
    )


def compared(data: Labelled) -> ComparedTask:
    """The test rows of a task, its parts one after the other."""
    parts = list(data.tests.values())
    return ComparedTask(
        name=data.name,
        labels=list(data.labels),
        gold=[label for part in parts for label in part.labels],
        metric=data.metric,
        texts=[text for part in parts for text in part.texts],  # type: ignore[arg-type]
        splits={name: len(part) for name, part in data.tests.items()} if len(parts) > 1 else {},
    )


def result_of(job: Job, task: ComparedTask) -> RunResult:
    """What a run left in its folder."""
    names = {"method": job.config.method["name"], "task": task.name, "seed": job.config.train.seed}
    if job.state != "done":
        return RunResult(**names, status="failed", note=job.note, run=str(job.folder))
    found, config = read(job.folder / "result.json"), read_config_file(job.folder / "config.toml")
    predictions = [label for part in found["predictions"].values() for label in part]
    losses = [point["loss"] for point in found["curve"]]
    note = collapsed(predictions, task.gold, losses)
    costs = ("trainable", "trainable_without_head", "base_parameters", "adapter_bytes", "peak_memory")
    times = ("ms_step", "tokens_second", "seconds", "steps")
    return RunResult(
        **names,
        status="done" if note is None else "collapsed",
        note=note or "",
        scores={key: found[key] for key in ("accuracy", "f1", "matthews")},
        **{key: found[key] for key in (*costs, *times)},
        run=str(job.folder),
        predictions=predictions,
        curve=found["curve"],
        settings={**config.method, **config.train.model_dump(exclude_none=True)},
    )


def read(path: Path) -> dict[str, Any]:
    """A run's result."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
