"""Labelled data: the development files and the real reviews against their counts, own files against small ones."""

import csv
import json
import os
import random
import warnings
from collections import Counter
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from peftlab.data.examples import Examples, Labelled, limit, split_stratified
from peftlab.data.files import write_manifest
from peftlab.data.glue import GLUE, first_rows, load_task
from peftlab.data.sources import DATASETS, fetch_data
from peftlab.data.table import read_table
from peftlab.errors import UserError

OWN = {"text": "review", "label": "stars"}


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PEFTLAB_DATA", raising=False)


def own(path: Path, rows: list[tuple[str, object]]) -> str:
    """A user's own CSV file of reviews and stars."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "review", "stars"), *((i, *row) for i, row in enumerate(rows))])
    return str(path)


def refusal(name: str, **options: str) -> str:
    with pytest.raises(UserError) as error:
        load_task(name, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def contents(part: Examples) -> list[tuple[object, int, int]]:
    return list(zip(part.texts, part.labels, part.rows, strict=True))


# The published data


@pytest.mark.parametrize(
    ("task", "train", "tests", "first"),
    [
        ("sst2", 67_349, {"test": 872}, ("hide new secretions from the parental units ", "negative")),
        ("mnli", 10_000, {"matched": 9_815}, None),
        ("qnli", 2_000, {"test": 5_463}, None),
    ],
)
def test_the_development_data_by_folder_and_by_short_name(shared, monkeypatch, task, train, tests, first):
    folder = shared / "data" / "glue" / GLUE[task][0]
    by_path = load_task(str(folder))
    assert len(by_path.train) == train
    assert {split: len(part) for split, part in by_path.tests.items()} == tests
    assert (by_path.name, by_path.labels, by_path.metric) == (task, GLUE[task][1], "accuracy")
    assert set(by_path.train.labels) == set(range(len(by_path.labels)))
    assert first in (None, first_rows(by_path, 1)[0])
    monkeypatch.setenv("PEFTLAB_DATA", os.pathsep.join([str(shared), str(folder.parent)]))
    by_name = load_task(task)
    assert by_name == by_path
    assert by_name.fingerprint() == by_path.fingerprint()


def test_sst2_limited_as_the_stock_figures_were(shared):
    train = load_task(str(shared / "data" / "glue" / "SST-2")).train
    rows = contents(train)
    random.Random(0).shuffle(rows)
    assert contents(limit(train, 8000, seed=0)) == rows[:8000]


def test_a_test_file_that_holds_training_rows_warns_with_their_number(shared):
    folder = shared / "data" / "glue" / "SST-2"
    with pytest.warns(UserWarning, match=r"SST-2: 2 of the 1821 rows of the test split are also training rows"):
        load_task(str(folder), test=str(folder / "test.tsv.gz"))


def test_the_reviews_have_no_film_and_no_text_in_two_splits():
    reviews = load_task("reviews")
    assert load_task("reviews", seed=1).fingerprint() == reviews.fingerprint()
    test = reviews.tests["test"]
    assert reviews.labels == ("rotten", "fresh")
    assert 0.18 < len(test) / (len(test) + len(reviews.train)) < 0.22

    # 7,403 fresh and 5,405 rotten in the file, in which some texts stand twice
    raw = read_table(fetch_data("reviews") / "rotten_tomatoes_corpus_full.csv.bz2", ["category", "movie_name"])
    assert Counter(row.values[0] for row in raw) == {"fresh": 7403, "rotten": 5405, "plot": 1097}
    assert len(test) + len(reviews.train) == 12_808 - 56
    assert "56 repeated texts left out, 37 of which stood in both splits" in reviews.about
    texts = [*reviews.train.texts, *test.texts]
    assert len(set(texts)) == len(texts)

    films = [{raw[row - 1].values[1] for row in part.rows} for part in (reviews.train, test)]
    assert not films[0] & films[1]
    # one film has two names in the file, and the same 35 reviews
    assert sum(bool({"el_crimen_del_padre_amaro", "the_crime_of_padre_amaro"} & names) for names in films) == 1
    for part in (reviews.train, test):
        assert all(raw[row - 1].values[0] == reviews.labels[label] for _, label, row in contents(part))
    assert not [text for text in texts if "&amp;" in text or text != " ".join(text.split()) or not text]


@pytest.fixture
def cached(tmp_path, monkeypatch) -> Path:
    """A cache in which all three GLUE tasks stand as the hub has them: Parquet, numbered labels, an idx."""
    monkeypatch.setenv("PEFTLAB_CACHE", str(tmp_path / "cache"))
    for task, columns in (
        ("sst2", ["sentence"]),
        ("mnli", ["premise", "hypothesis"]),
        ("qnli", ["question", "sentence"]),
    ):
        folder = tmp_path / "cache" / "data" / task
        folder.mkdir(parents=True)
        n = len(GLUE[task][1])
        for file in DATASETS[task].files:
            table = {column: [f"{column} {i} of {file}" for i in range(2 * n)] for column in columns}
            parquet.write_table(
                pyarrow.table({**table, "label": [*range(n)] * 2, "idx": [*range(2 * n)]}), folder / file
            )
        write_manifest(folder, DATASETS[task].files)
    return tmp_path / "cache" / "data"


def test_the_hubs_files_have_numbered_labels_and_named_columns(cached):
    sst2, mnli, qnli = map(load_task, GLUE)
    assert [list(task.tests) for task in (sst2, mnli, qnli)] == [["test"], ["matched", "mismatched"], ["test"]]
    assert first_rows(sst2, 1) == [("sentence 0 of train-00000-of-00001.parquet", "negative")]
    assert [label for _, label in first_rows(mnli, 3)] == ["entailment", "neutral", "contradiction"]
    assert first_rows(qnli)[1] == (
        ("question 1 of train-00000-of-00001.parquet", "sentence 1 of train-00000-of-00001.parquet"),
        "not_entailment",
    )
    assert "validation_mismatched" in mnli.tests["mismatched"].texts[0][0]


def test_a_hidden_label_of_the_hub_is_refused_with_its_row(cached):
    path = cached / "sst2" / "train-00000-of-00001.parquet"
    copy = cached / "SST-2"
    copy.mkdir()
    table = parquet.read_table(path).drop_columns("label").append_column("label", pyarrow.array([0, 1, 1, -1]))
    parquet.write_table(table, copy / "train.parquet")
    message = refusal(str(copy))
    assert "train.parquet, row 4: unknown label '-1'" in message
    assert message.endswith("(there are negative, positive)")


def test_glues_own_archive_names_the_columns_of_mnli_otherwise(tmp_path):
    folder = tmp_path / "MNLI"
    folder.mkdir()
    rows = [("index", "sentence1", "sentence2", "label1", "gold_label")]
    rows += [(str(i), f'"a {i}', f"b {i}", "neutral", GLUE["mnli"][1][i % 3]) for i in range(6)]
    for name in ("train.tsv", "dev_mismatched.tsv", "dev_matched.tsv", "test_matched.tsv"):
        shift = [(*row[:2], f"{row[2]} {name}", *row[3:]) if i else row for i, row in enumerate(rows)]
        (folder / name).write_text("".join("\t".join(row) + "\n" for row in shift))
    mnli = load_task(str(folder))
    assert list(mnli.tests) == ["matched", "mismatched"]
    assert first_rows(mnli, 2) == [(('"a 0', "b 0 train.tsv"), "entailment"), (('"a 1', "b 1 train.tsv"), "neutral")]


# Folders


def test_a_folder_without_rows_to_report_is_split_and_one_that_names_no_task_keeps_its_labels(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    lines = [json.dumps({"text": f"text {i}", "label": i % 2}) for i in range(20)]
    (folder / "train.jsonl").write_text("\n".join(lines))
    mine = load_task(str(folder))
    assert (mine.name, mine.labels, len(mine.train), len(mine.tests["test"])) == ("mine", ("0", "1"), 16, 4)
    (folder / "test.jsonl").write_text(lines[0].replace("text 0", "else"))
    assert load_task(str(folder)).tests["test"].texts == ["else"]
    (folder / "validation.jsonl").write_text(lines[0].replace("text 0", "development"))
    assert load_task(str(folder)).tests["test"].texts == ["development"]


def test_a_folder_of_no_or_of_several_tasks_is_refused(tmp_path):
    assert refusal(str(tmp_path)).startswith(f"{tmp_path} has no training rows")
    for task in ("MNLI", "QNLI"):
        (tmp_path / task).mkdir()
        (tmp_path / task / "train.csv").touch()
    assert f"{Path('MNLI/train.csv')} and {Path('QNLI/train.csv')}: give the folder of one task" in refusal(
        str(tmp_path)
    )


def test_a_data_folder_that_is_not_there_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PEFTLAB_DATA", str(tmp_path / "none"))
    assert refusal("sst2") == f"PEFTLAB_DATA names {str(tmp_path / 'none')!r}, which is not a folder"


# A user's own file


def test_an_own_file_is_split_by_class_and_seed(tmp_path):
    path = own(tmp_path / "mine.csv", [(f"text {i}", ["bad", "good", "good"][i % 3]) for i in range(60)])
    mine = load_task(path, **OWN)
    assert (mine.name, mine.labels, mine.metric) == ("mine", ("bad", "good"), "accuracy")
    assert Counter(mine.train.labels) == {0: 16, 1: 32}
    assert Counter(mine.tests["test"].labels) == {0: 4, 1: 8}
    assert first_rows(mine)[0] in [("text 0", "bad"), ("text 1", "good")]
    for part in (mine.train, *mine.tests.values()):
        assert all(text == f"text {row - 1}" for text, _, row in contents(part))
    assert load_task(path, **OWN) == mine
    assert load_task(path, **OWN, seed=1).fingerprint() != mine.fingerprint()


def test_an_own_file_of_pairs_with_a_test_file(tmp_path):
    rows = [(f"text {i}", i % 2) for i in range(8)]
    test = own(tmp_path / "more.csv", [("new", 0)])
    mine = load_task(own(tmp_path / "mine.csv", rows), text="review", pair="id", label="stars", test=test)
    assert mine.train.texts == [(f"text {i}", str(i)) for i in range(8)]
    assert contents(mine.tests["test"]) == [(("new", "0"), 0, 1)]


def test_numbers_are_sorted_by_value_and_names_by_the_alphabet(tmp_path):
    for name, labels, expected in (("a", [10, 9, -1], ("-1", "9", "10")), ("b", ["b", 10, "9 "], ("10", "9", "b"))):
        path = own(tmp_path / f"{name}.csv", [(f"text {i}", labels[i % 3]) for i in range(9)])
        assert load_task(path, **OWN).labels == expected


def test_what_is_wrong_with_the_labels_is_said_before_anything_runs(tmp_path):
    good = own(tmp_path / "good.csv", [("a", "positive"), ("b", "negative"), ("c", "positive"), ("d", "negative")])
    test = own(tmp_path / "test.csv", [("e", "negative"), ("f", "positiv")])
    choices = "did you mean 'positive'? (there are negative, positive)"
    assert refusal(good, **OWN, test=test) == f"{test}, row 2: unknown label 'positiv': {choices}"
    one = own(tmp_path / "one.csv", [("a", "x"), ("b", "x")])
    assert refusal(one, **OWN) == f"{one} has one class only, 'x': there is nothing to tell apart"
    few = own(tmp_path / "few.csv", [("a", "x"), ("b", "x"), ("c", "y")])
    assert refusal(few, **OWN) == f"{few}: the label 'y' has too few rows (1, row 3), at least 2 are needed"


def test_what_is_wrong_with_the_columns_is_said(tmp_path):
    path = own(tmp_path / "mine.csv", [("a", "x"), ("b", "y"), ("c", "x"), ("d", "y")])
    assert "unknown column 'star': did you mean 'stars'? (there are id, review, stars)" in refusal(
        path, text="review", label="star"
    )
    sentence = f"{path} has the columns id, review, stars: name those of text and label (--text, --label)"
    assert refusal(path) == refusal(path, text="review") == refusal(path, label="stars") == sentence
    assert refusal(path, text="stars", label="stars").startswith("the column 'stars' is named twice")
    assert refusal("sst2", text="review").startswith("the task 'sst2' has its own columns and test rows")


def test_a_name_that_means_nothing_is_refused_with_the_nearest(tmp_path):
    assert "'sst3': did you mean 'sst2'?" in refusal("sst3")
    assert refusal(str(tmp_path / "none.csv"), **OWN) == f"there is no file {tmp_path / 'none.csv'}"
    (tmp_path / "notes.txt").write_text("text,label\n")
    assert "its name must end in" in refusal(str(tmp_path / "notes.txt"))


def test_rows_in_both_parts_are_counted_pairs_only_if_both_texts_are_equal(tmp_path):
    path = own(tmp_path / "a.csv", [("a", "x"), ("b", "y"), ("c", "x"), ("d", "y")])
    test = own(tmp_path / "b.csv", [(" a ", "x"), ("b", "x"), ("e", "x")])
    with pytest.warns(UserWarning, match=r"a\.csv: 2 of the 3 rows of the test split are also training rows"):
        load_task(path, **OWN, test=test)
    other = own(tmp_path / "c.csv", [("b", "x"), ("a", "y")])  # the same reviews with another id
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_task(path, **OWN, pair="id", test=other)


# Parts and their cuts

examples = st.lists(st.integers(0, 3), min_size=1, max_size=60).map(
    lambda labels: Examples([f"text {i}" for i in range(len(labels))], labels, [*range(1, len(labels) + 1)])
)


@settings(max_examples=100, deadline=None)
@given(examples, st.floats(0.01, 0.99), st.integers(0, 5))
def test_a_stratified_split_keeps_every_row_once_and_the_share_of_each_class(whole, share, seed):
    state = random.getstate()
    first, second = split_stratified(whole, share, seed)
    assert random.getstate() == state
    assert sorted(contents(first) + contents(second), key=lambda row: row[2]) == contents(whole)
    assert first.rows == sorted(first.rows)
    for label, count in Counter(whole.labels).items():
        got = second.labels.count(label)
        assert abs(got - share * count) <= 1
        assert count == 1 or 1 <= got < count
        assert count > 1 or got == 0
    random.seed(7)  # whatever was drawn elsewhere
    assert split_stratified(whole, share, seed) == (first, second)


def test_a_share_outside_of_zero_and_one_is_refused():
    for share in (0, 1, -0.5, float("nan")):
        with pytest.raises(UserError, match="between 0 and 1"):
            split_stratified(Examples(["a", "b"], [0, 0], [1, 2]), share, 0)


def test_a_limit_draws_rows_and_must_leave_two_classes():
    whole = Examples([f"text {i}" for i in range(100)], [i % 2 for i in range(100)], [*range(100)])
    assert limit(whole, 100, 0) == whole
    drawn = limit(whole, 30, seed=3)
    assert len(set(drawn.rows)) == 30
    assert drawn.texts == [f"text {row}" for row in drawn.rows]
    assert drawn != limit(whole, 30, seed=4)
    for n in (-1, 0, 1):
        with pytest.raises(UserError, match=f"a limit of {n} rows leaves fewer than two classes of 2"):
            limit(whole, n, 0)


def test_the_fingerprint_is_that_of_texts_and_labels():
    def labelled(texts: list[str], labels: list[int], split: str = "test", names: tuple[str, ...] = ("x", "y")) -> str:
        part = Examples(texts, labels, [1, 2])
        return Labelled("n", part, {split: part}, names, "accuracy", "").fingerprint()

    same = labelled(["a", "b"], [0, 1])
    assert same == labelled(["a", "b"], [0, 1])
    assert len(same) == 64
    others = [
        labelled(["a", "c"], [0, 1]),
        labelled(["b", "a"], [0, 1]),
        labelled(["a", "b"], [0, 0]),
        labelled(["a", "b"], [0, 1], "matched"),
        labelled(["a", "b"], [0, 1], names=("y", "x")),
    ]
    assert len({same, *others}) == 6
