"""What a configuration asks for: its data, its model, what is trained, and what is told of it in the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self

import torch

from peftlab.errors import UserError
from peftlab.models.base import Base, Loaded, base_fingerprint, load
from peftlab.train.artefact import save_trained, trained_folder
from peftlab.train.config import Config
from peftlab.train.loop import Training
from peftlab.train.memory import keep_freed
from peftlab.train.stop import Stop


class Work(ABC):
    """One task's way from a configuration to a result. The data is read, and its mistakes told, when it is made."""

    name: str
    """of the task, in results"""
    base: Base
    """what is trained, from `training` on"""
    fingerprint = ""
    """of the base, once it was hashed"""

    def __init__(self, config: Config) -> None:
        self.take(config)

    def take(self, config: Config) -> None:
        """Do it as a configuration says."""
        self.config = config
        if config.model is not None and not config.build_method().trains_base:
            raise UserError(f"{config.method['name']} adapts a base, and a [model] of one's own has none: use full")

    @abstractmethod
    def hashes(self) -> tuple[str, ...]:
        """Of what the run depends on besides its configuration: data and base."""

    def base_hash(self) -> tuple[str, ...]:
        """Of the base, where there is one."""
        if self.config.model is not None:
            return ()
        self.fingerprint = base_fingerprint(self.config.base)
        return (self.fingerprint,)

    def prepare(self) -> Training:
        """The model with what is to be trained, and the rows to train on and to choose by."""
        self.config = self.config.completed()  # which a run has done already
        keep_freed()
        torch.manual_seed(self.config.train.seed)
        if self.config.train.threads is not None:
            torch.set_num_threads(self.config.train.threads)
        return self.training()

    @abstractmethod
    def training(self) -> Training:
        """The same, where seed and threads are set."""

    @abstractmethod
    def test(self, training: Training, stop: Stop) -> dict[str, list[Any]]:
        """What the trained model answers for each row of each test part."""

    @abstractmethod
    def result(self, answers: dict[str, list[Any]]) -> dict[str, Any]:
        """The scores of these answers, what to say of them (`said`), and the answers."""

    def save(self, folder: Path) -> list[Path]:
        """Write what was trained into the run's folder; gives the folders that it wrote."""
        return save_trained(self.base, trained_folder(folder, self.config))


class Data(Protocol):
    """What a comparison asks of data; a part is of whatever rows the task has."""

    @property
    def about(self) -> str: ...

    @property
    def train(self) -> Any: ...

    @property
    def tests(self) -> Mapping[str, Any]: ...


class Comparable(Work):
    """Work on which methods can be compared, row by row of the test."""

    data: Data
    metric: str
    """by which they are compared"""
    labels: Sequence[str]
    """of which each row has one; none where a row holds several things to find, such as words or entities"""
    light = True
    """its data goes from process to process faster than it is read again"""
    ready: Loaded | None = None
    """a base that is there already, and may be changed"""

    def by(self, config: Config) -> Self:
        """The same work on the same base by another method, or with another seed: its data is there already."""
        assert config.base == self.config.base, "what was shared is of another base"
        other = copy(self)
        other.take(config)
        return other

    def share(self, base: Base) -> None:
        """Do what all runs on this base would do again, where that can be passed on."""

    @property
    def in_memory(self) -> bool:
        """Whether the base that was hashed before is the one that is there."""
        return self.ready is not None and self.ready.fingerprint == self.fingerprint

    def base_hash(self) -> tuple[str, ...]:
        return (self.fingerprint,) if self.in_memory else super().base_hash()

    def load_base(self) -> Base:
        """What is to be trained, without its method."""
        if self.in_memory:
            assert self.ready is not None
            return replace(self.ready.base, name=self.config.base)
        return load(self.config.base)

    @abstractmethod
    def first(self, count: int) -> list[str]:
        """The first rows to train on with what is to be said of them, a line each: a look before anything runs."""

    @abstractmethod
    def texts(self, part: Any) -> list[Any]:
        """The rows themselves, or what else tells a reader which they are."""

    @abstractmethod
    def gold(self, part: Any) -> list[int]:
        """The label of each row; without labels, how many things it holds."""

    @abstractmethod
    def outcomes(self, answers: Sequence[Any], part: Any) -> list[int] | list[tuple[int, int]]:
        """The label that a model gave each row; without labels, how many things it gave and how many are right."""

    @abstractmethod
    def majority(self, part: Any) -> float | None:
        """What giving always the most frequent answer scores; None where that follows from `gold`."""
