"""The experiment with ELECTRA, as far as seconds allow: its configurations, its runs, its table."""

import argparse
import json
import random
from pathlib import Path

import pytest

from experiments import electra
from peftlab.data import tokens
from peftlab.train.run import open_work

CONFIGS = Path(__file__).parents[1] / "configs"


@pytest.fixture
def given() -> argparse.Namespace:
    sets = ["replaced_tokens.limit=50", "masked_tokens.limit=40", "train.seed=3"]
    return argparse.Namespace(configs=CONFIGS, task="sst2", set=sets, fine=["train.epochs=1"])


def test_every_variant_can_be_built_and_costs_as_much(given, tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "cache_folder", lambda: tmp_path / "cache")
    text = tmp_path / "text.txt"
    text.write_text("a line of some words that say nothing\n" * 400)
    given.set = [f"replaced_tokens.name={text}", "replaced_tokens.vocab=60", "model.dim=32", "model.inner=32"]
    found = electra.variants(given)
    assert found.keys() == electra.VARIANTS.keys()
    asked = [config.replaced_tokens for config in found.values()]
    assert {each.sharing for each in asked} == {"none", "embeddings", "all"}
    assert {each.generator for each in asked} == {0.25, 0.5, 1.0}
    costs = []
    for config in found.values():
        work = open_work(config)
        training = work.prepare()
        training.progress.tokens = training.steps * 16 * 128  # as if they were done
        costs.append(work.flops())
    assert costs == pytest.approx([costs[0]] * len(costs), rel=0.02)


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


def test_bases_are_judged_by_rows_and_seeds_and_have_a_line_each(given, tmp_path):
    """Where two are alike and a third is right more often, only that is told apart."""
    file = tmp_path / "films.csv"
    file.write_text("text,label\n" + "".join(f"film {i},{'good' if i % 2 else 'bad'}\n" for i in range(1000)))
    bases = dict.fromkeys(("masked tokens", "replaced tokens"), electra.pretraining(given)["masked tokens"])
    fine = electra.fine_tunings(argparse.Namespace(task=str(file), fine=[]), bases, tmp_path)
    work = open_work(fine["masked tokens"][0].config)
    (part,) = work.data.tests.values()
    draw = random.Random(0)
    for name, jobs in fine.items():
        wrong = 0.1 if name == electra.NOTHING else 0.4
        for job in jobs:
            said = [label if draw.random() > wrong else 1 - label for label in part.labels]
            job.folder.mkdir(parents=True)
            (job.folder / "result.json").write_text(json.dumps({"predictions": {"test": said}}))
    rows = electra.judged(fine)
    assert [row["verdict"] for row in rows.values()] == ["", "indistinguishable", "better"]
    assert rows["masked tokens"]["low"] < 0.6 < rows["masked tokens"]["high"]
    rows["replaced tokens"] |= {"flops": 5.7e13, "tokens": 2_500_000, "seconds": 1500.0, "perplexity": 40.0}
    rows["replaced tokens"] |= {"rtd_accuracy": 0.93, "mean": 0.8, "low": 0.775, "high": 0.825}
    lines = electra.table(rows).splitlines()
    assert lines[3] == "| replaced tokens | 57 | 2.5M | 25 | 40.0 | 0.930 | 80.0 (77.5 … 82.5) | indistinguishable |"
    assert lines[4].startswith("| from nothing | 0 | 0 | 0 | | | ".replace("| | |", "|  |  |"))
