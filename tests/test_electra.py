"""The experiment with ELECTRA, as far as seconds allow: its configurations, its runs, its table."""

import argparse
from pathlib import Path

import pytest
from scipy import stats

from experiments import electra
from peftlab.data import tokens
from peftlab.train.run import open_work

CONFIGS = Path(__file__).parents[1] / "configs"


@pytest.fixture
def given() -> argparse.Namespace:
    sets = ["replaced_tokens.limit=50", "masked_tokens.limit=40", "train.seed=3"]
    return argparse.Namespace(configs=CONFIGS, task="sst2", set=sets, fine=["train.epochs=1"])


def test_every_variant_can_be_built_and_has_as_many_steps(given, tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "cache_folder", lambda: tmp_path / "cache")
    text = tmp_path / "text.txt"
    text.write_text("a line of some words that say nothing\n" * 400)
    given.set = [f"replaced_tokens.name={text}", "replaced_tokens.vocab=60", "model.dim=32", "model.inner=32"]
    found = electra.variants(given)
    assert found.keys() == electra.VARIANTS.keys()
    assert len({config.train.steps for config in found.values()}) == 1
    asked = [config.replaced_tokens for config in found.values()]
    assert {each.sharing for each in asked} == {"none", "embeddings", "all"}
    assert {each.generator for each in asked} == {0.25, 0.5, 1.0}
    for config in found.values():
        open_work(config).prepare()


def test_what_is_set_for_one_task_is_left_aside_for_the_other(given):
    found = electra.pretraining(given)
    assert found["masked tokens"].masked_tokens.limit == 40
    assert found["replaced tokens"].replaced_tokens.limit == 50
    assert {config.train.seed for config in found.values()} == {3}


def test_each_base_and_nothing_are_fine_tuned_in_folders_of_their_own(given, tmp_path):
    fine = electra.fine_tunings(given, electra.variants(given), tmp_path)
    jobs = [job for each in fine.values() for job in each]
    assert len(jobs) == len({job.folder for job in jobs}) == 3 * (len(electra.VARIANTS) + 1)
    assert {job.config.method["name"] for job in fine[electra.NOTHING]} == {"scratch"}
    assert {job.config.train.epochs for job in jobs} == {1}
    assert {job.config.task.limit for job in jobs} == {8000}


def test_the_interval_is_student_s():
    values = [0.70, 0.72, 0.74, 0.71]
    low, high = stats.t.interval(0.95, 3, loc=sum(values) / 4, scale=stats.sem(values))
    assert electra.half_width(values) == pytest.approx((high - low) / 2)


def test_the_table_has_a_line_for_each_base():
    cost = {"flops": 5.7e13, "tokens": 2_500_000, "seconds": 1500.0, "perplexity": 40.0}
    fine = {"accuracies": [0.8, 0.8], "mean": 0.8, "interval": 0.0123}
    rows = {"masked tokens": cost | fine, "replaced tokens": cost | fine | {"rtd_accuracy": 0.93}, "from nothing": fine}
    lines = electra.table(rows).splitlines()
    assert len(lines) == 2 + 3
    assert lines[3] == "| replaced tokens | 57 | 2.5M | 25 | 40.0 | 0.930 | 80.0 ± 1.2 |"
