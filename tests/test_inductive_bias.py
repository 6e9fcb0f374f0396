"""The experiment on inductive bias, as far as seconds allow: its models' sizes, runs of two steps, table and chart."""

import struct
from pathlib import Path

import numpy
import pytest

from experiments import inductive_bias
from peftlab.models.own import make
from peftlab.train.config import read_config_file

CONFIGS = Path(__file__).parents[1] / "configs"


def test_both_models_have_the_same_size_and_data():
    configs = [read_config_file(CONFIGS / f"{name}.toml") for name in inductive_bias.MODELS]
    models = [make(config.model, {"image": 28}) for config in configs]
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in models]
    assert max(sizes) / min(sizes) < 1.02
    assert len({(config.images, config.train.batch, config.train.validation) for config in configs}) == 1


def write_clothes(folder: Path) -> Path:
    """IDX files of a few images, as Fashion-MNIST's."""
    folder.mkdir()
    for split, count in (("train", 40), ("t10k", 20)):
        pixels = numpy.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=numpy.uint8)
        labels = numpy.arange(count, dtype=numpy.uint8) % 10
        for name, values in ((f"{split}-images-idx3-ubyte", pixels), (f"{split}-labels-idx1-ubyte", labels)):
            head = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
            (folder / name).write_bytes(head + values.tobytes())
    return folder


def test_runs_of_two_steps_give_table_and_chart(tmp_path, monkeypatch):
    monkeypatch.setattr(inductive_bias, "SIZES", {40: 3, 20: 3})
    few = [f"images.name={write_clothes(tmp_path / 'fashion-mnist')}", "train.steps=2", "train.batch=8"]
    out = tmp_path / "out"
    learned = inductive_bias.learn(CONFIGS, out, seeds=1, workers=2, overrides=few)
    assert list(learned) == list(inductive_bias.MODELS)
    for name, model in learned.items():
        assert model["steps"] == {"20": 2, "40": 2}
        assert read_config_file(out / f"{name}-20-0" / "config.toml").images.limit == 20
        assert all(0 <= value <= 1 for runs in model["accuracy"].values() for value in runs)
    assert len(inductive_bias.table(learned).splitlines()) == 4


@pytest.fixture
def learned():
    runs = {"600": [0.5, 0.6, 0.7], "6000": [0.8, 0.8, 0.8], "60000": [0.9, 0.9, 0.9]}
    return {name: {"parameters": 306826, "accuracy": runs} for name in inductive_bias.MODELS}


def test_the_table_has_the_mean_and_the_range_of_the_seeds(learned):
    lines = inductive_bias.table(learned).splitlines()
    assert lines[0] == "| model | parameters | 600 images | 6,000 images | 60,000 images |"
    assert lines[-1].startswith("| Vision Transformer | 306,826 | 60.0% (50.0% … 70.0%) | 80.0% (")


def test_the_chart_has_a_line_a_model_and_a_point_a_run_on_a_logarithmic_axis(learned):
    drawn = inductive_bias.chart(learned)
    assert (drawn.count("<path"), drawn.count("<circle")) == (2, 18)
    path = drawn.split('<path d="M')[1].split('"')[0]
    across = [float(point.split()[0]) for point in path.split("L")]
    assert across[1] - across[0] == pytest.approx(across[2] - across[1], abs=0.2)
