"""Training a classifier: an adapter and a head on a base."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from peftlab.data.examples import Examples, Labelled, limit, split_stratified
from peftlab.data.glue import load_task
from peftlab.models.base import base_fingerprint, load
from peftlab.models.heads import Classifier
from peftlab.tasks.classify import Classify, Encoded, chosen, encode, scores
from peftlab.train.artefact import adapt
from peftlab.train.config import Config
from peftlab.train.loop import Training, ask
from peftlab.train.stop import Stop
from peftlab.train.work import Work


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
        method, settings = self.config.build_method(), self.config.train
        head = Classifier(labels=self.data.labels, pool=settings.pool)
        self.base = adapt(load(self.config.base), method, head)
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
