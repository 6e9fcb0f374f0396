"""Data sets for classification by name or path: film reviews, three tasks of GLUE (Wang 2018, arXiv 1804.07461), or a
user's own file.

    load_task("reviews")                                     Rotten Tomatoes, no film in two splits
    load_task("sst2")                                        a folder of $PEFTLAB_DATA that has SST-2, else the hub
    load_task("glue/MNLI")                                   a folder with train.* and dev*.*, validation*.* or test.*
    load_task("mine.csv", text="review", label="stars")      a file; a fifth of each class becomes the test

Whatever is wrong with the rows is said before anything runs. GLUE keeps the labels of its test sets to itself, so its
development rows are the test here, as everywhere.
"""

import hashlib
import html
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from peftlab.data.examples import Examples, Labelled, split_stratified
from peftlab.data.sources import DATASETS, fetch_data, local_data
from peftlab.data.table import Row, column_names, read_table, table_stem
from peftlab.errors import UserError, unknown

GLUE = {
    "sst2": ("SST-2", ("negative", "positive")),
    "mnli": ("MNLI", ("entailment", "neutral", "contradiction")),
    "qnli": ("QNLI", ("entailment", "not_entailment")),
}
"""The folder that GLUE's own archive has for each task, and the names of the labels 0, 1, …"""

COLUMNS = (
    ("premise", "hypothesis", "label"),
    ("sentence1", "sentence2", "gold_label"),
    ("question", "sentence", "label"),
    ("sentence", "label"),
    ("text", "label"),
)
"""Columns that are known without being named, as the hub and GLUE's own archive spell them: texts, then the label."""

SPLIT = re.compile(r"(train|dev|validation|test)(?:_(matched|mismatched))?(?:-00000-of-00001)?")
TEST_SHARE = 0.2


def load_task(
    name: str,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    test: str | Path | None = None,
    seed: int = 0,
) -> Labelled:
    """The rows of a task, checked and split.

    The name is short, or a path to a file or folder, or a hub id. `text`, `pair` and `label` name the columns of one's
    own data, and `test` is a file of rows to report; without any, the seed draws them from the training rows.
    """
    short = name in GLUE or name == "reviews"
    if short and (text or pair or label or test):
        raise UserError(f"the task {name!r} has its own columns and test rows: leave out text, pair, label and test")
    if name == "reviews":
        return _reviews(fetch_data(name) / "rotten_tomatoes_corpus_full.csv.bz2")
    path = Path(name).expanduser()
    official = None
    if not short and (path.is_file() or table_stem(path) is not None):
        task, parts = table_stem(path) or name, {"train": path}
    else:
        path = (local_data(GLUE[name][0], name) if name in GLUE else None) or fetch_data(name)
        task, parts = path.name or path.resolve().name, _splits(path)
        if not text and (spelling := re.sub(r"[\W_]", "", task.lower())) in GLUE:
            task, official = spelling, GLUE[spelling][1]
    if test:
        parts = {"train": parts["train"], "test": Path(test).expanduser()}

    columns = _columns(parts["train"], text, pair, label)
    rows = {split: read_table(file, columns) for split, file in parts.items()}
    labels = official or _label_names(rows["train"])
    examples = {split: _examples(parts[split], rows[split], labels, bool(official)) for split in parts}
    train = examples.pop("train")
    _check_classes(parts["train"], train, labels)
    about = ", ".join(map(str, parts.values()))
    if not examples:
        train, examples["test"] = split_stratified(train, TEST_SHARE, seed)
        about += f", {TEST_SHARE:.0%} of each class drawn as the test with seed {seed}"
    for split, part in examples.items():
        _warn_of_overlap(str(path), train, split, part)
    return Labelled(task, train, examples, labels, "accuracy", about)


def first_rows(labelled: Labelled, n: int = 3) -> list[tuple[str | tuple[str, str], str]]:
    """The first training rows, each with the name of its label: a look before anything runs."""
    train = labelled.train
    return [(train.texts[i], labelled.labels[train.labels[i]]) for i in range(min(n, len(train)))]


def _splits(folder: Path) -> dict[str, Path]:
    """The training file of a folder and those to report: its development rows, else its test rows, if it has any."""
    found: dict[str, dict[str, Path]] = {"train": {}, "dev": {}, "test": {}}
    for path in sorted([*folder.glob("*"), *folder.glob("*/*")]):  # the hub's data sets often stand in `data`
        if match := SPLIT.fullmatch(table_stem(path) or ""):
            files = found["dev" if match[1] == "validation" else match[1]]
            split = match[2] or ("train" if match[1] == "train" else "test")
            if split in files:
                both = f"{files[split].relative_to(folder)} and {path.relative_to(folder)}"
                raise UserError(f"{folder} has {both}: give the folder of one task, with one file for each split")
            files[split] = path
    if "train" not in found["train"]:
        raise UserError(f"{folder} has no training rows: a file such as train.tsv, train.csv.gz or train.jsonl")
    return found["train"] | (found["dev"] or found["test"])


def _columns(path: Path, text: str | None, pair: str | None, label: str | None) -> Sequence[str]:
    """The columns of the texts, then that of the label: as given, else as they are often named."""
    if text and label:
        given = [text, pair, label] if pair else [text, label]
        if twice := [column for i, column in enumerate(given) if column in given[:i]]:
            raise UserError(f"the column {twice[0]!r} is named twice: text, pair and label are columns of their own")
        return given
    names = column_names(path)
    known = next((columns for columns in COLUMNS if set(columns) <= set(names)), None)
    if text or pair or label or known is None:
        raise UserError(f"{path} has the columns {', '.join(names)}: name those of text and label (--text, --label)")
    return known


def _label_names(rows: Sequence[Row]) -> tuple[str, ...]:
    """The labels of one's own data: numbers by their value, anything else by the alphabet.

    >>> _label_names([Row(1, ("a text", "10")), Row(2, ("another", "9"))])
    ('9', '10')
    """
    names = {row.values[-1].strip() for row in rows}
    numbers = all(re.fullmatch(r"-?[0-9]{1,18}", name) for name in names)
    return tuple(sorted(names, key=lambda name: (int(name) if numbers else 0, name)))


def _examples(path: Path, rows: Sequence[Row], names: tuple[str, ...], numbered: bool) -> Examples:
    """Rows with their labels as places among the names; GLUE's files may give the place itself."""
    places = {name: i for i, name in enumerate(names)} | ({str(i): i for i in range(len(names))} if numbered else {})
    for row in rows:
        if (label := row.values[-1].strip()) not in places:
            raise UserError(f"{path}, row {row.number}: {unknown('label', label, names)}")
    labels = [places[row.values[-1].strip()] for row in rows]
    numbers = [row.number for row in rows]
    if len(rows[0].values) == 3:
        return Examples([(row.values[0], row.values[1]) for row in rows], labels, numbers)
    return Examples([row.values[0] for row in rows], labels, numbers)


def _check_classes(path: Path, train: Examples, names: tuple[str, ...]) -> None:
    """Training needs two classes, and two rows of each: one to learn from, one to choose the best checkpoint by."""
    counts = Counter(train.labels)
    if len(counts) < 2:
        raise UserError(f"{path} has one class only, {names[train.labels[0]]!r}: there is nothing to tell apart")
    for i, name in enumerate(names):
        if counts[i] < 2:
            row = f", row {train.rows[train.labels.index(i)]}" if counts[i] else ""
            raise UserError(f"{path}: the label {name!r} has too few rows ({counts[i]}{row}), at least 2 are needed")


def _warn_of_overlap(name: str, train: Examples, split: str, part: Examples) -> None:
    def keys(examples: Examples) -> list[tuple[str, ...]]:
        return [tuple(map(str.strip, (text,) if isinstance(text, str) else text)) for text in examples.texts]

    seen = set(keys(train))
    if count := sum(key in seen for key in keys(part)):
        message = f"{name}: {count} of the {len(part)} rows of the {split} split are also training rows"
        warnings.warn(f"{message}, so its score will be too good", stacklevel=3)


def _reviews(path: Path) -> Labelled:
    """Rotten Tomatoes: the plots left out, no film in two splits, every text once.

    A film belongs to the test by a hash of its name, whatever the seed. One film stands in the file under two names
    with the same reviews, and a few texts are repeated: the first of each counts.
    """
    names = ("rotten", "fresh")
    parts: dict[str, list[Row]] = {"train": [], "test": []}
    owners: dict[str, str] = {}
    repeated = crossing = 0
    for number, (category, raw, film) in read_table(path, ["category", "text", "movie_name"], empty=["text"]):
        if category == "plot":  # some of which are empty
            continue
        place = int.from_bytes(hashlib.sha256(film.encode()).digest()[:8]) / 2**64
        split, text = "test" if place < TEST_SHARE else "train", _clean(raw)
        if text in owners:
            repeated += 1
            crossing += owners[text] != split
        else:
            owners[text] = split
            parts[split].append(Row(number, (text, category)))
    about = f"{DATASETS['reviews'].about}; split by film"
    about += f"; {repeated} repeated texts left out, {crossing} of which stood in both splits"
    train, test = (_examples(path, rows, names, False) for rows in parts.values())
    return Labelled("reviews", train, {"test": test}, names, "accuracy", about)


def _clean(text: str) -> str:
    r"""A review as it was meant: no HTML entities, no ellipsis of Windows, no line breaks.

    >>> _clean("A b&amp;w; film\x85\nwith R&amp;B; &amp; more")
    'A b&w film… with R&B & more'
    """
    text = html.unescape(text.replace("\x85", "…"))
    return " ".join(re.sub(r"(?<=&)(\w\.?);", r"\1", text).split())
