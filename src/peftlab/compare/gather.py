"""From the folders of a grid's runs to one comparison: scores, costs, predictions, and what failed and why."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peftlab import native
from peftlab.compare.grid import Job
from peftlab.compare.results import ComparedTask, Comparison, RunResult
from peftlab.compare.statistics import collapsed, no_better
from peftlab.train.config import read_config_file
from peftlab.train.work import Comparable

LIBRARIES = ("peftlab", "torch", "tokenizers", "safetensors", "numpy", "scipy")


def gather(
    jobs: Sequence[Job], works: dict[str, Comparable], hashes: dict[str, str], command: str, quick: bool
) -> Comparison:
    """The comparison that the jobs make together; the works by the name that each configuration gives its task."""
    results = [read(job.folder / "result.json") if job.state == "done" else {} for job in jobs]
    tasks = {work.name: compared(work, results) for work in works.values()}
    runs = [
        result_of(job, found, works[job.task], tasks[works[job.task].name])
        for job, found in zip(jobs, results, strict=True)
    ]
    first = jobs[0].config
    return Comparison(
        title=f"{len({run.method for run in runs})} methods on {', '.join(tasks)}",
        base=first.base,
        tasks=list(tasks.values()),
        runs=runs,
        versions={name: version(name) for name in LIBRARIES}
        | {"python": platform.python_version(), "kernels": native.NAME},
        hashes=hashes,
        command=command,
        config=first.to_toml(),
        quick=quick,
    )


def compared(work: Comparable, results: Sequence[dict[str, Any]]) -> ComparedTask:
    """The test rows of a task, its parts one after the other, and what its runs say of them."""
    tests = work.data.tests
    majorities = [score for part in tests.values() if (score := work.majority(part)) is not None]
    return ComparedTask(
        name=work.name,
        labels=list(work.labels),
        gold=[gold for part in tests.values() for gold in work.gold(part)],
        metric=work.metric,
        texts=[text for part in tests.values() for text in work.texts(part)],
        splits={name: len(part) for name, part in tests.items()} if len(tests) > 1 else {},
        majority=sum(majorities) / len(majorities) if majorities else None,
        note=noted([found for found in results if found.get("task") == work.name]),
    )


def noted(results: Sequence[dict[str, Any]]) -> str:
    """What runs say of their data; with the methods, where virtual tokens of some leave room for fewer words."""
    said: dict[str, list[str]] = {}
    for found in results:
        methods = said.setdefault(found.get("note", ""), [])
        if found["method"] not in methods:
            methods.append(found["method"])
    if len(said) == 1:
        return next(iter(said))
    return "; ".join(f"{note} ({', '.join(methods)})" for note, methods in said.items() if note)


def result_of(job: Job, found: dict[str, Any], work: Comparable, task: ComparedTask) -> RunResult:
    """What a run left in its folder, `found` of it its result."""
    names = {"method": job.config.method["name"], "task": task.name, "seed": job.config.train.seed}
    if job.state != "done":
        return RunResult(**names, status="failed", note=job.note, run=str(job.folder))
    config = read_config_file(job.folder / "config.toml")
    losses = [point["loss"] for point in found["curve"]]
    answers: dict[str, list[Any]] = found["predictions"]
    outcomes = [work.outcomes(answers[name], part) for name, part in work.data.tests.items()]
    predictions: list[Any] = [row for part in outcomes for row in part]
    if task.labels:
        note = collapsed(predictions, task.gold, losses)
    else:
        note = no_better(found[task.metric], task.majority_score(), losses)
    costs = ("trainable", "trainable_without_head", "base_parameters", "adapter_bytes", "peak_memory")
    times = ("ms_step", "tokens_second", "seconds", "steps")
    return RunResult(
        **names,
        status="done" if note is None else "collapsed",
        note=note or "",
        scores={key: found[key] for key in next(iter(found["tests"].values()))},
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
