"""Checkpoints: what training needs to go on, in folders that are whole or not there.

checkpoints/
  step-00000120-0/           the second number counts where one step is saved again, as after its evaluation
    state.safetensors        every tensor of the state
    state.json               every number of it
    peftlab-manifest.json    the SHA-256 of both, written last

A checkpoint is written under a temporary name, flushed to the disk and renamed. The last two are kept: one that was
damaged since is skipped, with a warning, in favour of the one before. There is no pickle in it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from peftlab.data.files import check_manifest, flush, read_object, write_manifest, write_text
from peftlab.data.tensors import Tensors, write_tensors
from peftlab.errors import UserError

KEPT = 2
TENSORS, FACTS = "state.safetensors", "state.json"
MARGIN = 1_000_000
"""bytes beyond the tensors: the numbers, the manifest, what the file system needs"""


class State(NamedTuple):
    """The state of a training: tensors by name, and numbers that JSON can hold."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run; `fingerprint` says which, so that another run's are not taken for its own."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder, self.fingerprint = folder, fingerprint

    def there(self) -> list[tuple[int, int]]:
        """The steps and counts of the checkpoints that are there, whole or not, the newest last."""
        names = [re.fullmatch(r"step-(\d{8,})-(\d+)", path.name) for path in self.folder.glob("step-*")]
        return sorted((int(name[1]), int(name[2])) for name in names if name)

    def at(self, place: tuple[int, int]) -> Path:
        """The folder of a checkpoint."""
        return self.folder / f"step-{place[0]:08d}-{place[1]}"

    def save(self, step: int, state: State) -> None:
        """Write a checkpoint; what was saved before stays as it is until this one is complete."""
        needed = sum(tensor.nbytes for tensor in state.tensors.values()) + MARGIN
        place = (step, 0)
        temporary = self.folder / f".step-{step:08d}.{secrets.token_hex(4)}.tmp"
        try:
            before = self.there()
            place = (step, 1 + max((count for other, count in before if other == step), default=-1))
            self.clear()
            temporary.mkdir(parents=True)
            free = shutil.disk_usage(temporary).free
            if free < needed:
                raise UserError(self.sorry(place, needed, f"{free:,} are free"))
            write_tensors(temporary / TENSORS, state.tensors)
            write_text(temporary / FACTS, json.dumps({"fingerprint": self.fingerprint} | state.facts))
            write_manifest(temporary, [TENSORS, FACTS])
            temporary.rename(self.at(place))
            flush(self.folder, os.O_RDONLY)
        except OSError as error:
            raise UserError(self.sorry(place, needed, str(error))) from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        older = [other for other in before if other < place]
        newer = [other for other in before if other > place]  # training came back to here because they were damaged
        for other in [*older[: 1 - KEPT], *newer]:
            shutil.rmtree(self.at(other), ignore_errors=True)

    def sorry(self, place: tuple[int, int], needed: int, why: str) -> str:
        """The sentence for a checkpoint that could not be written."""
        return (
            f"{self.at(place)} could not be written, it needs {needed:,} bytes: {why}; "
            "what was saved before is as it was, and the same command goes on from there"
        )

    def latest(self) -> State | None:
        """The newest checkpoint that is whole, None if there is none."""
        for place in reversed(self.there()):
            try:
                state = self.read(self.at(place))
            except (UserError, OSError) as error:
                warnings.warn(f"{error}; the checkpoint before it is taken", stacklevel=2)
                continue
            if state.facts.pop("fingerprint") != self.fingerprint:
                whose = "another base, other data or another version"
                raise UserError(f"{self.folder} belongs to {whose}: choose another --out, or delete it")
            return state
        return None

    def read(self, folder: Path) -> State:
        """A checkpoint, checked."""
        if check_manifest(folder).keys() != {TENSORS, FACTS}:
            raise UserError(f"{folder} has no whole manifest")
        facts = read_object(folder / FACTS)
        tensors = Tensors(folder, [TENSORS])
        return State({name: tensors.read(name) for name in tensors}, facts)

    def clear(self) -> None:
        """Remove what a killed process left half-written."""
        for path in self.folder.glob(".step-*.tmp"):
            shutil.rmtree(path, ignore_errors=True)

    def remove(self) -> None:
        """Remove all of them: the run is done."""
        shutil.rmtree(self.folder, ignore_errors=True)
