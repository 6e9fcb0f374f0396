"""A run: from a configuration to a folder with its resolved config, metrics, result and adapter.

runs/lora-reviews-0/
  config.toml      what was asked for, completed
  metrics.jsonl    a line a step
  checkpoints/     what an interrupted run goes on from; gone when it is done
  adapter/         what was trained (a checkpoint for methods that train the base)
  result.json      scores, costs and predictions, written last: with it the run is done

peftlab train config.toml --out runs/mine

Interrupted, by a signal or a power cut, the same command goes on from the last checkpoint and ends with the same bits.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from peftlab.data.examples import Examples, Labelled, limit, split_stratified
from peftlab.data.files import is_file, make_folder, read_object, write_text, writing_to
from peftlab.data.glue import load_task
from peftlab.errors import Stopped, UserError
from peftlab.models.base import Base, base_fingerprint, load
from peftlab.models.heads import Classifier
from peftlab.peft import Head
from peftlab.peft.attach import attach, freeze
from peftlab.peft.describe import describe
from peftlab.peft.formats import load_adapter, save_adapter
from peftlab.tasks import classify
from peftlab.train.checkpoint import Checkpoints
from peftlab.train.config import Config, read_config_file
from peftlab.train.lock import locked
from peftlab.train.loop import Progress, Training, ask, train
from peftlab.train.memory import peak_memory
from peftlab.train.metrics import Metrics, Tell
from peftlab.train.precision import pick_device
from peftlab.train.stop import Interrupted, Stop, stopping

ADAPTER = "mine"


def load_data(config: Config) -> Labelled:
    """The data of a run's task."""
    task = config.task
    data = load_task(task.name, text=task.text, pair=task.pair, label=task.label, test=task.test)
    if task.limit is not None:
        data = replace(data, train=limit(data.train, task.limit, 0))
    if task.test_limit is not None:
        data = replace(data, tests={name: limit(part, task.test_limit, 0) for name, part in data.tests.items()})
    return data


def run(config: Config, folder: Path, tell: Tell = lambda line: None) -> dict[str, Any]:
    """Train and test as the configuration says; gives the result that it wrote. A finished run is not run again."""
    config = settle(config, folder)
    data = load_data(config)
    fingerprint = config.fingerprint(data.fingerprint(), base_fingerprint(config.base))
    if (done := finished(folder, fingerprint)) is not None:
        return done
    make_folder(folder)
    with writing_to(folder), locked(folder), stopping() as stop:
        write_text(folder / "config.toml", config.to_toml())
        base = load(config.base)
        training = prepare(base, data, config)
        checkpoints = Checkpoints(folder / "checkpoints", fingerprint)
        if (state := checkpoints.latest()) is not None:
            training.restore(state)
        progress = training.progress
        with Metrics(folder, progress.step, progress.evaluated, tell, config.train.tensorboard) as metrics:
            trained = train(training, checkpoints, stop, metrics)
        tests = test(base, data, config, training, checkpoints, stop)
        base.model.cpu()
        save(base, folder / "adapter")
        result = {"fingerprint": fingerprint, **describe_run(base, data, config, trained, tests)}
        result["precision"] = training.precision
        result["adapter_bytes"] = sum(file.stat().st_size for file in (folder / "adapter").rglob("*") if file.is_file())
        result["seconds"] = training.tick()
        write_text(folder / "result.json", json.dumps(result, indent=1) + "\n")
        checkpoints.remove()
    return result


def prepare(base: Base, data: Labelled, config: Config) -> Training:
    """The model with what is to be trained, and the rows to train on and to choose by."""
    torch.manual_seed(config.train.seed)
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    base.model.to(pick_device())
    method = config.build_method()
    attach(base.model, ADAPTER, method, head=Classifier(labels=data.labels, pool=config.train.pool))
    freeze(base.model)
    parts = split_stratified(data.train, config.train.validation, config.train.seed)
    rows, held = (encoded(base, part, config) for part in parts)
    return Training(base.model, method, classify.Classify(), rows, held, config.train)


def encoded(base: Base, part: Examples, config: Config) -> classify.Encoded:
    """A part's tokens."""
    return classify.encode(base.tokenizer, part, min(config.task.max_length, base.room))


def test(
    base: Base, data: Labelled, config: Config, training: Training, checkpoints: Checkpoints, stop: Stop
) -> dict[str, list[int]]:
    """The predicted labels of each test part."""
    try:
        return {
            name: classify.chosen(
                ask(base.model, encoded(base, part, config), training.task.judge, training.precision, stop)
            )
            for name, part in data.tests.items()
        }
    except Interrupted:
        checkpoints.save(training.progress.step, training.state())
        assert stop.number is not None
        raise Stopped(stop.number, f"all {training.steps} steps are saved in {checkpoints.folder}") from None


def describe_run(
    base: Base, data: Labelled, config: Config, trained: Progress, predictions: dict[str, list[int]]
) -> dict[str, Any]:
    """What a run was, what it cost and what came out."""
    scores = {name: classify.scores(labels, data.tests[name].labels) for name, labels in predictions.items()}
    seen = describe(base.model)
    return {
        "method": config.method["name"],
        "task": data.name,
        "seed": config.train.seed,
        **{key: sum(part[key] for part in scores.values()) / len(scores) for key in next(iter(scores.values()))},
        "tests": scores,
        "validation": trained.best_score,
        "steps": trained.step,
        "best_step": trained.best_step,
        "parts": trained.parts,
        "skipped": trained.skipped,
        "trainable": seen.trainable,
        "trainable_without_head": seen.trainable - seen.heads,
        "base_parameters": seen.base,
        "curve": trained.curve,
        "predictions": predictions,
        "labels": list(data.labels),
        "peak_memory": peak_memory(),
        "ms_step": 1000 * trained.seconds / trained.step,
        "tokens_second": trained.tokens / trained.seconds,
    }


def settle(config: Config, folder: Path) -> Config:
    """The complete configuration of a run in a folder; one that holds another run is refused."""
    before = read_config_file(folder / "config.toml") if is_file(folder / "config.toml") else None
    config = config.completed(before)
    if before is not None and before.fingerprint() != config.fingerprint():
        raise UserError(f"{folder} holds a run of another configuration: {difference(before, config)}; {ELSEWHERE}")
    return config


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


def save(base: Base, folder: Path) -> None:
    """The adapter; where the method trains the base, its checkpoint and in it an adapter that is a head alone."""
    attached = base.model.adapters[ADAPTER]
    if not attached.method.trains_base:
        return save_adapter(base, ADAPTER, folder)
    base.save(folder)
    saved = replace(load(folder), name="..")  # beside it, wherever the run's folder goes
    attach(saved.model, ADAPTER, Head(), head=attached.head)
    for key, addition in base.model.additions(ADAPTER).items():
        saved.model.additions(ADAPTER)[key].load_state_dict(addition.state_dict())
    save_adapter(saved, ADAPTER, folder / "head")


def open_run(folder: Path) -> tuple[Base, Config]:
    """A finished run's base with its adapter active, ready to predict."""
    if not (folder / "result.json").is_file():
        raise UserError(f"{folder} is not a finished run: it has no result.json")
    config = read_config_file(folder / "config.toml")
    adapter = folder / "adapter"
    trained_base = (adapter / "head").is_dir()
    base = load(adapter if trained_base else config.base)
    load_adapter(base, adapter / "head" if trained_base else adapter, name=ADAPTER)
    return base, config
