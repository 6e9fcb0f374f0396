"""A user's mistake, told in one sentence: what is wrong, where, and the nearest right choice.

The CLI turns a `UserError` into that sentence and exit code 2; anything else is our own bug and keeps its traceback.
"""

import difflib
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """What the user gave cannot be used; the message is one sentence that names it and what would be right."""


def unknown(what: str, given: str, choices: Iterable[str]) -> UserError:
    """The error for a name that is not among the choices, with the nearest one that is.

    >>> print(unknown("base", "minilmm", ["minilm", "tiny"]))
    unknown base 'minilmm': did you mean 'minilm'? (there are minilm, tiny)
    """
    choices = list(choices)
    near = difflib.get_close_matches(given, choices, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return UserError(f"unknown {what} {given!r}: {hint}(there are {', '.join(choices) or 'none'})")


class Stopped(Exception):  # noqa: N818 — it is not an error
    """A run was asked to stop and has saved what it had."""

    def __init__(self, number: int, saved: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; {saved}, and the same command goes on from there")
        self.code = 128 + number
        """what a shell expects: 143 after SIGTERM, 130 after SIGINT"""


@contextmanager
def told() -> Iterator[None]:
    """Around a process's work: the sentence of either goes to standard error, and the process ends with its code."""
    try:
        yield
    except UserError as error:
        print(f"peftlab: {error}", file=sys.stderr)
        sys.exit(2)
    except Stopped as stopped:
        print(f"peftlab: {stopped}", file=sys.stderr)
        sys.exit(stopped.code)
