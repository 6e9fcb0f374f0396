"""Checkpoints: what training needs to go on, in folders that are whole or not there.

checkpoints/
  step-00000120/
    state.safetensors        every tensor of the state
    state.json               every number of it
    peftlab-manifest.json    the SHA-256 of both, written last

A checkpoint is written under a temporary name, flushed to the disk and renamed. The last two are kept: one that was
damaged since is skipped, with a warning, in favour of the one before. There is no pickle in it.
"""

from __future__ import annotations

import json
import os
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

    def steps(self) -> list[int]:
        """The steps of the checkpoints that are there, whole or not, the newest last."""
        return sorted(int(path.name[5:]) for path in self.folder.glob("step-*") if path.name[5:].isdecimal())

    def at(self, step: int) -> Path:
        """The folder of a checkpoint."""
        return self.folder / f"step-{step:08d}"

    def save(self, step: int, state: State) -> None:
        """Write a checkpoint; what was saved before stays as it is until this one is complete."""
        needed = sum(tensor.nbytes for tensor in state.tensors.values()) + MARGIN
        temporary = self.folder / f".{self.at(step).name}.{secrets.token_hex(4)}.tmp"
        try:
            self.clear()
            temporary.mkdir(parents=True)
            free = shutil.disk_usage(temporary).free
            if free < needed:
                raise UserError(self.sorry(step, needed, f"{free:,} are free"))
            write_tensors(temporary / TENSORS, state.tensors)
            write_text(temporary / FACTS, json.dumps({"fingerprint": self.fingerprint} | state.facts))
            write_manifest(temporary, [TENSORS, FACTS])
            if self.at(step).exists():  # it was found damaged
                shutil.rmtree(self.at(step))
            temporary.rename(self.at(step))
            flush(self.folder, os.O_RDONLY)
        except OSError as error:
            raise UserError(self.sorry(step, needed, str(error))) from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        old = [other for other in self.steps() if other <= step][:-KEPT]
        for other in [*old, *(other for other in self.steps() if other > step)]:  # those after it were damaged
            shutil.rmtree(self.at(other))

    def sorry(self, step: int, needed: int, why: str) -> str:
        """The sentence for a checkpoint that could not be written."""
        return (
            f"{self.at(step)} could not be written, it needs {needed:,} bytes: {why}; "
            "what was saved before is as it was, and the same command goes on from there"
        )

    def latest(self) -> State | None:
        """The newest checkpoint that is whole, None if there is none."""
        for step in reversed(self.steps()):
            try:
                return self.read(self.at(step))
            except UserError as error:
                warnings.warn(f"{error}; the checkpoint before it is taken", stacklevel=2)
        return None

    def read(self, folder: Path) -> State:
        """A checkpoint, checked."""
        if check_manifest(folder).keys() != {TENSORS, FACTS}:
            raise UserError(f"{folder} has no whole manifest")
        facts = read_object(folder / FACTS)
        if facts.pop("fingerprint") != self.fingerprint:
            raise UserError(f"{folder} belongs to another configuration or other data")
        tensors = Tensors(folder, [TENSORS])
        return State({name: tensors.read(name) for name in tensors}, facts)

    def clear(self) -> None:
        """Remove what a killed process left half-written."""
        for path in self.folder.glob(".step-*.tmp"):
            shutil.rmtree(path, ignore_errors=True)

    def remove(self) -> None:
        """Remove all of them: the run is done."""
        shutil.rmtree(self.folder, ignore_errors=True)
