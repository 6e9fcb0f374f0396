"""A base so small that a training step takes milliseconds, and a file that it can learn: for tests of whole runs."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

from peftlab.train import loop
from peftlab.train.config import Config, make_config
from peftlab.train.run import run

GOOD = ["a wonderful film", "I loved every minute", "great fun for all", "warm, witty and wise", "a small triumph"]
BAD = ["a dreadful film", "I hated every minute", "no fun at all", "cold, dull and slow", "a large failure"]


def write_base(folder: Path, minilm: Path, **sizes: int) -> Path:
    """A random BERT of two layers with MiniLM's words."""
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 2} | sizes
    transformers.set_seed(0)
    transformers.BertModel(transformers.BertConfig(vocab_size=30522, **sizes)).save_pretrained(folder)
    for name in ("tokenizer.json", "vocab.txt"):
        shutil.copy(minilm / name, folder / name)
    return folder


def write_films(path: Path, rows: int = 60) -> Path:
    """Reviews with a verdict, half of them good."""
    with path.open("w", newline="") as out:
        lines = csv.writer(out)
        lines.writerow(["review", "verdict"])
        for i in range(rows // 2):
            lines.writerow([f"{GOOD[i % 5]}, number {i}", "good"])
            lines.writerow([f"{BAD[i % 5]}, number {i}", "bad"])
    return path


def films(base: Path, file: Path, method: str = "lora", **train) -> Config:
    """A run of a few steps, dropout on, with steps of two parts, two epochs, and evaluations in between."""
    short = {"steps": 13, "batch": 8, "accumulate": 2, "evaluations": 3, "threads": 1, "checkpoint": 1e9}
    task = {"name": str(file), "text": "review", "label": "verdict"}
    return make_config({"base": str(base), "task": task, "method": {"name": method}, "train": short | train})


TIMES = ("peak_memory", "ms_step", "tokens_second", "seconds")


def bits(folder: Path) -> dict[str, object]:
    """All that a finished run leaves, but for its times."""
    result = json.loads((folder / "result.json").read_text())
    files = sorted(path for path in (folder / "adapter").rglob("*") if path.is_file())
    return {
        "result": {key: value for key, value in result.items() if key not in TIMES},
        "metrics": (folder / "metrics.jsonl").read_bytes(),
        "adapter": [(str(path.relative_to(folder)), path.read_bytes()) for path in files],
    }


def left_alone_and_interrupted(config: Config, folder: Path, at: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results of a run that was left alone, and of one that was interrupted at a step and started again; their
    folders are `whole` and `again`.
    """
    step = loop.Training.step

    def interrupted(training) -> None:
        if training.progress.step == at:
            raise KeyboardInterrupt
        step(training)

    with pytest.MonkeyPatch.context() as inside:
        inside.setattr(loop.Training, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(config, folder / "again")
    return run(config, folder / "whole"), run(config, folder / "again")
