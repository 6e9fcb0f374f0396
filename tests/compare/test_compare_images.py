"""Comparisons on images: the same grid, scores and page as for texts, on a ViT that a run trained."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from peftlab.cli import app
from peftlab.train.config import make_config
from peftlab.train.run import run

MODEL = {"kind": "vit", "patch": 4, "dim": 16, "layers": 1, "heads": 2, "inner": 16, "init_std": 0.1}
FEW = {"steps": 4, "batch": 16, "lr": 1e-2, "threads": 1, "evaluations": 1, "precision": "fp32"}


@pytest.fixture(scope="module")
def vit(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    images = {"name": "digits", "limit": 60, "test_limit": 20}
    run(make_config({"model": MODEL, "images": images, "train": FEW}), folder)
    return folder / "model"


def test_all_methods_are_compared_on_images(vit, tmp_path):
    options = ["--images", "digits", "--base", str(vit), "--seeds", "1", "--steps", "4", "--test-limit", "60"]
    asked = CliRunner().invoke(app, ["compare", *options, "--out", str(tmp_path)])
    assert asked.exit_code == 0, asked.output
    rows = json.loads((tmp_path / "results.json").read_text())
    methods = {"full", "head", "lora", "adapter", "prefix", "prompt", "p_tuning"}
    assert {row["method"] for row in rows} == methods
    for row in rows:
        result = json.loads((Path(row["run"]) / "result.json").read_text())
        assert (row["task"], row["accuracy"]) == ("digits", result["accuracy"])
    page = (tmp_path / "report.html").read_text()
    assert "The score is accuracy on digits" in page
    assert "image " in page  # the rows on which they disagree


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--images", "digits", "--task", "reviews"], "--task and --images both say what to learn"),
        (["--images", "digits"], "is of the kind Encoder: give a ViT"),
        (["--images", "digitz", "--base", "VIT"], "did you mean 'digits'?"),
        (["--images", "digits", "--base", "VIT", "--set", "images.name=x"], "use --images"),
    ],
)
def test_mistakes_are_told_before_anything_runs(vit, tiny, tmp_path, options, message):
    given = [str(vit) if option == "VIT" else option for option in options]
    base = [] if "--base" in options else ["--base", str(tiny)]
    asked = CliRunner().invoke(app, ["compare", *given, *base, "--out", str(tmp_path / "out")])
    assert asked.exit_code != 0
    assert message in f"{asked.output} {asked.exception}"
    assert not (tmp_path / "out" / "runs").exists()
