"""Comparisons of methods that tag and parse: the task's own score, paired by sentence, and its uncertainty."""

import io
import json
import random
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from sklearn.metrics import f1_score
from typer.testing import CliRunner

from peftlab.cli import app
from peftlab.compare.compare import Question, compare
from peftlab.compare.gather import noted
from peftlab.compare.results import ComparedTask, Comparison, RunResult, load
from peftlab.compare.scores import resample, resample_counts
from peftlab.compare.statistics import judge
from peftlab.data.conllu import Sentence, Tree, write_conllu
from peftlab.errors import UserError
from peftlab.report import terminal, write
from peftlab.tasks.parse import scores

WORDS = {"DET": ["the", "a"], "NOUN": ["dog", "film", "cat"], "VERB": ["sees", "finds"]}
SHAPES = {
    ("DET", "NOUN", "VERB"): Tree([2, 3, 0], ["det", "nsubj", "root"]),
    ("VERB", "NOUN"): Tree([0, 1], ["root", "obj"]),
}


@pytest.fixture(scope="module")
def treebank(tmp_path_factory) -> Path:
    folder, draw = tmp_path_factory.mktemp("data") / "small", random.Random(0)
    folder.mkdir()
    for part, count in (("train", 40), ("dev", 6), ("test", 30)):
        shapes = [draw.choice(list(SHAPES.items())) for _ in range(count)]
        rows = [
            Sentence.of([draw.choice(WORDS[tag]) for tag in tags]).with_tags(tags).with_tree(t) for tags, t in shapes
        ]
        write_conllu(folder / f"{part}.conllu", rows)
    return folder


def question(base: Path, treebank: Path, kind: str, **choices) -> Question:
    settings = {"methods": ["lora", "head"], "seeds": 2, "steps": 6, "base": str(base), "workers": 2}
    return Question([{"name": str(treebank)}], kind, **(settings | choices))


@pytest.mark.parametrize(("kind", "metric", "name"), [("tag", "accuracy", "accuracy"), ("parse", "las", "LAS")])
def test_a_comparison_has_the_tasks_own_score(tiny, treebank, tmp_path, kind, metric, name):
    comparison = compare(question(tiny, treebank, kind), tmp_path)
    [task] = comparison.tasks
    assert (task.metric, len(task.gold)) == (metric, 30)
    observed = comparison.scores(task.name).observed
    for m, method in enumerate(comparison.methods):
        for run in comparison.of(method):
            result = json.loads((Path(run.run) / "result.json").read_text())
            assert observed[m, run.seed] == pytest.approx(result[metric])
            assert run.scores[metric] == result[metric]
    write(comparison, tmp_path)
    assert f"The score is {name} on small" in (tmp_path / "report.html").read_text()
    assert load(tmp_path) == comparison
    rows = json.loads((tmp_path / "results.json").read_text())
    assert all(metric in row and "matthews" not in row for row in rows)
    again = compare(question(tiny, treebank, kind), tmp_path)  # what is done is not run again
    assert [run.seconds for run in again.runs] == [run.seconds for run in comparison.runs]


def test_counts_of_one_thing_a_row_are_labels_again():
    """A row with one word is a row with one label: scores and resamples are the same."""
    rng = np.random.default_rng(0)
    gold, runs = rng.integers(0, 2, 50), rng.integers(0, 2, (3, 2, 50))
    counts = np.stack([np.ones_like(runs), runs == gold], -1)
    ours, theirs = resample_counts(np.ones(50), counts, "accuracy"), resample(gold, runs, 2)
    np.testing.assert_allclose(ours.observed, theirs.observed)
    np.testing.assert_allclose(ours.resampled, theirs.resampled)
    assert (ours.lowest, ours.least) == (theirs.lowest, theirs.least)


def test_f1_of_counts_is_that_of_all_entities_together():
    """By scikit-learn: each thing that is there or was given is an item, right where it is both."""
    rng = np.random.default_rng(1)
    there, given = rng.integers(0, 4, (2, 40))
    right = np.minimum(there, given) - (np.minimum(there, given) > 1)
    truth = [1] * there.sum() + [0] * (given.sum() - right.sum())
    said = [1] * right.sum() + [0] * (there.sum() - right.sum()) + [1] * (given.sum() - right.sum())
    counts = np.stack([given, right], -1)[None, None]
    assert resample_counts(there, counts, "f1").observed[0, 0] == pytest.approx(f1_score(truth, said))


def test_rows_without_anything_to_find_score_nothing():
    counts = np.zeros((1, 1, 3, 2), int)
    counts[0, 0, 0] = 1
    scores = resample_counts([1, 0, 0], counts, "f1")
    assert scores.observed[0, 0] == 1
    assert set(scores.resampled.ravel()) == {0.0, 1.0}  # without the first row there is nothing, and that is 0


def test_sentences_are_resampled_whole():
    """Two methods that err in the same long sentence differ less than their own scores vary."""
    rng = np.random.default_rng(2)
    there = rng.integers(5, 30, 200)
    easy = rng.binomial(there, rng.uniform(0.6, 1, 200))
    runs = np.stack([easy, np.maximum(easy - 1, 0)])[:, None]
    counts = np.stack([np.broadcast_to(there, runs.shape), runs], -1)
    analysis = judge(resample_counts(there, counts, "las"), ["a", "b"])
    [difference] = analysis.differences
    assert difference.verdict == "better"
    assert difference.high - difference.low < (analysis.estimates["a"].high - analysis.estimates["a"].low) / 4
    right = [(heads, there) for heads, there in zip(easy, there, strict=True)]
    trees = [
        (Tree([1] * int(n), ["x"] * int(n)), Tree([1] * int(k) + [0] * int(n - k), ["x"] * int(n))) for k, n in right
    ]
    assert analysis.estimates["a"].mean == pytest.approx(scores([f for _, f in trees], [g for g, _ in trees])["las"])


def test_what_was_done_to_the_data_is_told(tiny, treebank, tmp_path):
    asked = question(tiny, treebank, "tag", methods=["head"], seeds=1, steps=1, overrides=["tag.max_length=4"])
    comparison = compare(asked, tmp_path)
    counts = json.loads((Path(comparison.runs[0].run) / "result.json").read_text())["counts"]
    lost, words = counts["test"]["lost"], counts["test"]["words"]
    assert 0 < lost < words
    said = f"of {words} words of test {lost} cut off"
    assert comparison.tasks[0].note.endswith(said)
    write(comparison, tmp_path)
    screen = Console(width=200, record=True, file=io.StringIO())
    screen.print(terminal(comparison))
    for text in ((tmp_path / "report.html").read_text(), (tmp_path / "results.md").read_text(), screen.export_text()):
        assert f"{said}." in " ".join(text.split())
    assert load(tmp_path) == comparison


def test_methods_that_leave_less_room_are_named():
    results = [{"method": "lora"}, {"method": "prompt", "note": "3 cut off"}, {"method": "lora", "note": ""}]
    assert noted(results) == "3 cut off (prompt)"
    assert noted(results[1:2] * 2) == "3 cut off"
    assert noted(results[:1]) == noted([]) == ""


def test_a_run_that_learned_nothing_is_told(tiny, treebank, tmp_path):
    comparison = compare(question(tiny, treebank, "parse", methods=["head"], seeds=1, steps=1), tmp_path)
    [run] = comparison.runs
    score, majority = run.scores["las"], comparison.tasks[0].majority_score()
    assert (run.status == "collapsed") == (score <= majority)
    assert not run.note or "no better than" in run.note


@pytest.mark.parametrize(
    ("task", "run", "says"),
    [
        ({"metric": "matthews"}, {}, "unknown metric of the task t 'matthews'"),
        ({"majority": None}, {}, "the task t has no labels"),
        ({}, {"predictions": [1, 1]}, "has labels, and t has none"),
        ({"labels": ["x", "y"], "metric": "f1"}, {}, "has counts, and t has none"),
        ({}, {"predictions": [(1, 1)]}, "has 1 predictions for 2 test rows"),
    ],
)
def test_results_that_do_not_fit_are_told(task, run, says):
    settings = {"name": "t", "labels": [], "gold": [1, 1], "metric": "las", "majority": 0.2} | task
    with pytest.raises(UserError, match=says):
        Comparison(
            "c", "b", [ComparedTask(**settings)], [RunResult("m", "t", 0, **{"predictions": [(1, 1)] * 2, **run})]
        )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tag", "x", "--parse", "y"], "--tag and --parse both say what to learn"),
        (["--tag", "FOLDER", "--label", "z"], "--label is of a file of texts with labels: leave it out with --tag"),
        (["--parse", "FOLDER", "--test", "z"], "--test is of a file of texts with labels: leave it out with --parse"),
        (["--parse", "FOLDER", "--set", "parse.name=z"], "--set parse.name would make all runs alike: use --parse"),
        (
            ["--tag", "FOLDER", "--set", "task.limit=9"],
            "--set task.limit=9 is of another task: the comparison is of [tag]",
        ),
        (["--set", "translate.name=multi30k"], "--set translate.name=multi30k is of another task"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(arguments, says, tiny, treebank, tmp_path, monkeypatch):
    monkeypatch.setattr("peftlab.compare.compare.run_grid", lambda *_: pytest.fail("a run was started"))
    given = [str(treebank) if argument == "FOLDER" else argument for argument in arguments]
    done = CliRunner().invoke(app, ["compare", *given, "--base", str(tiny), "--out", str(tmp_path)])
    assert isinstance(done.exception, UserError), done.exception
    assert says in str(done.exception)
