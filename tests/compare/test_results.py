"""What a comparison leaves: the same back, strict reading, and the rows that others rely on."""

import csv
import dataclasses
import io
import json
import re

import numpy as np
import pytest

from peftlab.compare.results import ComparedTask, Comparison, RunResult, load, save, to_csv
from peftlab.errors import UserError

HOSTILE = "</script><img src=x onerror=alert(1)>"


def comparison(**changes):
    task = ComparedTask("reviews", ["no", "yes"], [0, 1, 1, 0], texts=["a", "b", "c", HOSTILE])
    runs = [
        RunResult(
            method,
            "reviews",
            seed,
            scores={"accuracy": 0.75, "f1": 0.73, "matthews": 0.58},
            trainable=100,
            trainable_without_head=90,
            base_parameters=9000,
            seconds=1.5,
            run=f"runs/{method}-{seed}",
            predictions=[0, 1, 1, 1],
            curve=[{"step": 1, "loss": 0.7, "score": 0.5}],
            settings={"lr": 1e-3, "targets": ["q", "v"]},
        )
        for method in ("lora", "head")
        for seed in (0, 1)
    ]
    return dataclasses.replace(Comparison("a title", "minilm", [task], runs, {"torch": "2"}, {"base": "ff"}), **changes)


def test_saved_and_loaded_it_is_the_same(tmp_path):
    first = comparison(command="peftlab compare", config="base = 'x'", quick=True)
    save(first, tmp_path / "new")
    assert load(tmp_path / "new") == first
    assert not list((tmp_path / "new").glob(".*"))


def test_pairs_of_texts_and_a_loss_that_is_not_a_number_are_kept_as_json_can(tmp_path):
    task = ComparedTask("pairs", ["no", "yes"], [0], texts=[("premise", "hypothesis")])
    run = RunResult("lora", "pairs", 0, curve=[{"step": 1, "loss": float("nan"), "score": 0.5}])
    save(Comparison("t", "b", [task], [run]), tmp_path)
    found = load(tmp_path)
    assert found.tasks[0].texts == [("premise", "hypothesis")]
    assert found.runs[0].curve == [{"step": 1, "loss": None, "score": 0.5}]
    assert "NaN" not in (tmp_path / "comparison.json").read_text()


def test_results_json_is_a_list_of_rows_with_what_others_rely_on(tmp_path):
    save(comparison(), tmp_path)
    rows = json.loads((tmp_path / "results.json").read_text())
    assert len(rows) == 4
    promised = {"method", "task", "seed", "accuracy", "f1", "trainable", "seconds", "run"}
    assert promised <= rows[0].keys()
    assert (rows[1]["method"], rows[1]["seed"], rows[1]["accuracy"], rows[1]["run"]) == ("lora", 1, 0.75, "runs/lora-1")
    assert rows[0]["percent_of_base"] == 1.0
    lines = list(csv.DictReader(io.StringIO((tmp_path / "results.csv").read_text())))
    assert promised <= lines[0].keys()
    assert (lines[3]["method"], lines[3]["trainable"], json.loads(lines[3]["settings"])["lr"]) == ("head", "100", 0.001)


def test_a_failed_run_is_a_row_too():
    failed = RunResult("lora", "reviews", 2, "failed", "it ran out of memory, at step 3")
    rows = comparison(runs=[*comparison().runs, failed]).rows()
    assert (rows[-1]["status"], rows[-1]["accuracy"], rows[-1]["trainable"]) == ("failed", None, None)
    [line] = [line for line in csv.DictReader(io.StringIO(to_csv(rows))) if line["status"] == "failed"]
    assert (line["note"], line["accuracy"]) == ("it ran out of memory, at step 3", "")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: "[]", "its content in x.json"),
        (lambda text: text[:50], "its content in x.json"),
        (lambda text: text.replace('"quick"', '"quik"'), "quik in x.json"),
        (lambda text: text.replace('"title"', '"titel"'), "title in x.json can't be read: field required"),
        (lambda text: text.replace('"seed":1', '"seed":"1"'), "runs.1.seed in x.json"),
        (lambda text: text.replace('"done"', '"finished"'), "x.json can't be used: unknown status of a run 'finished'"),
        (lambda text: text.replace('"task":"reviews"', '"task":"review"'), "did you mean 'reviews'"),
    ],
)
def test_a_file_that_is_wrong_is_told_in_a_sentence(change, says):
    text = comparison().to_json()
    assert change(text) != text
    with pytest.raises(UserError, match=re.escape(says)):
        Comparison.from_json(change(text), "x.json")


def test_a_folder_without_a_comparison_is_told(tmp_path):
    with pytest.raises(UserError, match=r"holds no comparison"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (RunResult("lora", "reviews", 0, predictions=[0, 1, 1, 1]), "lora on reviews with seed 0 is there twice"),
        (RunResult("lora", "reviews", 7, predictions=[0, 1]), "2 predictions for 4 test rows"),
        (RunResult("lora", "reviews", 7, predictions=[0, 1, 2, 0]), "a label outside the 2"),
        (RunResult("lora", "reviews", 7, predictions=[0, 1, -1, 0]), "a label outside the 2"),
    ],
)
def test_runs_that_do_not_fit_their_task_are_refused(run, says):
    with pytest.raises(UserError, match=says):
        comparison(runs=[*comparison().runs, run])


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"metric": "acc"}, "unknown metric of the task t 'acc'"),
        ({"gold": []}, "has no test rows"),
        ({"texts": ["a"]}, "2 test labels and 1 texts"),
        ({"splits": {"matched": 1}}, "do not add up to its 2 test rows"),
    ],
)
def test_a_task_that_does_not_fit_itself_is_refused(fields, says):
    with pytest.raises(UserError, match=says):
        ComparedTask(**{"name": "t", "labels": ["a", "b"], "gold": [0, 1], **fields})


def test_splits_are_averaged_whatever_their_size():
    task = ComparedTask("mnli", ["a", "b"], [0, 0, 0, 1], splits={"matched": 3, "mismatched": 1})
    runs = [RunResult("lora", "mnli", 0, predictions=[0, 0, 0, 0])]
    assert Comparison("t", "b", [task], runs).scores("mnli").observed[0, 0] == pytest.approx((1.0 + 0.0) / 2)
    assert task.majority_score() == 1.0  # of each split its own most frequent label


def test_scores_stand_in_the_order_of_methods_and_seeds_and_leave_out_failures():
    base = comparison()
    runs = [
        RunResult("z", "reviews", 5, predictions=[1, 0, 0, 1]),
        *base.runs,
        RunResult("lora", "reviews", 5, "failed"),
    ]
    changed = dataclasses.replace(base, runs=runs)
    assert (changed.methods, changed.seeds) == (["z", "lora", "head"], [0, 1, 5])
    expected = [[np.nan, np.nan, 0.0], [0.75, 0.75, np.nan], [0.75, 0.75, np.nan]]
    np.testing.assert_array_equal(changed.scores("reviews").observed, expected)


def test_a_notebook_shows_a_table_in_which_text_stays_text():
    runs = [dataclasses.replace(run, method=f"{run.method}{HOSTILE}") for run in comparison().runs]
    shown = comparison(runs=runs)._repr_html_()
    assert "<table>" in shown
    assert "lora&lt;/script&gt;&lt;img" in shown
    assert "<img" not in shown
