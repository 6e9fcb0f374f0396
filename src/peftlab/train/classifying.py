"""Training a classifier: an adapter and a head on a base; what labels texts and what labels images share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic

from peftlab.data.examples import Examples, Labelled, P, limit, split_stratified
from peftlab.data.glue import first_rows, load_task
from peftlab.errors import UserError
from peftlab.models.base import Base
from peftlab.models.heads import Classifier
from peftlab.tasks.classify import Classify, Encoded, Tokenised, chosen, encode
from peftlab.tasks.metrics import scores
from peftlab.tasks.task import Rows
from peftlab.train.artefact import adapt
from peftlab.train.asking import ask
from peftlab.train.config import Config
from peftlab.train.loop import Training
from peftlab.train.stop import Stop
from peftlab.train.work import Comparable


def load_data(config: Config) -> Labelled:
    """The data of a run's task."""
    task = config.task
    data = load_task(task.name, text=task.text, pair=task.pair, label=task.label, test=task.test)
    return limited(data, task.limit, task.test_limit)


def limited(data: Labelled[P], most: int | None, most_tested: int | None) -> Labelled[P]:
    """At most so many rows to train on, and of each part to test on."""
    if most is not None:
        data = replace(data, train=limit(data.train, most, 0))
    if most_tested is not None:
        data = replace(data, tests={name: limit(part, most_tested, 0) for name, part in data.tests.items()})
    return data


class Labelling(Comparable, Generic[P]):
    """One label for each row, of texts or of images."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.data: Labelled[P] = self.read()
        self.name, self.metric, self.labels = self.data.name, self.data.metric, self.data.labels

    @abstractmethod
    def read(self) -> Labelled[P]:
        """The data."""

    @abstractmethod
    def open(self) -> Base:
        """What is to be trained, without its method."""

    @abstractmethod
    def encoded(self, part: P, training: bool = False) -> Rows:
        """A part as a model is given it, in training perhaps otherwise."""

    def hashes(self) -> tuple[str, ...]:
        return self.data.fingerprint(), *self.base_hash()

    def training(self) -> Training:
        method, settings = self.config.build_method(), self.config.train
        head = Classifier(labels=self.data.labels, pool=settings.pool)
        self.base = adapt(self.open(), method, head)
        train, held = split_stratified(self.data.train, settings.validation, settings.seed)
        rows = self.encoded(train, training=True)
        return Training(self.base.model, method, Classify(), rows, self.encoded(held), settings)

    def test(self, training: Training, stop: Stop) -> dict[str, list[Any]]:
        def labels(part: P) -> list[int]:
            return chosen(ask(training.model, self.encoded(part), training.task.judge, training.precision, stop))

        return {name: labels(part) for name, part in self.data.tests.items()}

    def result(self, answers: dict[str, list[Any]]) -> dict[str, Any]:
        tests = {name: scores(labels, self.data.tests[name].labels) for name, labels in answers.items()}
        means = {key: sum(part[key] for part in tests.values()) / len(tests) for key in next(iter(tests.values()))}
        said = f"accuracy {means['accuracy']:.4f}, macro F1 {means['f1']:.4f}"
        return {**means, "said": said, "tests": tests, "predictions": answers, "labels": list(self.data.labels)}

    def gold(self, part: P) -> list[int]:
        return part.labels

    def outcomes(self, answers: Sequence[int], part: P) -> list[int]:
        return list(answers)

    def majority(self, part: P) -> None:
        return None


class Classifying(Labelling[Examples]):
    """Labels for texts."""

    tokenised: Tokenised | None = None
    """all texts, where a comparison did it for its runs"""

    def read(self) -> Labelled:
        if self.config.model is not None:
            raise UserError("texts are labelled by a base, and a [model] of one's own is none: leave it out")
        return load_data(self.config)

    def open(self) -> Base:
        return self.load_base()

    def share(self, base: Base) -> None:
        parts = self.data.train, *self.data.tests.values()
        self.tokenised = Tokenised.all_of(base.tokenizer, parts, min(self.config.task.max_length, base.room))

    def encoded(self, part: Examples, training: bool = False) -> Encoded:
        most = min(self.config.task.max_length, self.base.room)
        if self.tokenised is not None and self.tokenised.most == most:
            return self.tokenised.take(part)
        return encode(self.base.tokenizer, part, most)

    def texts(self, part: Examples) -> list[Any]:
        return list(part.texts)

    def first(self, count: int) -> list[str]:
        rows = first_rows(self.data, count)
        return [f"{label}: {text if isinstance(text, str) else ' ⇥ '.join(text)}" for text, label in rows]
