"""Runs that are forked with their base in memory: the same bits, and no other base than they were asked for."""

import subprocess
import sys

import pytest
from small import bits, films, write_base

from peftlab.compare import ready
from peftlab.models.base import base_fingerprint, load
from peftlab.train import classifying, work
from peftlab.train.run import open_work, run

FORKED = """
import sys
from pathlib import Path
from peftlab.compare import grid

def tell():
    print(grid.READY.fingerprint)

if __name__ == "__main__":
    grid.make_ready(Path(sys.argv[1]))
    process = grid.processes().Process(target=tell)
    process.start()
    process.join()
"""


@pytest.mark.parametrize("method", ["lora", "full", "head"])
def test_a_base_that_is_there_is_not_read_again(tiny, films_file, tmp_path, monkeypatch, method):
    config = films(tiny, films_file, method)
    run(config, tmp_path / "reads")
    like = open_work(config)
    like.ready = ready.read(str(tiny))
    monkeypatch.setattr(work, "load", lambda name: pytest.fail("it was read"))
    run(config, tmp_path / "has", like=like)
    assert bits(tmp_path / "has") == bits(tmp_path / "reads")


def test_nothing_is_hashed_or_tokenised_again(tiny, films_file, tmp_path, monkeypatch):
    config = films(tiny, films_file)
    run(config, tmp_path / "alone")
    like = open_work(config)
    like.hashes()
    like.share(load(tiny))
    like.ready = ready.read(str(tiny))
    monkeypatch.setattr(work, "base_fingerprint", lambda name: pytest.fail("it was hashed"))
    monkeypatch.setattr(classifying, "encode", lambda *_: pytest.fail("it was tokenised"))
    run(config, tmp_path / "shared", like=like)
    assert bits(tmp_path / "shared") == bits(tmp_path / "alone")


def test_texts_are_tokenised_again_where_fewer_tokens_may_stay(tiny, films_file, tmp_path):
    config = films(tiny, films_file)
    run(config, tmp_path / "alone")
    like = open_work(config.model_copy(update={"task": config.task.model_copy(update={"max_length": 4})}))
    like.share(load(tiny))
    run(config, tmp_path / "other", like=like)
    assert bits(tmp_path / "other") == bits(tmp_path / "alone")


def test_another_base_than_was_asked_for_is_not_taken(tiny, minilm, films_file, tmp_path):
    config = films(tiny, films_file)
    run(config, tmp_path / "alone")
    like = open_work(config)
    like.ready = ready.read(str(write_base(tmp_path / "other", minilm, num_hidden_layers=1)))
    run(config, tmp_path / "beside", like=like)
    assert bits(tmp_path / "beside") == bits(tmp_path / "alone")


def test_a_base_that_can_not_be_read_is_left_to_the_runs(tmp_path):
    assert ready.read(str(tmp_path)) is None
    assert ready.read(None) is None


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")
def test_the_process_that_runs_are_forked_from_reads_it(tiny, tmp_path):
    script = tmp_path / "forked.py"
    script.write_text(FORKED)
    told = subprocess.run([sys.executable, script, tiny], capture_output=True, text=True, check=True)
    assert told.stdout.split() == [base_fingerprint(tiny)]
