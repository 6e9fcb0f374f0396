"""The experiments, as far as seconds allow: their configurations, and what they make of results."""

from pathlib import Path

import pytest

from experiments import ladder
from peftlab.models.own import make_model
from peftlab.models.writer import Marks
from peftlab.train.config import read_config_file

CONFIGS = Path(__file__).parents[1] / "configs" / "multi30k"


def test_the_rungs_of_the_ladder_have_the_same_size_data_and_number_of_steps():
    configs = [read_config_file(CONFIGS / f"{name}.toml") for name in ladder.RUNGS]
    sizes = []
    for config in configs:
        model = make_model(config.model, config.translate.vocab, Marks(1, 2, 0))
        sizes.append(sum(parameter.numel() for parameter in model.parameters()))
    assert all(5e6 <= size <= 8e6 for size in sizes)
    assert max(sizes) / min(sizes) < 1.05
    assert len({config.translate for config in configs}) == 1
    assert len({(config.train.epochs, config.train.batch, config.train.seed) for config in configs}) == 1


@pytest.fixture
def rungs():
    bins = [
        {"shortest": 0, "longest": 7, "count": 5, "bleu": 30.0},
        {"shortest": 8, "longest": None, "count": 5, "bleu": 20.0},
    ]
    parts = [*ladder.PARTS, "test_2017_flickr, 2 joined"]
    tests = {part: {"bleu": 31.25, "chrf": 50.0, "bleu_signature": "nrefs:1"} for part in parts}
    result = {"trainable": 5_200_000, "steps": 10, "ms_step": 5.0, "seconds": 60.0, "validation": 0.125}
    return dict.fromkeys(ladder.RUNGS, ladder.summary({**result, "tests": tests, "by_length": bins}))


def test_the_table_of_the_ladder_has_a_line_for_each_rung(rungs):
    lines = ladder.table(rungs).splitlines()
    assert len(lines) == 2 + len(ladder.RUNGS)
    assert "| Transformer | 5.2M | 8.0 | 31.2 |" in lines[-1]


def test_the_chart_of_the_ladder_has_a_line_for_each_rung(rungs):
    drawn = ladder.chart(rungs)
    assert drawn.count("<path") == len(ladder.RUNGS)
    assert drawn.count("<circle") == 2 * len(ladder.RUNGS)
