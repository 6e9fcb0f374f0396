"""One process a folder: a second one is told so, instead of mixing its results in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from peftlab.errors import UserError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder; the system lets go of it when the process ends, however it ends."""
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(f"{folder} is in use by another process: wait for it, or choose another --out") from None
    except OSError as error:
        raise UserError(f"{folder} can't be written to: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()
