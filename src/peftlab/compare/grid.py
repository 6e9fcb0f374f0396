"""The grid of a comparison: methods × tasks × seeds, each run a process of its own with its own folder.

As many run at once as there are cores, each with its share of the threads: on small models two single-threaded runs
finish sooner than one after the other with two threads. What all need is read once: modules, the base, and all data but
images. A crash is a row that says so, not the end. Runs that are done are recognised by the hash of their configuration
and data (`train/run.py`) and are not run again.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from peftlab.compare.ready import READY, VARIABLE
from peftlab.data.files import make_folder, write_text
from peftlab.errors import Stopped, UserError, told
from peftlab.peft import METHODS
from peftlab.train.config import Config, make_config, override_value, read_config_file
from peftlab.train.run import run
from peftlab.train.stop import stopping
from peftlab.train.work import Comparable

POLL = 0.2
"""seconds between two looks at the processes, where none of them ends"""
PRELOADED = ["peftlab.compare.grid"]
"""what a run takes seconds to import, the base with it (ready.py): imported once, then forked"""

KINDS = ("task", "tag", "parse", "images")
"""sections of a configuration on which methods can be compared"""
GRID = {
    "base": "--base",
    "method": "--methods",
    "method.name": "--methods",
    **{f"{kind}{key}": f"--{kind}" for kind in KINDS for key in ("", ".name")},
    "train": "train.key=value",
    "train.seed": "--seeds",
}
"""what the options of a comparison decide"""


@dataclass
class Job:
    """One run of the grid."""

    config: Config
    folder: Path
    title: str
    """what it is called while it is watched"""
    task: str = ""
    """as the comparison names it"""
    like: Comparable | None = field(default=None, repr=False)
    """work on the same data, which the run then does not read again"""
    state: str = "waiting"
    """waiting, running, done or failed"""
    note: str = ""
    """why it failed"""
    begun: int | None = None
    """the first step that was seen of it: one that goes on does not begin at 0"""
    step: int = 0
    steps: int = 0
    score: float | None = None
    """the last score on the validation part"""
    started: float = 0.0
    ended: float = 0.0
    process: BaseProcess | None = field(default=None, repr=False)

    def left(self, now: float) -> float | None:
        """Seconds until its last step, at the pace so far."""
        done = self.step - (self.begun or 0)
        return (now - self.started) / done * (self.steps - self.step) if done else None


def plan(
    methods: Sequence[str],
    kind: str,
    tasks: Sequence[dict[str, Any]],
    seeds: int,
    out: Path,
    settings: dict[str, Any],
    overrides: Sequence[str] = (),
    settle: Callable[[Config], list[str]] = lambda config: [],
) -> list[Job]:
    """The runs of a grid, each with its complete configuration; a mistake in any of them is told before one starts.

    `kind` is the section of the tasks' settings. `settle` gives what else is to be set, once the configuration of a
    method on a task is known.
    """
    jobs = []
    for task in tasks:
        for method in methods:
            content = json.loads(json.dumps(settings))
            content[kind] = {**content.get(kind, {}), **task}
            content["method"] = {"name": method}
            for override in overrides:
                override_for(content, override)
            for override in settle(make_config(content, "the comparison")):
                override_value(content, override)
            for seed in range(seeds):
                content["train"] = {**content.get("train", {}), "seed": seed}
                config = make_config(content, "the comparison")
                name = Path(task["name"]).stem
                folder = out / "runs" / f"{method}-{name}-{seed}"
                jobs.append(Job(config, folder, f"{method} · {name} · seed {seed}", task["name"]))
    return jobs


def override_for(content: dict[str, Any], override: str) -> None:
    """`train.lr=1e-3` for every run, `lora.rank=4` or `lora.lr=1e-3` for those of one method; what the grid itself
    decides stays.
    """
    key = override.partition("=")[0].strip()
    first, _, rest = override.partition(".")
    if first in METHODS and rest.partition("=")[0].strip() == "name":
        key = "method.name"
    if key in GRID:
        raise UserError(f"--set {key} would make all runs alike: use {GRID[key]}")
    if first not in METHODS:
        override_value(content, override)
    elif first == content["method"]["name"]:
        own = "train" if rest.partition("=")[0].strip() == "lr" else "method"  # each has a rate of its own
        override_value(content, f"{own}.{rest}")


def processes() -> Any:
    """How runs become processes of their own."""
    ways = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in ways else "spawn")
    context.set_forkserver_preload(PRELOADED)
    return context


def make_ready(base: Path | None = None) -> None:
    """Begin to import what all runs need, while there is something else to do; Ctrl-C does not disturb it there. They
    also need a base, which is in a folder that is whole.
    """
    if processes().get_start_method() == "forkserver":
        from multiprocessing import forkserver, resource_tracker  # which other systems have not

        resource_tracker.ensure_running()  # before: it would let signals through again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        if base is not None:
            os.environ[VARIABLE] = str(base)
        try:
            forkserver.ensure_running()
        finally:
            os.environ.pop(VARIABLE, None)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_grid(jobs: Sequence[Job], workers: int, watch: Callable[[Sequence[Job]], None], out: Path) -> None:
    """Run all jobs, `workers` at a time; `watch` sees them after each look. Asked to stop, let the runs save."""
    if workers < 1:
        raise UserError(f"{workers} runs at a time would never end: ask for one at least")
    waiting = list(jobs)
    threads = max(1, (os.cpu_count() or 1) // workers)
    make_ready()
    with stopping() as stop:
        try:
            while any(job.state in ("waiting", "running") for job in jobs) and stop.number is None:
                for job in jobs:
                    if job.state == "running":
                        look(job)
                while waiting and sum(job.state == "running" for job in jobs) < workers:
                    start(waiting.pop(0), threads)
                watch(jobs)
                wait([job.process.sentinel for job in jobs if job.state == "running" and job.process], POLL)
        finally:
            running = [job.process for job in jobs if job.process is not None and job.process.is_alive()]
            for process in running:
                process.terminate()
            for process in running:
                process.join()
        if stop.number is not None:
            raise Stopped(stop.number, f"the runs so far are saved in {out}")
        watch(jobs)


def start(job: Job, threads: int) -> None:
    """Start a run's process; the run writes down how many threads it had, and keeps to that when it goes on."""
    make_folder(job.folder)
    write_text(job.folder / "asked.toml", job.config.to_toml())
    write_text(job.folder / "log.txt", "")
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"}
    job.process = processes().Process(target=train_alone, args=(job.folder, threads, environment, job.like))
    job.state, job.started = "running", time.monotonic()
    try:
        job.process.start()
    except OSError as error:  # it ended before it had received all
        job.state, job.note, job.ended = "failed", f"its process did not start: {error}", time.monotonic()


def train_alone(folder: Path, threads: int, environment: dict[str, str], like: Comparable | None) -> None:
    """The run of a folder, in a process of its own; what it says goes into its log."""
    gc.freeze()  # what was imported before it is no garbage
    os.environ.update(environment)
    with (folder / "log.txt").open("wb") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    torch.set_num_threads(threads)
    with told():
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        if like is not None:
            like.ready = READY
        run(read_config_file(folder / "asked.toml"), folder, like=like)


def look(job: Job) -> None:
    """Read how far a run is, and whether it has ended."""
    assert job.process is not None
    code = job.process.exitcode
    for line in last_lines(job.folder / "metrics.jsonl"):
        job.step, job.steps = line["step"], line["steps"]
        job.begun = job.step - 1 if job.begun is None else job.begun
        job.score = line.get("score", job.score)
    if code is None:
        return
    job.ended = time.monotonic()
    if code == 0 and (job.folder / "result.json").is_file():
        job.state = "done"
    else:
        log = (job.folder / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        how = f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with code {code}"
        job.state, job.note = "failed", log[-1] if log and code > 0 else f"{how} and said nothing more"


def last_lines(path: Path) -> list[dict[str, Any]]:
    """The newest complete lines of a metrics file."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2000))
        lines = file.read().decode("utf-8", errors="ignore").split("\n")[:-1]
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # the first may be cut
    return found
