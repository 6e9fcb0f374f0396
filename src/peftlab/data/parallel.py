"""Texts and their translations, line by line: Multi30k (Elliott 2016, arXiv 1605.00459) or one's own files.

    load_parallel("multi30k")                                from the hub: English captions of photos into German
    load_parallel("data/multi30k", "de-en")                  a folder with train.de, train.en, val.de, …, also as .gz
    load_parallel("mine/train.en,mine/train.de")             two files: the first is read, the second is written

In a folder the parts are train, val (or valid, validation, dev) and test… (any number), and the endings are the
languages. A part may also be a table, such as train.jsonl, with a column for each language. What there is no file for,
validation or test, is drawn from the training pairs. Whatever is wrong with a line is said before anything runs.
"""

import hashlib
import json
import random
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peftlab.data.sources import fetch_data
from peftlab.data.table import read_table, table_stem
from peftlab.data.text import missing, part_files, read_lines
from peftlab.errors import UserError, unknown

DRAWN = 0.05
"""share of the training pairs that a missing validation or test part takes"""


@dataclass(frozen=True)
class Pairs:
    """Texts with their translations; item i of each list belongs to the same pair."""

    sources: list[str]
    """What is read."""
    targets: list[str]
    """What is to be written."""
    rows: list[int]
    """The number of each pair's line in the file it came from, counted from 1, for messages."""

    def __post_init__(self) -> None:
        assert len(self.sources) == len(self.targets) == len(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: Sequence[int]) -> "Pairs":
        """The pairs at some places, in the order of these places."""
        sources, targets = ([texts[i] for i in indices] for texts in (self.sources, self.targets))
        return Pairs(sources, targets, [self.rows[i] for i in indices])


@dataclass(frozen=True)
class Parallel:
    """A data set for translation: what to train on, what to choose the best checkpoint by, and what to report."""

    name: str
    train: Pairs
    validation: Pairs
    tests: dict[str, Pairs]
    """The pairs to report, by the name of their file: `test`, or `test_2016_flickr` and `test_2017_flickr`."""
    about: str
    """One line on where the pairs are from and how they were split."""

    def fingerprint(self) -> str:
        """The SHA-256 of all texts, in hexadecimal: equal for equal data, wherever it was read from."""
        parts = [("train", self.train), ("validation", self.validation), *sorted(self.tests.items())]
        content = [(name, part.sources, part.targets) for name, part in parts]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def load_parallel(name: str, direction: str | None = None, *, seed: int = 0) -> Parallel:
    """The pairs of a data set, checked and split.

    The name is short, or a folder, or two files with a comma between them, or a hub id. The direction names the
    language to read and the one to write, `en-de` if none is given; of two files their order says it. The seed draws
    the parts that have no file.
    """
    languages = _languages(direction or "en-de")
    parts: dict[str, tuple[Path, ...]]
    if "," in name:
        files = tuple(Path(path.strip()).expanduser() for path in name.split(","))
        if len(files) != 2 or direction:
            raise UserError(f"{name!r} must be two files, the one to read first, and then no direction is given")
        title, parts = ",".join(path.name for path in files), {"train": files}
    else:
        folder = fetch_data(name)
        if not folder.is_dir():
            raise UserError(f"{folder} is one file: give two with a comma between them, or the folder they stand in")
        title, parts = f"{folder.resolve().name} {'-'.join(languages)}", _parts(folder, languages)

    pairs: dict[str, Pairs] = {}
    for part, paths in parts.items():
        pairs[part] = _read(paths, languages, part)
    about = ", ".join(str(path) for paths in parts.values() for path in paths)
    train = pairs.pop("train")
    for part in ("validation", "test"):
        if not any(other.startswith(part) for other in pairs):
            if len(train) < 2:
                raise UserError(f"{about}: there are too few pairs to draw a {part} part from")
            train, pairs[part] = split(train, DRAWN, seed)
            about += f", {DRAWN:.0%} drawn as the {part} part with seed {seed}"
    return Parallel(title, train, pairs.pop("validation"), pairs, about)


def split(pairs: Pairs, share: float, seed: int) -> tuple[Pairs, Pairs]:
    """Cut pairs in two, the second part with a share of them, at least one; both keep the order of the lines."""
    drawn = set(random.Random(seed).sample(range(len(pairs)), max(1, round(share * len(pairs)))))
    return pairs.take([i for i in range(len(pairs)) if i not in drawn]), pairs.take(sorted(drawn))


def joined(part: Pairs, k: int, seed: int) -> Pairs:
    """Long pairs: k that follow each other, once `random.Random(seed)` has shuffled them, become one.

    A pair has the number of its first line; what is left over in the end, fewer than k, is left out.

    >>> joined(Pairs(["a", "b", "c"], ["A", "B", "C"], [1, 2, 3]), 2, seed=0)
    Pairs(sources=['a c'], targets=['A C'], rows=[1])
    """
    if not 1 <= k <= len(part):
        raise UserError(f"k={k} does not join {len(part)} pairs: it must be from 1 to {len(part)}")
    order = list(range(len(part)))
    random.Random(seed).shuffle(order)
    groups = [part.take(order[start : start + k]) for start in range(0, len(part) - k + 1, k)]
    return Pairs(
        [" ".join(group.sources) for group in groups],
        [" ".join(group.targets) for group in groups],
        [group.rows[0] for group in groups],
    )


def _languages(direction: str) -> tuple[str, str]:
    match = re.fullmatch(r"(\w+)-(\w+)", direction)
    if match is None or match[1] == match[2]:
        raise UserError(f"the direction {direction!r} does not name two languages: write one such as en-de")
    return match[1], match[2]


def _parts(folder: Path, languages: tuple[str, str]) -> dict[str, tuple[Path, ...]]:
    """The files of each part of a folder: one for each language, or a table of both."""
    found: dict[str, dict[str, Path]] = {}
    for part, ending, path in part_files(folder):
        files = found.setdefault(part, {})
        if ending in files:
            raise UserError(f"{folder} has {files[ending].name} and {path.name}: leave one of them there")
        files[ending] = path
    if "train" not in found:
        raise missing(folder / f"train.{languages[0]}")
    parts: dict[str, tuple[Path, ...]] = {}
    for part in sorted(found, key=lambda part: part != "train"):  # what is wrong there is told first
        files = found[part]
        table = next((path for path in files.values() if table_stem(path) is not None), None)
        if absent := [language for language in languages if language not in files]:
            if table is None:
                raise UserError(f"{folder}, {part} part: {unknown('language', absent[0], files)}")
            parts[part] = (table,)
        else:
            parts[part] = tuple(files[language] for language in languages)
    return parts


def _read(paths: tuple[Path, ...], languages: tuple[str, str], part: str) -> Pairs:
    """The pairs of a part; those with an empty side teach nothing, but in a test they count."""
    where = " and ".join(map(str, paths))
    if len(paths) == 1:
        rows = [row.values for row in read_table(paths[0], languages, empty=languages)]
        sources, targets = ([row[side].strip() for row in rows] for side in (0, 1))
    else:
        sources, targets = map(read_lines, paths)
        if len(sources) != len(targets):
            problem = f"{paths[0]} has {len(sources):,} lines and {paths[1]} has {len(targets):,}"
            raise UserError(f"{problem}: each line of one must be the translation of the same line of the other")
    pairs = Pairs(sources, targets, list(range(1, len(sources) + 1)))
    whole = pairs.take([i for i in range(len(pairs)) if sources[i] and targets[i]])
    if not whole:
        raise UserError(f"{where}: not one of the {len(pairs):,} lines has text on both sides")
    if empty := sorted({*pairs.rows} - {*whole.rows}):
        what = f"{len(empty):,} of the {len(pairs):,} lines have an empty side, the first is line {empty[0]}"
        end = "training leaves them out" if part == "train" else f"they stay in the {part} part"
        warnings.warn(f"{where}: {what}; {end}", stacklevel=3)
    return whole if part == "train" else pairs
