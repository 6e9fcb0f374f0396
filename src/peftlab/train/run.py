"""A run: from a configuration to a folder with its resolved config, metrics, result and adapter.

runs/lora-reviews-0/
  config.toml      what was asked for, completed
  metrics.jsonl    a line a step
  checkpoints/     what an interrupted run goes on from; gone when it is done
  adapter/         what was trained (a checkpoint for methods that train the base; model/ for a model of one's own)
  result.json      scores, costs and predictions, written last: with it the run is done

peftlab train config.toml --out runs/mine

Interrupted, by a signal or a power cut, the same command goes on from the last checkpoint and ends with the same bits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from peftlab.data.files import is_file, make_folder, read_object, remove_unfinished, write_text, writing_to
from peftlab.errors import Stopped, UserError
from peftlab.peft.describe import describe
from peftlab.train.checkpoint import Checkpoints
from peftlab.train.classifying import Classifying
from peftlab.train.config import Config, read_config_file
from peftlab.train.language_modelling import LanguageModelling
from peftlab.train.lock import locked
from peftlab.train.loop import Progress, Training, train
from peftlab.train.memory import peak_memory
from peftlab.train.metrics import Metrics, Tell
from peftlab.train.parsing import Parsing
from peftlab.train.picturing import Picturing
from peftlab.train.pretraining import PretrainingElectra, PretrainingMasked
from peftlab.train.stop import Interrupted, Stop, stopping
from peftlab.train.tagging import Tagging
from peftlab.train.translating import Translating
from peftlab.train.work import Comparable, Work

WORKS: dict[str, type[Work]] = {
    "tag": Tagging,
    "parse": Parsing,
    "translate": Translating,
    "language_model": LanguageModelling,
    "images": Picturing,
    "masked_tokens": PretrainingMasked,
    "replaced_tokens": PretrainingElectra,
}
"""section of a configuration → what it asks for; without one of them it is classification"""


def open_work(config: Config) -> Work:
    """What a configuration asks for."""
    return next((work for name, work in WORKS.items() if getattr(config, name) is not None), Classifying)(config)


def run(config: Config, folder: Path, tell: Tell = lambda line: None, like: Comparable | None = None) -> dict[str, Any]:
    """Train and test as the configuration says; gives the result that it wrote. A finished run is not run again.

    `like` is work on the same data and base, which are then not read again where they are in memory.
    """
    config = settle(config, folder)
    work = open_work(config) if like is None else like.by(config)
    fingerprint = config.fingerprint(*work.hashes())
    if (done := finished(folder, fingerprint)) is not None:
        return done
    make_folder(folder)
    with writing_to(folder), locked(folder), stopping() as stop:
        settle(config, folder)  # again: who held the folder until now may have left a run in it
        remove_unfinished(folder)
        training = work.prepare()
        checkpoints = Checkpoints(folder / "checkpoints", fingerprint)
        if (state := checkpoints.latest()) is not None:
            training.restore(state)
        write_text(folder / "config.toml", config.to_toml())
        progress = training.progress
        with Metrics(folder, progress.step, progress.evaluated, tell, config.train.tensorboard) as metrics:
            trained = train(training, checkpoints, stop, metrics)
        answers = test(work, training, checkpoints, stop)
        saved = work.save(folder)
        result = {"fingerprint": fingerprint, **describe_run(work, training, trained), **work.result(answers)}
        files = [file for place in saved for file in place.rglob("*") if file.is_file()]
        result["adapter_bytes"] = sum(file.stat().st_size for file in files)
        result["seconds"] = training.tick()
        write_text(folder / "result.json", json.dumps(result, indent=1) + "\n")
        checkpoints.remove()
    return result


def test(work: Work, training: Training, checkpoints: Checkpoints, stop: Stop) -> dict[str, list[Any]]:
    """What the trained model answers for each row of each test part."""
    try:
        return work.test(training, stop)
    except Interrupted:
        checkpoints.save(training.progress.step, training.state())
        assert stop.number is not None
        raise Stopped(stop.number, f"all {training.steps} steps are saved in {checkpoints.folder}") from None


def describe_run(work: Work, training: Training, trained: Progress) -> dict[str, Any]:
    """What a run was and what it cost."""
    seen = describe(training.model)
    return {
        "method": work.config.method["name"],
        "task": work.name,
        "seed": work.config.train.seed,
        "validation": trained.best_score,
        "steps": trained.step,
        "best_step": trained.best_step,
        "parts": trained.parts,
        "skipped": trained.skipped,
        "trainable": seen.trainable,
        "trainable_without_head": seen.trainable - seen.heads,
        "base_parameters": seen.base,
        "curve": trained.curve,
        "precision": training.precision,
        "peak_memory": peak_memory(),
        "ms_step": 1000 * trained.seconds / trained.step,
        "tokens_second": trained.tokens / trained.seconds,
    }


def settle(config: Config, folder: Path) -> Config:
    """The complete configuration of a run in a folder; one that holds another run is refused.

    A run that ended before it saved anything left its configuration alone, and any other may take its place.
    """
    path = folder / "config.toml"
    if not is_file(path):
        return config.completed()
    before = read_config_file(path)
    settled = config.completed(before)
    if before.fingerprint() == settled.fingerprint():
        return settled
    ours = path.read_text(encoding="utf-8") == before.to_toml()  # and not what a user wrote by hand
    if not ours or holds_more(folder):
        raise UserError(f"{folder} holds a run of another configuration: {difference(before, settled)}; {ELSEWHERE}")
    return config.completed()


def holds_more(folder: Path) -> bool:
    """Whether a run left more than its configuration and metrics: a checkpoint, what it trained, or a result."""
    left = any((folder / name).exists() for name in ("adapter", "model", "result.json"))
    return left or bool(Checkpoints(folder / "checkpoints", "").there())


def finished(folder: Path, fingerprint: str) -> dict[str, Any] | None:
    """The result of a run that was done with this configuration, data and base; None if it is not done."""
    path = folder / "result.json"
    if not is_file(path):
        return None
    result = read_object(path)
    if result.get("fingerprint") != fingerprint:
        raise UserError(f"{folder} holds a run on other data or another base of the same name; {ELSEWHERE}")
    return result


ELSEWHERE = "choose another --out, or delete it"


def difference(before: Config, now: Config) -> str:
    """The first setting that differs."""
    settings = [flat(json.loads(json.dumps(config.model_dump(exclude_none=True)))) for config in (before, now)]
    for key in sorted(settings[0].keys() | settings[1].keys()):
        old, new = (setting.get(key) for setting in settings)
        if old != new:
            return f"there {key} is {old!r}, here {new!r}"
    return "an older version wrote it"


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """section.key → value."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
