"""The verdict on worlds in which the right answer is known."""

import dataclasses

import numpy as np
import pytest
from made_up import made_up

from peftlab.compare.results import ComparedTask, Comparison, RunResult
from peftlab.report import verdict_of
from peftlab.report.summary import pareto

BASE = 1000


def compared(accuracies, seeds=3, rows=2000, parameters=None, **more):
    """A comparison in which each method is right on the first share of the rows, give or take a few."""
    rng = np.random.default_rng(0)
    gold = np.ones(rows, int)
    gold[::2] = 0
    runs = []
    for method, accuracy in accuracies.items():
        for seed in range(seeds):
            right = rng.random(rows) < accuracy
            costs = {"trainable": (parameters or {}).get(method, 50), "base_parameters": BASE, "seconds": 10.0}
            costs["trainable_without_head"] = costs["trainable"] - 2
            given = np.where(right, gold, 1 - gold).tolist()
            runs.append(RunResult(method, "task", seed, predictions=given, **costs))
    return Comparison("a comparison", "base", [ComparedTask("task", ["a", "b"], gold.tolist())], runs, **more)


def test_the_best_is_chosen_and_the_others_are_called_worse():
    verdict = verdict_of(compared({"one": 0.9, "two": 0.7, "three": 0.6}))
    assert verdict.method == "one"
    assert verdict.headline == "Use one"
    assert "Worse: two and three." in verdict.reasons[1]
    assert verdict.caveats == ()


def test_of_those_that_cannot_be_told_apart_the_one_with_fewest_parameters_is_chosen():
    verdict = verdict_of(compared({"large": 0.851, "small": 0.85, "bad": 0.6}, parameters={"large": 400, "small": 10}))
    assert verdict.method == "small"
    assert "Indistinguishable from it: large" in verdict.reasons[1]


def test_training_the_whole_base_is_chosen_only_if_it_is_better():
    whole = {"whole": BASE + 2}
    close = verdict_of(compared({"whole": 0.852, "light": 0.85}, parameters=whole))
    assert close.method == "light"
    assert "indistinguishable from whole" in close.reasons[0]
    far = verdict_of(compared({"whole": 0.95, "light": 0.8}, parameters=whole))
    assert far.method == "whole"
    assert "training the whole base" in far.reasons[0]
    assert "Worse: light" in far.reasons[1]
    below = verdict_of(compared({"whole": 0.8, "light": 0.95}, parameters=whole))
    assert "better than whole" in below.reasons[0]


def test_where_every_run_collapsed_no_method_is_chosen():
    comparison = compared({"one": 0.9, "two": 0.85})
    runs = [
        dataclasses.replace(run, status="collapsed", note="every row got the same label") for run in comparison.runs
    ]
    verdict = verdict_of(dataclasses.replace(comparison, runs=runs))
    assert verdict.method is None
    assert verdict.headline == "No method learned anything"


def test_a_method_with_a_collapsed_run_is_not_chosen_and_is_told():
    comparison = compared({"one": 0.9, "two": 0.85})
    runs = [
        dataclasses.replace(r, status="collapsed") if (r.method, r.seed) == ("one", 1) else r for r in comparison.runs
    ]
    verdict = verdict_of(dataclasses.replace(comparison, runs=runs))
    assert verdict.method == "two"
    assert verdict.caveats == ("Collapsed: one on task with seed 1, which counts in its score.",)


def test_a_quick_look_one_seed_and_few_rows_are_marked():
    verdict = verdict_of(compared({"one": 0.9, "two": 0.6}, seeds=1, rows=100, quick=True))
    assert verdict.method == "one"
    assert "A quick look (1 seed, 100 test rows): run it in full to decide." in verdict.caveats
    assert any("another seed" in caveat for caveat in verdict.caveats)
    assert any("100 test rows" in caveat for caveat in verdict.caveats)


def test_with_one_method_or_none_there_is_no_choice():
    assert verdict_of(compared({"one": 0.9})).headline == "Only one has a score"
    comparison = compared({"one": 0.9})
    failed = [RunResult("one", "task", seed, "failed", "it ended") for seed in range(3)]
    verdict = verdict_of(dataclasses.replace(comparison, runs=failed))
    assert (verdict.method, verdict.headline) == (None, "No verdict")
    assert "Failed: one on task with seed 0" in verdict.caveats[0]


def test_several_tasks_are_averaged():
    verdict = verdict_of(made_up())
    assert "accuracy on average over 2 tasks" in verdict.reasons[0]
    assert str(verdict).startswith(f"{verdict.headline}. It has ")


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([], []),
        ([("a", 1, 0.5), ("b", 1, 0.6)], ["b"]),
        ([("a", 2, 0.6), ("b", 1, 0.6)], ["b"]),
        ([("c", 3, 0.7), ("b", 2, 0.6), ("a", 1, 0.5)], ["a", "b", "c"]),
    ],
)
def test_the_front_is_what_no_other_beats(points, front):
    assert pareto(points) == front


def test_a_correlation_is_not_told_in_percent():
    comparison = compared({"one": 0.9, "two": 0.6})
    tasks = [dataclasses.replace(comparison.tasks[0], metric="matthews")]
    [sentence, _] = verdict_of(dataclasses.replace(comparison, tasks=tasks)).reasons
    assert "Matthews' correlation × 100 on task" in sentence
    assert " % Matthews" not in sentence
