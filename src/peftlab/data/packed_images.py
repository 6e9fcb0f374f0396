"""Images in Parquet files, as the hub's data sets have them: a column of image files, and a column of labels.

    data/train-00000-of-00002.parquet     image: {bytes, path}, label: 3
    data/train-00001-of-00002.parquet     and in the file's metadata, under "huggingface", what 3 is called
    data/test-00000-of-00001.parquet

The column of images is the one that has such files in it, that of labels the one that the metadata says has classes,
or else `label`.

Shapes: C channels, S × S pixels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from peftlab.data.decode import Packed, read_images
from peftlab.errors import UserError

SPLIT = re.compile(r"(train|test|validation|valid|val|dev)(-\d+-of-\d+)?(-[0-9a-f]+)?\.parquet")
LABELS = ("label", "labels", "class", "target")
CHUNK = 256
"""images that are in memory as files at a time"""


class Columns(NamedTuple):
    """Where in a table images and labels are."""

    image: str
    label: str
    names: tuple[str, ...]
    """of the labels; where the metadata has none, all that occur"""
    places: dict[Any, int]
    """a label as it stands in the table → its place among the names"""


def parquet_files(folder: Path) -> dict[str, list[Path]]:
    """Split → its files in order, where a folder has such files, in itself or in one folder inside."""
    found: dict[str, list[Path]] = {}
    for path in sorted([*folder.glob("*.parquet"), *folder.glob("*/*.parquet")]):
        if match := SPLIT.fullmatch(path.name):
            found.setdefault(match[1], []).append(path)
    places = sorted({path.parent for paths in found.values() for path in paths})
    if len(places) > 1:
        raise UserError(f"{places[0]} and {places[1]} both have Parquet files: give one of them as images.name")
    if found and "train" not in found:
        raise UserError(f"{places[0]} has no training images: a file such as train-00000-of-00001.parquet")
    return found


def find_columns(paths: Sequence[Path]) -> Columns:
    """Of a split's files, the first of which says what is in all."""
    import pyarrow  # type: ignore[import-untyped]

    with readable(paths[0]) as file:
        schema = file.schema_arrow
    images = [field.name for field in schema if pyarrow.types.is_struct(field.type) and "bytes" in inside(field)]
    if not images:
        raise UserError(f"{paths[0]} has the columns {', '.join(schema.names)}: none has image files in it")
    classes = class_names(schema)
    label = next((name for name in [*classes, *LABELS] if name in schema.names), None)
    if label is None:
        raise UserError(f"{paths[0]} has the columns {', '.join(schema.names)}: none is called {' or '.join(LABELS)}")
    kind = schema.field(label).type
    if not pyarrow.types.is_integer(kind) and kind not in (pyarrow.string(), pyarrow.large_string()):
        raise UserError(f"{paths[0]}: the column {label!r} is of the type {kind}: labels are whole numbers or texts")
    if label in classes:
        names = tuple(classes[label])
        return Columns(images[0], label, names, {i: i for i in range(len(names))})
    labels = sorted({row[label] for path in paths for rows in chunks(path, label) for row in rows} - {None})
    return Columns(images[0], label, tuple(map(str, labels)), {value: i for i, value in enumerate(labels)})


def inside(field: Any) -> list[str]:
    """The names inside a column."""
    return [field.type.field(i).name for i in range(field.type.num_fields)]


def class_names(schema: Any) -> dict[str, list[str]]:
    """Column → the names of its classes, as `datasets` writes them beside a table; nothing where it did not."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: list(map(str, about["names"])) for name, about in features.items() if "names" in about}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def read_packed(
    paths: Sequence[Path], columns: Columns, size: int, channels: int
) -> Iterator[tuple[Tensor | UserError, int]]:
    """The pixels [C, S, S] of each row, or what is wrong with it, and its label's place."""
    for path in paths:
        number = 0
        for rows in chunks(path, columns.image, columns.label):
            images = [row[columns.image] or {"bytes": None} for row in rows]
            files = [Packed(f"{path}, row {number + i}", image["bytes"] or b"") for i, image in enumerate(images, 1)]
            number += len(rows)
            for file, row, pixels in zip(files, rows, read_images(files, size, channels), strict=True):
                label, count = row[columns.label], len(columns.names)
                place = columns.places.get(label, -1)
                wrong = UserError(f"{file} has the label {label!r}, which is none of the {count} classes")
                yield (wrong if place < 0 else pixels), place


def chunks(path: Path, *columns: str) -> Iterator[list[dict[str, Any]]]:
    """The rows of a file, not all at once."""
    import pyarrow

    with readable(path) as file:
        for column in columns:
            if column not in file.schema_arrow.names:
                raise UserError(f"{path} has no column {column!r}, as the first file of its data set has")
        try:
            for batch in file.iter_batches(CHUNK, columns=list(columns)):
                yield batch.to_pylist()
        except (pyarrow.ArrowException, OSError) as error:
            raise damaged(path, error) from None


def readable(path: Path) -> Any:
    """A Parquet file that is one."""
    import pyarrow
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

    try:
        return ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise damaged(path, error) from None


def damaged(path: Path, error: Exception) -> UserError:
    """In one line."""
    return UserError(f"{path} cannot be read as Parquet: {' '.join(str(error).split())}")
