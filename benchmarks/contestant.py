"""What a side of a race is: something that was built, warms up once, and takes turns; and what it tells of a turn."""

from __future__ import annotations

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Turn:
    """What one turn came to."""

    seconds: float
    tokens: int = 0
    """real ones, without padding"""
    flops: float | None = None
    """of the matrix products that the work can't do without"""
    precision: str = "fp32"
    """they were computed in"""
    digest: str = ""
    """of the answers, where all sides have to give the same"""
    memory: int = 0
    """bytes of the process's peak so far above what it held when its model was loaded"""


class Contestant(ABC):
    """A side of a row; its data is read and its model loaded when it is made."""

    model: nn.Module | None = None

    @abstractmethod
    def warm_up(self) -> None:
        """What is done once before the first turn and not timed."""

    @abstractmethod
    def turn(self) -> Turn:
        """The row's work, once."""


class Repeated(Contestant):
    """A turn that is the same call some `times`, of which the mean counts; `told` is what else a `Turn` has.

    With `checked` all sides have to give the same answer, which JSON can hold.
    """

    def __init__(
        self,
        work: Callable[[], object],
        model: nn.Module | None = None,
        *,
        times: int = 1,
        checked: bool = False,
        **told: Any,
    ) -> None:
        self.work, self.model, self.times, self.checked, self.told = work, model, times, checked, told

    def warm_up(self) -> None:
        answer = self.work()
        if self.checked:
            self.told["digest"] = hashlib.sha256(json.dumps(answer).encode()).hexdigest()

    def turn(self) -> Turn:
        start = time.perf_counter()
        for _ in range(self.times):
            self.work()
        return Turn((time.perf_counter() - start) / self.times, **self.told)


def loaded_memory(model: nn.Module | None) -> int:
    """The bytes that this process holds with its model; from here on its peak is counted anew, where Linux lets it."""
    for parameter in model.parameters() if model is not None else ():
        parameter.detach().sum()  # weights that are mapped from their file count as loaded only once they were read
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def memory(key: str) -> int:
    """This process's memory in bytes, as Linux tells it: VmRSS now, VmHWM at its peak; elsewhere 0."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), 0)
