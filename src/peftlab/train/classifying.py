"""Training a classifier: an adapter and a head on a base, and back from a run's folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from peftlab.data.examples import Examples, Labelled, limit, split_stratified
from peftlab.data.glue import load_task
from peftlab.errors import UserError
from peftlab.models.base import Base, base_fingerprint, load
from peftlab.models.heads import Classifier
from peftlab.peft import Head
from peftlab.peft.attach import attach, freeze
from peftlab.peft.formats import load_adapter, save_adapter
from peftlab.tasks.classify import Classify, Encoded, chosen, encode, scores
from peftlab.train.config import Config, read_config_file
from peftlab.train.loop import Training, ask
from peftlab.train.precision import pick_device
from peftlab.train.stop import Stop
from peftlab.train.work import Work

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


class Classifying(Work):
    """Labels for texts."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.data = load_data(config)
        self.name = self.data.name

    def hashes(self) -> tuple[str, ...]:
        return self.data.fingerprint(), base_fingerprint(self.config.base)

    def training(self) -> Training:
        self.base = load(self.config.base)
        self.base.model.to(pick_device())
        method, settings = self.config.build_method(), self.config.train
        attach(self.base.model, ADAPTER, method, head=Classifier(labels=self.data.labels, pool=settings.pool))
        freeze(self.base.model)
        rows, held = map(self.encoded, split_stratified(self.data.train, settings.validation, settings.seed))
        return Training(self.base.model, method, Classify(), rows, held, settings)

    def encoded(self, part: Examples) -> Encoded:
        """A part's tokens."""
        return encode(self.base.tokenizer, part, min(self.config.task.max_length, self.base.room))

    def test(self, training: Training, stop: Stop) -> dict[str, list[Any]]:
        def labels(part: Examples) -> list[int]:
            return chosen(ask(training.model, self.encoded(part), training.task.judge, training.precision, stop))

        return {name: labels(part) for name, part in self.data.tests.items()}

    def result(self, answers: dict[str, list[Any]]) -> dict[str, Any]:
        tests = {name: scores(labels, self.data.tests[name].labels) for name, labels in answers.items()}
        means = {key: sum(part[key] for part in tests.values()) / len(tests) for key in next(iter(tests.values()))}
        said = f"accuracy {means['accuracy']:.4f}, macro F1 {means['f1']:.4f}"
        return {**means, "said": said, "tests": tests, "predictions": answers, "labels": list(self.data.labels)}

    def save(self, folder: Path) -> list[Path]:
        """The adapter; where the method trains the base, its checkpoint and in it an adapter that is a head alone."""
        folder = folder / "adapter"
        model = self.base.model.cpu()
        attached = model.adapters[ADAPTER]
        if not attached.method.trains_base:
            save_adapter(self.base, ADAPTER, folder)
            return [folder]
        self.base.save(folder)
        saved = replace(load(folder), name="..")  # beside it, wherever the run's folder goes
        attach(saved.model, ADAPTER, Head(), head=attached.head)
        for key, addition in model.additions(ADAPTER).items():
            saved.model.additions(ADAPTER)[key].load_state_dict(addition.state_dict())
        save_adapter(saved, ADAPTER, folder / "head")
        return [folder]


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
