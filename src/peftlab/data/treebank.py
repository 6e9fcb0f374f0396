"""Sentences to train on, to choose the best checkpoint by, and to report: of a treebank, or of one's own files.

    load_sentences("ud-english-ewt", read_conllu)          a folder of $PEFTLAB_DATA of that name, else the hub
    load_sentences("wnut17", read_tagged)                  any other folder of $PEFTLAB_DATA
    load_sentences("data/mine", read_tagged)               a folder with train.conllu, dev.conllu and test.conllu
    load_sentences("mine.conll.gz", read_tagged)           one file

A folder's files may have a treebank's names (en_ewt-ud-train.conllu) and be packed. What there is no file for is drawn
from the training sentences. Whatever is wrong with a line is said before anything runs.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from peftlab.data.sources import fetch_data, local_data
from peftlab.data.text import missing, part_files
from peftlab.errors import UserError

PART = re.compile(r"(?:.+-)?(train|val|valid|validation|dev|test)\.(conllu|conll|jsonl)")
DRAWN = 0.1
"""share of the training sentences that a missing validation or test part takes"""
ADVICE = "put a folder of that name with train, dev and test files into one that $PEFTLAB_DATA names, or give its path"

S = TypeVar("S")


@dataclass(frozen=True)
class Treebank(Generic[S]):
    """A data set of sentences."""

    name: str
    train: list[S]
    validation: list[S]
    tests: dict[str, list[S]]
    """The sentences to report, by the name of their part."""
    about: str
    """One line on where the sentences are from and how they were split."""

    def limited(self, train: int | None, others: int | None) -> Treebank[S]:
        """With at most so many sentences to train on, and in each other part; None: all."""
        tests = {name: drawn(part, others) for name, part in self.tests.items()}
        return replace(self, train=drawn(self.train, train), validation=drawn(self.validation, others), tests=tests)

    @property
    def parts(self) -> dict[str, list[S]]:
        """All sentences, by the name of their part."""
        return {"train": self.train, "validation": self.validation, **self.tests}

    def fingerprint(self, content: Callable[[S], Any]) -> str:
        """The SHA-256 of what counts of all sentences: equal for equal data, wherever it was read from."""
        found = [(name, [content(sentence) for sentence in part]) for name, part in sorted(self.parts.items())]
        return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def drawn(sentences: list[S], most: int | None) -> list[S]:
    """At most so many, the same each time and in their order: the first ones would be of one source alone."""
    if most is None or most >= len(sentences):
        return sentences
    return [sentences[i] for i in sorted(random.Random(0).sample(range(len(sentences)), most))]


def load_sentences(name: str, read: Callable[[Path], list[S]]) -> Treebank[S]:
    """The sentences of a short name, a folder or a file, as a reader gives them."""
    path = local(name) or fetch_data(name, ADVICE)
    files = _parts(path) if path.is_dir() else {"train": path}
    parts = {part: read(file) for part, file in files.items()}
    about = ", ".join(map(str, files.values()))
    train = parts.pop("train")
    for part in ("test", "validation"):
        if part not in parts:
            if len(train) < 2:
                raise UserError(f"{path}: there are too few sentences to draw a {part} part from")
            taken = set(random.Random(0).sample(range(len(train)), max(1, round(DRAWN * len(train)))))
            parts[part] = [sentence for i, sentence in enumerate(train) if i in taken]
            train = [sentence for i, sentence in enumerate(train) if i not in taken]
            about += f", {DRAWN:.0%} drawn as the {part} part"
    return Treebank(path.resolve().name, train, parts["validation"], {"test": parts["test"]}, about)


def local(name: str) -> Path | None:
    """The folder of a bare name among those of `$PEFTLAB_DATA`; one here of the same name is written as `./name`."""
    return local_data(name) if name and Path(name).name == name else None


def _parts(folder: Path) -> dict[str, Path]:
    """The file of each part of a folder."""
    found: dict[str, Path] = {}
    for part, _, path in part_files(folder, PART):
        if part in found:
            raise UserError(f"{folder} has {found[part].name} and {path.name}: leave one of them there")
        found[part] = path
    if "train" not in found:
        raise missing(folder / "train.conllu")
    return dict(sorted(found.items(), key=lambda item: item[0] != "train"))  # what is wrong there is told first
