"""What goes wrong while a run trains: a full disk, a damaged checkpoint, numbers that are none, no memory."""

import errno
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small import bits, films, write_base, write_films

from peftlab.data import files
from peftlab.errors import UserError
from peftlab.tasks import classify
from peftlab.train import checkpoint as checkpoint_module
from peftlab.train import loop
from peftlab.train.checkpoint import Checkpoints, State
from peftlab.train.run import run

BACKWARD = loop.backward


def state(number: float) -> State:
    return State({"w": torch.full((100,), number), "b": torch.zeros(3)}, {"progress": {"step": number}})


@pytest.fixture
def two(tmp_path) -> Checkpoints:
    """Two checkpoints."""
    saved = Checkpoints(tmp_path / "checkpoints", "mine")
    saved.save(3, state(3.0))
    saved.save(6, state(6.0))
    return saved


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_last_two_are_kept_and_the_newest_is_taken(two):
    two.save(9, state(9.0))
    assert two.there() == [(6, 0), (9, 0)]
    found = two.latest()
    assert found.facts == {"progress": {"step": 9.0}}
    assert torch.equal(found.tensors["w"], torch.full((100,), 9.0))
    assert not list(two.folder.glob(".*"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_found_and_the_one_before_is_taken(two, data):
    name = data.draw(st.sampled_from(["state.safetensors", "state.json", files.MANIFEST]))
    path = two.at((6, 0)) / name
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        damaged = whole[:place]
    else:
        flipped = whole[place] ^ (1 << data.draw(st.integers(0, 7)))
        damaged = whole[:place] + bytes([flipped]) + whole[place + 1 :]
    path.write_bytes(damaged)
    try:
        with pytest.warns(UserWarning, match="the checkpoint before it is taken"):
            found = two.latest()
        assert found.facts == {"progress": {"step": 3.0}}
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", files.MANIFEST])
def test_a_missing_file_is_damage_too(two, name):
    (two.at((6, 0)) / name).unlink()
    with pytest.warns(UserWarning, match="the checkpoint before it is taken"):
        assert two.latest().facts == {"progress": {"step": 3.0}}
    two.save(6, state(6.5))  # training comes by there again
    assert two.there() == [(6, 0), (6, 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert two.latest().facts == {"progress": {"step": 6.5}}


def test_what_a_killed_process_left_is_cleared(two):
    half = two.folder / ".step-00000009.abcd.tmp"
    half.mkdir()
    (half / "state.safetensors").write_bytes(b"half")
    assert two.latest().facts == {"progress": {"step": 6.0}}
    two.save(9, state(9.0))
    assert not half.exists()


def test_too_little_space_is_told_before_anything_is_written(two, monkeypatch):
    before = contents(two.folder)
    monkeypatch.setattr(checkpoint_module.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 99))
    with pytest.raises(UserError, match=r"step-00000009-0 could not be written, it needs 1,000,412 bytes: 99 are free"):
        two.save(9, state(9.0))
    assert contents(two.folder) == before


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("call", range(4))
def test_a_disk_that_fails_leaves_the_checkpoint_before(two, monkeypatch, number, call):
    before, calls, fsync = contents(two.folder), [], os.fsync

    def failing(handle: int) -> None:
        calls.append(handle)
        if len(calls) == call + 1:
            raise OSError(number, os.strerror(number))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(UserError, match="step-00000009-0 could not be written, it needs 1,000,412 bytes"):
        two.save(9, state(9.0))
    monkeypatch.setattr(os, "fsync", fsync)
    assert contents(two.folder) == before
    assert two.latest().facts == {"progress": {"step": 6.0}}


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="to become nobody one must be root")
def test_a_folder_that_may_not_be_written_to(two):
    two.folder.chmod(0o755)
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            two.save(9, state(9.0))
        except UserError as error:
            os._exit(0 if "Permission denied" in str(error) and "step-00000009-0" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert two.there() == [(3, 0), (6, 0)]


LIMITED = """
import resource, sys
from pathlib import Path
from peftlab.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
main()
"""


def test_a_disk_that_fills_up_while_training(tiny, films_file, tmp_path):
    """Files may have 300 kB, a checkpoint of all weights needs 8 MB: no success is told, and what was saved stays."""
    config = films(tiny, films_file, "full", checkpoint=0)
    (tmp_path / "asked.toml").write_text(config.to_toml())
    calls = []

    def once(line) -> None:
        calls.append(line)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", once)
    before = contents(tmp_path / "run" / "checkpoints")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "train", str(tmp_path / "asked.toml"), "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert "checkpoints/step-" in done.stderr
    assert "could not be written, it needs" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "run" / "result.json").exists()
    assert contents(tmp_path / "run" / "checkpoints") == before
    run(config, tmp_path / "run")
    run(config, tmp_path / "whole")
    assert bits(tmp_path / "run") == bits(tmp_path / "whole")


@pytest.mark.parametrize("what", ["loss", "gradient", "input"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_caught_at_its_step(tiny, films_file, tmp_path, monkeypatch, what, bad):
    inject(monkeypatch, what, bad, step=4)
    with pytest.raises(UserError, match=r"not finite at step 4 \(training rows \d+(, \d+)+\)"):
        run(films(tiny, films_file), tmp_path / "stop")
    inject(monkeypatch, what, bad, step=4)
    result = run(films(tiny, films_file, nonfinite="skip"), tmp_path / "skip")
    assert result["skipped"] == [4]
    assert result["steps"] == 13
    assert all(map(torch.isfinite, map(torch.tensor, (point["loss"] for point in result["curve"]))))


def inject(monkeypatch, what: str, bad: float, step: int) -> None:
    """A bad number in a step's second part."""
    calls, backward = [], BACKWARD

    def spoiled(model, task, data, rows, parts, precision):
        calls.append(rows)
        if len(calls) != step:
            return backward(model, task, data, rows, parts, precision)
        parameter = next(p for p in model.parameters() if p.requires_grad)
        words = model.embedding.words.weight
        if what == "loss":
            with monkeypatch.context() as inside:
                losses, honest = iter([1.0, bad]), task.loss
                inside.setattr(classify.Classify, "loss", lambda _, *given: honest(*given) * next(losses))
                return backward(model, task, data, rows, parts, precision)
        if what == "gradient":
            handle = parameter.register_hook(lambda g: g + bad)
            loss = backward(model, task, data, rows, parts, precision)
            handle.remove()
            return loss
        good = words.detach().clone()
        words.data[data.ids[rows[-1]][1]] = bad
        loss = backward(model, task, data, rows, parts, precision)
        words.data.copy_(good)
        return loss

    monkeypatch.setattr(loop, "backward", spoiled)


def test_where_memory_runs_out_steps_get_smaller_parts(tiny, films_file, tmp_path, monkeypatch):
    backward = loop.backward

    def greedy(model, task, data, rows, parts, precision):
        loss = backward(model, task, data, rows, parts, precision)
        if parts < 8:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
        return loss

    expected = run(films(tiny, films_file, accumulate=8), tmp_path / "eight")
    monkeypatch.setattr(loop, "backward", greedy)
    result = run(films(tiny, films_file), tmp_path / "two")
    assert result["parts"] == 8
    assert result["curve"] == expected["curve"]
    monkeypatch.setattr(loop, "backward", lambda *_: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(UserError, match="memory does not suffice for a single row"):
        run(films(tiny, films_file), tmp_path / "none")


STARVED = """
import json, resource, sys
from pathlib import Path
from peftlab.train import loop
from peftlab.train.config import read_config_file
from peftlab.train.run import run

def limit():
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + int(sys.argv[3]), resource.RLIM_INFINITY))

step = loop.Training.step
def first(self):
    limit()
    loop.Training.step = step
    step(self)
loop.Training.step = first
print(json.dumps(run(read_config_file(Path(sys.argv[1])), Path(sys.argv[2]))["parts"]))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="how large a process is stands in /proc")
def test_memory_that_really_runs_out(minilm, tmp_path):
    base = write_base(tmp_path / "base", minilm, hidden_size=256, intermediate_size=1024)
    long = write_films(tmp_path / "films.csv", rows=160)
    lines = long.read_text().splitlines()
    long.write_text("\n".join([lines[0], *(line.replace("number", "and " * 120) for line in lines[1:])]))
    config = films(base, long, "lora", steps=2, batch=64, accumulate=1, evaluations=1)
    (tmp_path / "asked.toml").write_text(config.to_toml())
    done = subprocess.run(
        [sys.executable, "-c", STARVED, str(tmp_path / "asked.toml"), str(tmp_path / "run"), str(260_000_000)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1
