"""Tables against what the csv, json and pyarrow writers put into them, and against files broken in every way."""

import bz2
import csv
import gzip
import io
import json
from pathlib import Path

import pyarrow
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from peftlab.data.table import LONGEST_LINE, Row, column_names, read_table, table_stem
from peftlab.errors import UserError

COLUMNS = ["text", "label"]
ROWS = [('good, very "good"', "1"), ("schön – 好", "0"), ("it's", "1")]
VALID = {
    ".tsv": "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in ROWS),
    ".csv": 'text,label\n"good, very ""good""",1\nschön – 好,0\nit\'s,1\n',
    ".jsonl": "".join(json.dumps({"text": text, "label": int(label)}) + "\n" for text, label in ROWS),
}
several = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes({".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)(data))
    return path


def write_parquet(path: Path, columns: dict[str, object]) -> Path:
    parquet.write_table(pyarrow.table(columns), path)
    return path


def refusal(path: Path, columns: list[str] = COLUMNS) -> str:
    """The one sentence with which a file is refused, without the folder it stands in."""
    with pytest.raises(UserError) as error:
        read_table(path, columns)
    message = str(error.value)
    assert str(path) in message
    assert "\n" not in message
    return message.replace(f"{path.parent}/", "")


@pytest.mark.parametrize("packing", ["", ".gz", ".bz2"])
@pytest.mark.parametrize("kind", VALID)
def test_every_kind_gives_the_same_rows_packed_or_not(tmp_path, kind, packing):
    path = write(tmp_path, f"data{kind}{packing}", VALID[kind])
    assert read_table(path, COLUMNS) == [Row(i, row) for i, row in enumerate(ROWS, 1)]
    assert [row.values for row in read_table(path, ["label"])] == [(label,) for _, label in ROWS]
    assert column_names(path) == COLUMNS


@pytest.mark.parametrize("packing", ["", ".gz"])
def test_parquet_gives_the_same_rows_and_leaves_other_columns_alone(tmp_path, packing):
    buffer = io.BytesIO()
    texts, labels = zip(*ROWS, strict=True)
    odd = pyarrow.array([1, 2, 3], pyarrow.timestamp("ns"))  # has no Python value
    parquet.write_table(
        pyarrow.table({"text": pyarrow.array(texts).dictionary_encode(), "odd": odd, "label": list(map(int, labels))}),
        buffer,
    )
    path = write(tmp_path, f"data.parquet{packing}", buffer.getvalue())
    assert read_table(path, COLUMNS) == [Row(i, row) for i, row in enumerate(ROWS, 1)]
    assert column_names(path) == ["text", "odd", "label"]


@pytest.mark.parametrize("kind", VALID)
def test_a_byte_order_mark_windows_line_ends_and_blank_lines_change_nothing(tmp_path, kind):
    plain = read_table(write(tmp_path, f"plain{kind}", VALID[kind]), COLUMNS)
    windows = VALID[kind].replace("\n", "\r\n\r\n").removesuffix("\r\n\r\n")
    assert read_table(write(tmp_path, f"windows{kind}", b"\xef\xbb\xbf" + windows.encode()), COLUMNS) == plain


def test_the_stem_of_a_table():
    names = ["a/train.tsv.gz", "dev_matched.jsonl", "x.y.CSV.BZ2", "README.md", "csv", "train.gz", ".csv"]
    stems = ["train", "dev_matched", "x.y", None, None, None, None]
    assert [table_stem(Path(name)) for name in names] == stems


# What a CSV can hold: any character but those that no UTF-8 text has.
characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
texts = st.text(characters, min_size=1).filter(str.strip)
tables = st.lists(st.tuples(texts, texts), min_size=1, max_size=5)


@several
@given(tables)
@example([('"', "a\rb"), ("\ufeffa", 'b"\n"c'), ("\n\nx", ",")])
def test_a_csv_gives_back_what_the_csv_writer_was_given(tmp_path, rows):
    buffer = io.StringIO()
    csv.writer(buffer).writerows([COLUMNS, *rows])
    assert [row.values for row in read_table(write(tmp_path, "t.csv", buffer.getvalue()), COLUMNS)] == rows


one_line = texts.map(lambda text: text.translate(dict.fromkeys(map(ord, "\t\r\n"), "_")))


@several
@given(st.lists(st.tuples(one_line, one_line), min_size=1, max_size=5))
@example([('"unbalanced', 'a "quote"')])
def test_a_tsv_gives_back_its_fields_quotation_marks_and_all(tmp_path, rows):
    content = "".join("\t".join(row) + "\n" for row in [("text", "label"), *rows])
    assert [row.values for row in read_table(write(tmp_path, "t.tsv", content), COLUMNS)] == rows


@several
@given(tables, st.booleans())
def test_jsonl_gives_back_what_json_was_given(tmp_path, rows, ascii_only):
    lines = [json.dumps({"label": label, "text": text, "more": [1]}, ensure_ascii=ascii_only) for text, label in rows]
    assert [row.values for row in read_table(write(tmp_path, "t.jsonl", "\n".join(lines)), COLUMNS)] == rows


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "a.csv is empty: it holds no row of data"),
        ("a.tsv", "\n\r\n", "a.tsv is empty: it holds no row of data"),
        ("a.jsonl.gz", " \n", "a.jsonl.gz is empty: it holds no row of data"),
        ("a.csv", "text,label\n", "a.csv is empty: it holds no row of data"),
        (
            "a.csv",
            "text,lable,id\nx,1,2\n",
            "a.csv: unknown column 'label': did you mean 'lable'? (there are text, lable, id)",
        ),
        ("a.tsv", "text,label\n", "a.tsv: unknown column 'text': (there are text,label)"),
        (
            "a.jsonl",
            '{"text": "x", "label": 1}\n{"txt": "x", "label": 1}',
            "a.jsonl, row 2: unknown column 'text': did you mean 'txt'? (there are txt, label)",
        ),
        ("a.csv", "text,label\nx,1\ny\n", "a.csv, row 2: it has 1 columns, and the header has 2"),
        ("a.csv", 'text,label\n"x\n\ny",1\na,b,1\n', "a.csv, row 2: it has 3 columns, and the header has 2"),
        ("a.tsv", "text\tlabel\nx\t1\n\ny\t1\t2\n", "a.tsv, row 2: it has 3 columns, and the header has 2"),
        (
            "a.csv",
            "text,label\nx,1\ncafé,1\n".encode("latin-1"),
            "a.csv, row 2: byte 0xe9 is not UTF-8: save the file as UTF-8 text",
        ),
        (
            "a.tsv.bz2",
            "téxt\tlabel\nx\t1\n".encode("latin-1"),
            "a.tsv.bz2, header: byte 0xe9 is not UTF-8: save the file as UTF-8 text",
        ),
        (
            "a.csv",
            "text,label\nx,1\n".encode("utf-16-le"),
            "a.csv, header: it holds a NUL byte: save the file as UTF-8 text",
        ),
        ("a.tsv", "text\tlabel\nx\0y\t1\n", "a.tsv, row 1: it holds a NUL byte: save the file as UTF-8 text"),
        (
            "a.csv",
            f"text,label\nx,1\n{'x' * LONGEST_LINE},1\n",
            "a.csv, row 2: the line is longer than 1,000,000 bytes",
        ),
        ("a.jsonl.gz", "x" * 2**20, "a.jsonl.gz, row 1: the line is longer than 1,000,000 bytes"),
        (
            "a.csv",
            "text,label,text\nx,1,y\n",
            "a.csv has two columns named 'text': each column needs a name of its own",
        ),
        ("a.jsonl", '{"text": "x", "label": 1}\n[1]', "a.jsonl, row 2: it is not a JSON object but '[1]'"),
        (
            "a.jsonl",
            '{"text": "x", "label": null}',
            "a.jsonl, row 1, column 'label': a text is needed, not null",
        ),
        ("a.jsonl", '{"text": ["x"], "label": 1}', "a.jsonl, row 1, column 'text': a text is needed, not [\"x\"]"),
        ("a.jsonl", '{"text": "x", "label": 0.5}', "a.jsonl, row 1, column 'label': a text is needed, not 0.5"),
        ("a.csv", 'text,label\nx,1\n" ",1\n', "a.csv, row 2, column 'text': the text is empty"),
        ("a.tsv", "text\tlabel\nx\t\n", "a.tsv, row 1, column 'label': the text is empty"),
        (
            "a.jsonl",
            r'{"text": "a \ud800", "label": 1}',
            "a.jsonl, row 1, column 'text': it holds a NUL or half of a surrogate pair, which no text has",
        ),
    ],
)
def test_what_is_wrong_is_said_with_file_row_and_column(tmp_path, name, content, message):
    assert refusal(write(tmp_path, name, content)) == message


@pytest.mark.parametrize(
    ("name", "content", "start"),
    [
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": "x"', "a.jsonl, row 2: it is not JSON (Expecting"),
        ("a.jsonl", "[" * 100_000, "a.jsonl, row 1: it is not JSON ("),
        ("a.jsonl", "1" * 5000, "a.jsonl, row 1: it is not JSON ("),
        ("a.csv", 'text,label\nx,1\n"never closed,1\ny,1\n', "a.csv, row 2: its quotes or line ends are not those of"),
        ("a.csv", 'text,label\n"x"y,1\n', "a.csv, row 1: its quotes or line ends are not those of"),
        ("a.csv", "text,label\rx,1\r", "a.csv, header: its quotes or line ends are not those of"),
        ("a.parquet", b"PAR1 nothing else", "a.parquet cannot be read as Parquet: "),
        ("a.txt", "text,label\nx,1\n", "a.txt is no table: its name must end in .tsv, .csv, .jsonl, .parquet"),
    ],
)
def test_a_file_in_another_format_is_refused(tmp_path, name, content, start):
    assert refusal(write(tmp_path, name, content)).startswith(start)


def test_a_missing_a_truncated_and_a_mislabelled_packed_file(tmp_path):
    assert refusal(tmp_path / "none.csv") == "there is no file none.csv"
    whole = write(tmp_path, "a.csv.gz", VALID[".csv"]).read_bytes()
    for name, data in (("b.csv.gz", whole[:-9]), ("c.csv.bz2", whole), ("d.csv.gz", VALID[".csv"].encode())):
        (tmp_path / name).write_bytes(data)
        assert refusal(tmp_path / name).startswith(f"{name} cannot be read: ")


def test_parquet_is_checked_as_the_others_are(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", {"text": ["x", None], "label": [0, 1]})
    assert refusal(path) == "a.parquet, row 2, column 'text': a text is needed, not null"
    assert "unknown column 'labels': did you mean 'label'?" in refusal(path, ["text", "labels"])
    path = write_parquet(tmp_path / "b.parquet", {"text": ["x" * (LONGEST_LINE + 1)], "label": [0]})
    assert refusal(path) == "b.parquet, row 1, column 'text': the text is longer than 1,000,000 characters"
    path = write_parquet(tmp_path / "c.parquet", {"text": pyarrow.array([], pyarrow.string()), "label": []})
    assert refusal(path) == "c.parquet is empty: it holds no row of data"
    twice = pyarrow.Table.from_arrays([pyarrow.array(["x"])] * 2, ["text", "text"])
    parquet.write_table(twice, tmp_path / "d.parquet")
    assert refusal(tmp_path / "d.parquet").startswith("d.parquet has two columns named 'text'")


def test_an_empty_text_is_taken_only_where_it_is_allowed(tmp_path):
    path = write(tmp_path, "a.csv", "text,label\n,1\n")
    assert read_table(path, COLUMNS, empty=["text"]) == [Row(1, ("", "1"))]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    """The bytes of a good file of each kind."""
    texts, labels = zip(*ROWS, strict=True)
    path = write_parquet(tmp_path_factory.mktemp("whole") / "a.parquet", {"text": texts, "label": labels})
    files = {kind: content.encode() for kind, content in VALID.items()}
    return {
        **files,
        ".parquet": path.read_bytes(),
        ".csv.gz": gzip.compress(files[".csv"]),
        ".tsv.bz2": bz2.compress(files[".tsv"]),
    }


@settings(several, max_examples=400)
@given(st.data())
def test_a_broken_file_gives_rows_or_one_sentence(tmp_path, whole, data):
    """Bytes cut, changed and put in at random places: never any exception but ours."""
    kind = data.draw(st.sampled_from(sorted(whole)))
    content = bytearray(whole[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content)))
        content[start : start + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    path = tmp_path / f"broken{kind}"
    path.write_bytes(content)
    rows, message = [], ""
    try:
        rows = read_table(path, COLUMNS)
    except UserError as error:
        message = str(error)
    assert bool(rows) != bool(message)
    assert all(value.strip() for row in rows for value in row.values)
    assert "\n" not in message
