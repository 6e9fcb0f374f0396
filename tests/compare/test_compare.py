"""A comparison from end to end on a small base: what it leaves, what it does not run again, and what goes wrong."""

import json
import multiprocessing
import multiprocessing.forkserver
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peftlab.compare import grid
from peftlab.compare.compare import Question, compare
from peftlab.errors import UserError
from peftlab.report import write


def question(base: Path, file: Path, **choices) -> Question:
    task = {"name": str(file), "text": "review", "label": "verdict"}
    defaults = {"methods": ["lora", "head"], "seeds": 2, "steps": 6, "base": str(base), "workers": 2}
    return Question([task], **(defaults | choices))


@pytest.fixture(scope="module")
def done(tiny, films_file, tmp_path_factory):
    """A finished comparison and its folder."""
    out = tmp_path_factory.mktemp("comparison")
    comparison = compare(question(tiny, films_file), out, "peftlab compare …")
    write(comparison, out)
    return comparison, out


def test_every_run_has_its_row_and_its_folder(done):
    comparison, out = done
    assert [(run.method, run.seed) for run in comparison.runs] == [("lora", 0), ("lora", 1), ("head", 0), ("head", 1)]
    rows = json.loads((out / "results.json").read_text())
    assert len(rows) == 4
    for row in rows:
        assert {"method", "task", "seed", "accuracy", "f1", "trainable", "seconds", "run"} <= row.keys()
        assert (Path(row["run"]) / "result.json").is_file()
        assert 0 <= row["accuracy"] <= 1
    assert len((out / "results.csv").read_text().splitlines()) == 5
    assert "</html>" in (out / "report.html").read_text()


def test_what_is_done_is_not_run_again(tiny, films_file, done):
    comparison, out = done
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/result.json")}
    again = compare(question(tiny, films_file, methods=["lora", "head", "bitfit"]), out)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(again.runs) == 6
    assert [run.predictions for run in again.runs[:4]] == [run.predictions for run in comparison.runs]


def test_the_data_is_read_once_for_all_runs(tiny, films_file, done, tmp_path, monkeypatch):
    start, file = grid.start, Path(shutil.copy(films_file, tmp_path))

    def without_file(job, threads) -> None:
        file.unlink(missing_ok=True)
        start(job, threads)

    monkeypatch.setattr(grid, "start", without_file)
    comparison = compare(question(tiny, file), tmp_path / "out")
    assert [run.predictions for run in comparison.runs] == [run.predictions for run in done[0].runs]


def test_another_configuration_is_refused_before_anything_runs(tiny, films_file, done, monkeypatch):
    _, out = done
    monkeypatch.setattr(grid, "start", lambda *_: pytest.fail("a run was started"))
    with pytest.raises(UserError, match=r"lora-films-0 holds a run of another configuration: there task.limit is 40"):
        compare(question(tiny, films_file, steps=7), out)


def test_a_crash_is_a_row_that_says_so(tiny, films_file, tmp_path, monkeypatch):
    start = grid.start

    def crashing(job, threads) -> None:
        start(job, threads)
        if job.config.method["name"] == "lora" and job.config.train.seed == 1:
            job.process.kill()

    monkeypatch.setattr(grid, "start", crashing)
    comparison = compare(question(tiny, films_file), tmp_path)
    status = {(run.method, run.seed): run.status for run in comparison.runs}
    assert status.pop(("lora", 1)) == "failed"
    assert "failed" not in status.values()
    (failed,) = (run for run in comparison.runs if run.status == "failed")
    assert failed.note == "it was ended by SIGKILL and said nothing more"
    write(comparison, tmp_path)
    assert "failed" in (tmp_path / "report.html").read_text()
    monkeypatch.setattr(grid, "start", start)
    assert all(run.status != "failed" for run in compare(question(tiny, films_file), tmp_path).runs)


def test_a_process_that_does_not_start_is_a_row_that_says_so(tiny, films_file, tmp_path, monkeypatch):
    def breaking(self) -> None:
        raise BrokenPipeError("Broken pipe")

    monkeypatch.setattr(multiprocessing.get_context("forkserver").Process, "start", breaking)
    with pytest.raises(UserError, match="no run ended well; the first said: its process did not start: Broken pipe"):
        compare(question(tiny, films_file), tmp_path)


def blocked(process: int) -> bool:
    """Whether Ctrl-C waits outside of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    return bool(int(re.findall(r"SigBlk:\s*(\w+)", status)[0], 16) >> (signal.SIGINT - 1) & 1)


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="it is Linux that tells which signals are blocked")
def test_ctrl_c_reaches_runs_and_not_what_imports_for_them(tiny, films_file, tmp_path):
    job = question(tiny, films_file, steps=100_000, methods=["lora"]).jobs(tmp_path)[0]
    grid.make_ready()
    assert blocked(multiprocessing.forkserver._forkserver._forkserver_pid)
    grid.start(job, 1)
    try:
        end = time.monotonic() + 60
        while blocked(job.process.pid) and time.monotonic() < end:
            time.sleep(0.05)
        assert not blocked(job.process.pid)
    finally:
        job.process.terminate()
        job.process.join()


def fails(*_) -> None:
    sys.exit(1)


def test_where_every_run_fails_the_reason_is_told(tiny, films_file, tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "train_alone", fails)
    with pytest.raises(UserError, match="no run ended well; the first said: it ended with code 1"):
        compare(question(tiny, films_file), tmp_path)


def test_a_budget_of_parameters_sets_each_size(tiny, films_file, tmp_path):
    jobs = question(
        tiny, films_file, methods=["lora", "adapter", "prompt", "prefix", "head"], budget="params=640"
    ).jobs(tmp_path)
    sizes = {job.config.method["name"]: job.config.method for job in jobs}
    # width 16, 2 layers: LoRA on q and v 128 · rank, prompts 16 · tokens, prefixes 64 · length
    assert (sizes["lora"]["rank"], sizes["lora"]["alpha"]) == (5, 10)
    assert sizes["prompt"]["tokens"] == 40
    assert sizes["prefix"]["length"] == 10
    assert sizes["head"] == {"name": "head"}
    assert (tmp_path / "budget.json").is_file()


def test_a_budget_of_seconds_sets_the_steps_once(tiny, films_file, tmp_path):
    asked = question(tiny, films_file, methods=["head"], budget="seconds=0.5")
    first, second = ([job.config.train.steps for job in asked.jobs(tmp_path)] for _ in range(2))
    assert first == second
    assert first[0] > 5


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ("second=3", "unknown budget 'second': did you mean 'seconds'"),
        ("seconds", "--budget 'seconds' has no amount: write seconds=60"),
        ("params=-3", "--budget 'params=-3' has no amount"),
    ],
)
def test_a_budget_that_is_none(tiny, films_file, tmp_path, budget, message):
    with pytest.raises(UserError, match=message):
        question(tiny, films_file, budget=budget).jobs(tmp_path)


def command(base: Path, file: Path, out: Path, *more: str) -> list[str]:
    columns = ["--text", "review", "--label", "verdict", "--base", str(base), "--out", str(out)]
    return [sys.executable, "-m", "peftlab", "compare", "--task", str(file), *columns, *more]


def test_stopped_and_called_again_it_goes_on(tiny, films_file, tmp_path):
    """SIGINT: the runs save, the exit code is 130; the same command then has the result of one that was not stopped."""
    more = ["--methods", "lora,prefix", "--steps", "400", "--limit", "50"]
    process = subprocess.Popen(command(tiny, films_file, tmp_path / "a", *more), stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 90
    while not list((tmp_path / "a").glob("runs/*/metrics.jsonl")):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    blocked = subprocess.run(command(tiny, films_file, tmp_path / "a", *more), capture_output=True, text=True)
    assert blocked.returncode == 2
    assert "is in use by another process: wait for it, or choose another --out" in blocked.stderr
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "the runs so far are saved in" in errors
    assert list((tmp_path / "a").glob("runs/*/checkpoints/step-*"))
    for out in ("a", "b"):
        subprocess.run(command(tiny, films_file, tmp_path / out, *more), check=True, capture_output=True)
    rows = [json.loads((tmp_path / out / "results.json").read_text()) for out in ("a", "b")]
    kept = ("method", "task", "seed", "accuracy", "f1", "trainable")
    assert [[row[key] for key in kept] for row in rows[0]] == [[row[key] for key in kept] for row in rows[1]]


@pytest.mark.skipif(os.name != "posix", reason="a terminal of its own needs a pseudo-terminal")
def test_on_a_terminal_there_is_a_live_table(tiny, films_file, tmp_path):
    import pty

    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(
        command(tiny, films_file, tmp_path, "--methods", "head", "--steps", "5"),
        stdout=slave,
        stderr=slave,
        env=environment,
    )
    os.close(slave)
    seen = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # the other end was closed
            break
        if not chunk:
            break
        seen += chunk
    assert process.wait() == 0, seen.decode(errors="replace")
    text = seen.decode(errors="replace")
    for part in ("validation", "running", "done", "2 of 2 runs ended", "report.html"):
        assert part in text
