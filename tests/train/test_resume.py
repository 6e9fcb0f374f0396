"""A run that was interrupted, anywhere, ends with the bits of one that was not."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from small import bits, films, write_base, write_films

from peftlab import native
from peftlab.data import files
from peftlab.errors import Stopped, UserError
from peftlab.train import asking, loop
from peftlab.train import run as run_module
from peftlab.train.checkpoint import Checkpoints, State
from peftlab.train.config import Config
from peftlab.train.precision import pick_device, pick_precision
from peftlab.train.run import run


@pytest.fixture
def final(monkeypatch) -> dict[str, State]:
    """The state at the end of the last training: weights, optimizer, random generators, losses."""
    seen: dict[str, State] = {}

    def watched(training, *others):
        result = loop.train(training, *others)
        seen["state"] = training.state()
        return result

    monkeypatch.setattr(run_module, "train", watched)
    return seen


def assert_same(one: State, other: State) -> None:
    assert one.tensors.keys() == other.tensors.keys()
    assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    facts = [json.loads(json.dumps(state.facts)) for state in (one, other)]
    for fact in facts:
        for timing in ("seconds", "wall"):
            fact["progress"].pop(timing)
    assert facts[0] == facts[1]


def interrupt(config: Config, folder: Path, step: int) -> None:
    """Run, and ask to stop by a signal when the line of a step is told."""

    def tell(line) -> None:
        if line["step"] == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped) as stopped:
        run(config, folder, tell)
    assert stopped.value.code == 143
    assert not (folder / "result.json").exists()


@pytest.mark.parametrize("method", ["lora", "p_tuning", "full", "slow_start"])
def test_interrupted_after_every_step(method, tiny, films_file, tmp_path, final):
    config = films(tiny, films_file, method)
    run(config, tmp_path / "whole")
    expected, whole = final["state"], bits(tmp_path / "whole")
    for step in range(1, 14) if method == "lora" else (2, 5, 6, 13):  # 5 and 10 are evaluated, 6 ends an epoch
        folder = tmp_path / str(step)
        interrupt(config, folder, step)
        run(config, folder)
        assert_same(final["state"], expected)
        assert bits(folder) == whole
        assert not (folder / "checkpoints").exists()


def test_interrupted_again_and_again(tiny, films_file, tmp_path, final):
    config = films(tiny, films_file)
    run(config, tmp_path / "whole")
    expected = final["state"]
    for step in range(1, 14):
        interrupt(config, tmp_path / "often", step)
    run(config, tmp_path / "often")
    assert_same(final["state"], expected)
    assert bits(tmp_path / "often") == bits(tmp_path / "whole")


@pytest.mark.parametrize("number", range(1, 5))
def test_interrupted_during_an_evaluation_or_the_test(number, tiny, films_file, tmp_path, final, monkeypatch):
    config = films(tiny, films_file)
    run(config, tmp_path / "whole")
    expected = final["state"]
    calls = []

    def interrupting(lengths, tokens):
        calls.append(len(lengths))
        if len(calls) == number:  # three evaluations, then the test
            os.kill(os.getpid(), signal.SIGINT)
        return batches(lengths, tokens)

    batches = asking.sorted_batches
    monkeypatch.setattr(asking, "sorted_batches", interrupting)
    with pytest.raises(Stopped) as stopped:
        run(config, tmp_path / "part")
    assert stopped.value.code == 130
    monkeypatch.setattr(asking, "sorted_batches", batches)
    run(config, tmp_path / "part")
    assert_same(final["state"], expected)
    assert bits(tmp_path / "part") == bits(tmp_path / "whole")


def test_a_checkpoint_after_each_step_changes_nothing(tiny, films_file, tmp_path):
    run(films(tiny, films_file), tmp_path / "none")
    run(films(tiny, films_file, checkpoint=0), tmp_path / "each")
    assert bits(tmp_path / "none") == bits(tmp_path / "each")


def test_signals_of_a_real_process(tiny, films_file, tmp_path):
    """SIGTERM: 143; SIGINT: 130; both say what is saved; a second SIGINT stops at once."""
    config = films(tiny, films_file, steps=100_000, evaluations=1)
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        process = start(config, tmp_path)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == code, errors
        assert "is saved in" in errors
        assert "Traceback" not in errors
        assert Checkpoints(tmp_path / "run" / "checkpoints", "").there()


def test_a_second_interrupt_stops_at_once():
    """The first is answered between two steps; one that never ends leaves the second."""
    code = "import time; from peftlab.train.stop import stopping\nwith stopping(): print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=10)[1]
    assert process.returncode != 0


def start(config: Config, folder: Path) -> subprocess.Popen[str]:
    """A process that trains, once it has done some steps."""
    (folder / "asked.toml").write_text(config.to_toml())
    metrics = folder / "run" / "metrics.jsonl"
    before = metrics.stat().st_size if metrics.is_file() else 0
    command = [sys.executable, "-m", "peftlab", "train", str(folder / "asked.toml"), "--out", str(folder / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    end = time.monotonic() + 60
    while not metrics.is_file() or metrics.stat().st_size <= before + 200:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.05)
    return process


def test_two_processes_do_not_share_a_folder(tiny, films_file, tmp_path):
    process = start(films(tiny, films_file, steps=100_000, evaluations=1), tmp_path)
    try:
        with pytest.raises(UserError, match="is in use by another process: wait for it, or choose another --out"):
            run(films(tiny, films_file, steps=100_000, evaluations=1), tmp_path / "run")
    finally:
        process.kill()
        process.communicate()


def test_another_configuration_does_not_go_on_from_it(tiny, films_file, tmp_path):
    interrupt(films(tiny, films_file), tmp_path / "run", 5)
    with pytest.raises(UserError, match=r"there train.seed is 0, here 1; choose another --out, or delete it"):
        run(films(tiny, films_file, seed=1), tmp_path / "run")
    with films_file.open("a") as more:
        more.write("one more film,good\n")
    try:
        with pytest.raises(UserError, match="checkpoints belongs to another base, other data or another version"):
            run(films(tiny, films_file), tmp_path / "run")
    finally:
        write_films(films_file)
    assert run(films(tiny, films_file), tmp_path / "run")["steps"] == 13


def test_another_base_of_the_same_name_does_not_go_on_from_it(minilm, films_file, tmp_path):
    base = write_base(tmp_path / "base", minilm)
    interrupt(films(base, films_file), tmp_path / "run", 5)
    weights = (base / "model.safetensors").read_bytes()
    (base / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(UserError, match="checkpoints belongs to another base, other data or another version"):
        run(films(base, films_file), tmp_path / "run")
    (base / "model.safetensors").write_bytes(weights)
    run(films(base, films_file), tmp_path / "run")
    (base / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(UserError, match="holds a run on other data or another base of the same name"):
        run(films(base, films_file), tmp_path / "run")


def test_what_was_left_to_the_machine_stays_as_it_was(tiny, films_file, tmp_path, monkeypatch):
    """Threads and precision that nobody asked for are written down, and kept on a machine that has others."""
    config = films(tiny, films_file, threads=None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    interrupt(config, tmp_path / "run", 5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    here = pick_precision("auto", pick_device())
    there = "fp32" if here == "bf16" else "bf16"
    monkeypatch.setattr(
        "peftlab.train.config.pick_precision", lambda wanted, *_, **__: there if wanted == "auto" else wanted
    )
    result = run(config, tmp_path / "run")
    assert result["precision"] == here
    assert "threads = 3" in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.skipif(not native.INTEGERS, reason="no run begins in int16 on this processor")
def test_a_run_in_int16_is_read_where_there_is_none_and_goes_on_where_there_is(tiny, films_file, tmp_path, monkeypatch):
    config = films(tiny, films_file)
    result = run(config, tmp_path / "done")
    interrupt(config, tmp_path / "begun", 5)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(native, "INTEGERS", False)
        assert run(config, tmp_path / "done") == result
        with pytest.raises(UserError, match=r"int16 needs .* a run that began in it goes on there"):
            run(config, tmp_path / "begun")
    assert run(config, tmp_path / "begun")["curve"] == result["curve"]


def test_killed_while_a_file_was_written(tiny, films_file, tmp_path, monkeypatch):
    """What was not renamed yet is not part of what a run leaves, and not counted among its bytes."""
    config, flush, half = films(tiny, films_file), files.flush, []

    def killed(path: Path, mode: int) -> None:
        flush(path, mode)
        if path.parent.name == "adapter":
            half.append((path, path.read_bytes()))
            raise KeyboardInterrupt

    run(config, tmp_path / "whole")
    with monkeypatch.context() as inside:
        inside.setattr(files, "flush", killed)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "again")
    path, content = half[0]
    assert not path.exists()
    path.write_bytes(content)  # after a KeyboardInterrupt it is removed, after a SIGKILL it is not
    mine = path.with_name(".mine.tmp")
    mine.touch()
    run(config, tmp_path / "again")
    assert mine.exists()
    mine.unlink()
    assert bits(tmp_path / "again") == bits(tmp_path / "whole")


def test_killed_at_many_moments(kills):
    """`pytest --kills 200` for the full count."""
    script = Path(__file__).with_name("interrupted.py")
    environment = os.environ | {"PYTHONPATH": str(script.parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), "--count", str(kills)], capture_output=True, text=True, env=environment
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
