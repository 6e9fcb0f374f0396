"""What a run says while it trains: the lines of `metrics.jsonl`, and TensorBoard's files with the same numbers."""

import json
import os
import signal
import sys

import pytest
from small import films

from peftlab.errors import Stopped, UserError
from peftlab.train.run import run


def told(folder) -> dict[str, list[tuple[int, float]]]:
    """step and value of each number in `metrics.jsonl`."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {name: [(line["step"], line[name]) for line in lines if name in line] for name in ("loss", "score")}


def test_tensorboard_shows_what_the_metrics_say_also_after_an_interruption(tiny, films_file, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = films(tiny, films_file, tensorboard=True)

    def interrupting(line) -> None:
        if line["step"] == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        run(config, tmp_path / "run", interrupting)
    run(config, tmp_path / "run")
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    for name, expected in told(tmp_path / "run").items():
        shown = [(event.step, event.value) for event in board.Scalars(name)]
        assert [step for step, _ in shown] == [step for step, _ in expected]
        assert [value for _, value in shown] == pytest.approx([value for _, value in expected], rel=1e-6)
    assert len(told(tmp_path / "run")["loss"]) == 13
    assert len(told(tmp_path / "run")["score"]) == 3


def test_without_the_package_it_is_told_how_to_get_it(tiny, films_file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"train.tensorboard needs the package tensorboard: pip install 'peftlab\[tens"):
        run(films(tiny, films_file, tensorboard=True), tmp_path / "run")
