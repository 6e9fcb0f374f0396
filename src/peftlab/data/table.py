"""Rows of a TSV, CSV, JSONL or Parquet file, also packed as .gz or .bz2, each checked before anything runs.

    for number, (text, label) in read_table(Path("reviews.csv.gz"), ["text", "label"]):
        ...

Text is UTF-8, with or without a byte-order mark. A TSV is not quoted, as GLUE's files are not: a quotation mark in it
is itself. A CSV is quoted as RFC 4180 says. Rows are counted from 1, without the header and blank lines; columns that
were not asked for are not looked at.
"""

import bz2
import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from peftlab.errors import UserError, unknown

LONGEST_LINE = 1_000_000  # bytes; what is longer is not a row of text but a file in another format
NO_TEXT = re.compile("[\0\ud800-\udfff]")  # JSON can spell these; no UTF-8 can
KINDS = (".tsv", ".csv", ".jsonl", ".parquet")
PACKINGS: dict[str, Callable[[Path, str], Any]] = {".gz": gzip.open, ".bz2": bz2.open}


class Row(NamedTuple):
    """One row of a table: its number in the file, and the texts of the columns that were asked for."""

    number: int
    values: tuple[str, ...]


class BrokenRowError(Exception):
    """What is wrong with the row that is being read; `_records` knows which one that is."""


def read_table(path: Path, columns: Sequence[str], empty: Collection[str] = ()) -> list[Row]:
    """All rows of a file, each value a text, empty only in the columns named so; a whole number becomes its digits."""
    return [
        Row(number, tuple(_value(f"{path}, row {number}", record, column, column in empty) for column in columns))
        for number, record in _records(path, columns)
    ]


def column_names(path: Path) -> list[str]:
    """The names of a file's columns; of a JSONL file, those of its first row."""
    return list(next(_records(path, ()))[1])


def table_stem(path: Path) -> str | None:
    """The name of a table's file without its endings, `train` of train.tsv.gz; None if by its name it is no table."""
    inner = Path(path.stem) if path.suffix.lower() in PACKINGS else path
    return inner.stem if inner.suffix.lower() in KINDS else None


def _records(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records of a file of any kind with their numbers; with no columns, at least the first with all its names."""
    stem, open_file = table_stem(path), PACKINGS.get(path.suffix.lower(), open)
    if stem is None:
        raise UserError(f"{path} is no table: its name must end in {', '.join(KINDS)}, or in .gz or .bz2 after these")
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    kind = path.name.removeprefix(stem).lower().split(".")[1]
    number = 0
    try:
        with open_file(path, "rb") as file:
            if kind == "parquet":
                records = _parquet(path, file, columns)
            elif kind == "jsonl":
                records = _jsonl(decoded_lines(file))
            else:
                records = _named(path, _fields(kind, decoded_lines(file)), columns)
            for number, record in enumerate(records, 1):
                yield number, record
    except BrokenRowError as problem:
        raise UserError(f"{path}, row {number + 1}: {problem}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if number == 0:
        raise UserError(f"{path} is empty: it holds no row of data")


def decoded_lines(file: IO[bytes]) -> Iterator[str]:
    """The lines of a text file, never more than one in memory."""
    encoding = "utf-8-sig"  # a byte-order mark stands only at the beginning
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise BrokenRowError(f"the line is longer than {LONGEST_LINE:,} bytes")
        if b"\0" in line:
            raise BrokenRowError("it holds a NUL byte: save the file as UTF-8 text")
        try:
            yield line.decode(encoding)
        except UnicodeDecodeError as error:
            raise BrokenRowError(f"byte {line[error.start]:#04x} is not UTF-8: save the file as UTF-8 text") from None
        encoding = "utf-8"


def _fields(kind: str, lines: Iterator[str]) -> Iterator[list[str]]:
    split = (line.rstrip("\r\n").split("\t") for line in lines if line.strip("\r\n"))
    try:
        yield from split if kind == "tsv" else filter(None, csv.reader(lines, strict=True))
    except csv.Error as error:
        raise BrokenRowError(f"its quotes or line ends are not those of a CSV file ({error})") from None


def _named(path: Path, fields: Iterator[list[str]], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Records from rows of fields, of which the first is the header."""
    try:
        header = next(fields, [])
    except BrokenRowError as problem:
        raise UserError(f"{path}, header: {problem}") from None
    _check_header(path, header, columns)
    for row in fields:
        if len(row) != len(header):
            raise BrokenRowError(f"it has {len(row)} columns, and the header has {len(header)}")
        yield dict(zip(header, row, strict=True))


def _jsonl(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in filter(str.strip, lines):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BrokenRowError(f"it is not JSON ({error})") from None
        if not isinstance(record, dict):
            raise BrokenRowError(f"it is not a JSON object but {line.strip()!r:.40}")
        yield record


def _parquet(path: Path, file: IO[bytes], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

    try:
        table = ParquetFile(file)
        _check_header(path, table.schema_arrow.names, columns)
        if not columns:
            yield dict.fromkeys(table.schema_arrow.names)
        for batch in table.iter_batches(columns=list(columns)):  # a column not asked for may have any type
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as Parquet: {' '.join(str(error).split())}") from None


def _check_header(path: Path, names: Sequence[str], columns: Sequence[str]) -> None:
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise UserError(f"{path} has two columns named {twice[0]!r}: each column needs a name of its own")
    for column in columns:
        if names and column not in names:
            raise UserError(f"{path}: {unknown('column', column, names)}")


def _value(where: str, record: dict[str, Any], column: str, may_be_empty: bool) -> str:
    """The text in a column of a record."""
    if column not in record:  # only in JSONL, where each row names its own columns
        raise UserError(f"{where}: {unknown('column', column, record)}")
    value = record[column]
    where = f"{where}, column {column!r}"
    if not isinstance(value, str | int):
        raise UserError(f"{where}: a text is needed, not {json.dumps(value, default=repr):.40}")
    text = str(value)
    if not text.strip() and not may_be_empty:
        raise UserError(f"{where}: the text is empty")
    if len(text) > LONGEST_LINE:  # in a Parquet file, which has no lines
        raise UserError(f"{where}: the text is longer than {LONGEST_LINE:,} characters")
    if NO_TEXT.search(text):
        raise UserError(f"{where}: it holds a NUL or half of a surrogate pair, which no text has")
    return text
