"""Stopping on request: the first SIGTERM or SIGINT is noted and answered between two steps, a second SIGINT at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):  # noqa: N818 — it is not an error
    """Long work between two steps was given up, because somebody asked to stop."""


class Stop:
    """Whether somebody asked to stop."""

    def __init__(self) -> None:
        self.number: int | None = None

    def ask(self, number: int, frame: FrameType | None = None) -> None:
        """A signal's handler."""
        self.number = number
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def check(self) -> None:
        """Called in the midst of work that can be done again."""
        if self.number is not None:
            raise Interrupted


@contextmanager
def stopping() -> Iterator[Stop]:
    """While the block runs, signals ask it to stop; elsewhere than in the main thread they are not ours to take."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
