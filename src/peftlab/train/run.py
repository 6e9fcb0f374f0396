"""A run: from a configuration to a folder with its resolved config, metrics, result and adapter.

runs/lora-reviews-0/
  config.toml      what was asked for, completed
  metrics.jsonl    a line a step
  adapter/         what was trained (a checkpoint for methods that train the base)
  result.json      scores, costs and predictions, written last: with it the run is done

peftlab train config.toml --out runs/mine
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from peftlab.data.examples import Labelled, limit, split_stratified
from peftlab.data.files import write_text
from peftlab.data.glue import load_task
from peftlab.errors import UserError
from peftlab.models.base import Base, load
from peftlab.models.heads import Classifier
from peftlab.peft import Head
from peftlab.peft.attach import attach, freeze
from peftlab.peft.describe import describe
from peftlab.peft.formats import load_adapter, save_adapter
from peftlab.tasks import classify
from peftlab.train.config import Config, read_config_file
from peftlab.train.loop import predict, train
from peftlab.train.precision import pick_device, pick_precision

ADAPTER = "mine"


def load_data(config: Config) -> Labelled:
    """The data of a run's task."""
    task = config.task
    return load_task(task.name, text=task.text, pair=task.pair, label=task.label, test=task.test)


def run(config: Config, folder: Path, tell: Callable[[dict[str, Any]], None] = lambda line: None) -> dict[str, Any]:
    """Train and test as the configuration says; gives the result that it wrote. A finished run is not run again."""
    data = load_data(config)
    fingerprint = config.fingerprint(data.fingerprint())
    if (done := finished(folder, fingerprint)) is not None:
        return done
    started = time.perf_counter()
    torch.manual_seed(config.train.seed)
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "config.toml", config.to_toml())
    base = load(config.base)
    device = pick_device()
    base.model.to(device)
    method = config.build_method()
    attach(base.model, ADAPTER, method, head=Classifier(labels=data.labels, pool=config.train.pool))
    freeze(base.model)
    length = min(config.task.max_length, base.config.max_length)
    rows = data.train if config.task.limit is None else limit(data.train, config.task.limit, 0)
    training, validation = split_stratified(rows, config.train.validation, config.train.seed)
    encoded, held = (classify.encode(base.tokenizer, part, length) for part in (training, validation))
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as metrics:

        def note(line: dict[str, Any]) -> None:
            metrics.write(json.dumps(line) + "\n")
            metrics.flush()
            tell(line)

        trained = train(base.model, method, encoded, held, config.train, note)
    precision = pick_precision(config.train.precision, device)
    tests, predictions = {}, {}
    for name, part in data.tests.items():
        predictions[name], _ = predict(base.model, classify.encode(base.tokenizer, part, length), precision)
        tests[name] = classify.scores(predictions[name], part.labels)
    base.model.cpu()
    save(base, folder / "adapter")
    seen = describe(base.model)
    first = next(iter(tests))
    result = {
        "fingerprint": fingerprint,
        "method": method.name,
        "task": data.name,
        "seed": config.train.seed,
        **{key: sum(scores[key] for scores in tests.values()) / len(tests) for key in tests[first]},
        "tests": tests,
        "validation": trained.best_score,
        "steps": trained.steps,
        "best_step": trained.best_step,
        "trainable": seen.trainable,
        "trainable_without_head": seen.trainable - seen.heads,
        "base_parameters": seen.base,
        "adapter_bytes": sum(path.stat().st_size for path in (folder / "adapter").rglob("*") if path.is_file()),
        "precision": precision,
        "curve": trained.curve,
        "predictions": predictions,
        "labels": list(data.labels),
        "peak_memory": peak_memory(),
        "ms_step": 1000 * trained.seconds / trained.steps,
        "tokens_second": trained.tokens / trained.seconds,
        "seconds": time.perf_counter() - started,
    }
    write_text(folder / "result.json", json.dumps(result, indent=1) + "\n")
    return result


def finished(folder: Path, fingerprint: str) -> dict[str, Any] | None:
    """The result of a run that was done with this configuration and data; another one in its place is an error."""
    path = folder / "result.json"
    if not path.is_file():
        return None
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if result.get("fingerprint") != fingerprint:
        raise UserError(f"{folder} holds a run of another configuration or other data: choose another folder")
    return result


def save(base: Base, folder: Path) -> None:
    """The adapter; where the method trains the base, its checkpoint and in it an adapter that is a head alone."""
    attached = base.model.adapters[ADAPTER]
    if not attached.method.trains_base:
        return save_adapter(base, ADAPTER, folder)
    base.save(folder)
    saved = load(folder)
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


def peak_memory() -> int:
    """The most memory that this process held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
