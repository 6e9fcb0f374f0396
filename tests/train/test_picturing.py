"""Images from a configuration to a run's folder and back: a model of one's own, every method on a base, mistakes."""

import json
import subprocess
import sys
from base64 import b64decode
from io import BytesIO
from pathlib import Path

import numpy
import pytest
import torch
import transformers
from PIL import Image
from small import left_alone_and_interrupted

import peftlab
from peftlab.data.examples import limit
from peftlab.data.pictures import CLOTHES, load_pictures
from peftlab.errors import UserError
from peftlab.models.own import make
from peftlab.report.attention import write
from peftlab.train.artefact import open_run
from peftlab.train.config import Config, make_config, read_config_file
from peftlab.train.export import export_run
from peftlab.train.looking import look
from peftlab.train.predict import answer_lines
from peftlab.train.run import run

MODEL = {"kind": "vit", "patch": 4, "dim": 32, "layers": 1, "heads": 2, "inner": 32, "init_std": 0.1}
FEW = {"steps": 6, "batch": 16, "lr": 1e-2, "threads": 1, "evaluations": 2, "precision": "fp32", "pool": "first"}
LIMIT = {"limit": 100, "test_limit": 20}


def digits(content=(), images=LIMIT, **train) -> Config:
    settings = {"model": MODEL, "images": {"name": "digits", **dict(images)}, "train": FEW | train}
    return make_config(settings | dict(content))


@pytest.fixture(scope="module")
def vit(tmp_path_factory) -> Path:
    """A random ViT of `transformers` with its preprocessor."""
    folder, sizes = tmp_path_factory.mktemp("vit"), {"hidden_size": 16, "num_hidden_layers": 2}
    transformers.set_seed(0)
    config = transformers.ViTConfig(
        **sizes, num_attention_heads=2, intermediate_size=24, image_size=12, patch_size=4, initializer_range=0.2
    )
    transformers.ViTModel(config).save_pretrained(folder)
    means = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}
    (folder / "preprocessor_config.json").write_text(json.dumps(means))
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[str]:
    """The test's first digits as files, and in their order."""
    folder, part = tmp_path_factory.mktemp("files"), load_pictures("digits").tests["test"]
    for i in range(20):
        Image.fromarray(part.pixels[i, 0].numpy()).save(folder / f"{i}.png")
    return [str(folder / f"{i}.png") for i in range(20)]


def test_a_vit_of_one_s_own_learns_digits_and_predicts_files(tmp_path, files):
    config = digits(images={"augment": True}, steps=60, batch=64)
    result = run(config, tmp_path / "run")
    assert result["accuracy"] > 0.5
    answers = list(answer_lines(tmp_path / "run", iter(files)))
    assert [answer["label"] for answer in answers] == [str(i) for i in result["predictions"]["test"][:20]]
    assert [answer["image"] for answer in answers] == files
    for answer in answers:
        assert max(answer["probabilities"], key=answer["probabilities"].get) == answer["label"]
        assert sum(answer["probabilities"].values()) == pytest.approx(1)
    base = peftlab.load(tmp_path / "run" / "model")
    pixels = load_pictures("digits").train.pixels.double() / 255
    assert base.reader.mean == pytest.approx((float(pixels.mean()),))
    assert base.reader.std == pytest.approx((float(pixels.std(correction=0)),))
    assert base.config.image == 8


CNN = {"kind": "cnn", "dim": 16, "stages": 2, "blocks": 1, "groups": 4}


@pytest.mark.parametrize(
    "content", [{}, {"model": CNN}, {"method": {"name": "lora"}, "model": None}], ids=["own", "cnn", "lora"]
)
def test_an_interrupted_run_ends_with_the_same_bits(vit, tmp_path, content):
    base = {"base": str(vit)} if "method" in content else {}
    config = digits(content | base, LIMIT | {"augment": True, "flip": True}, checkpoint=0)
    whole, again = left_alone_and_interrupted(config, tmp_path, at=4)
    assert (whole["curve"], whole["predictions"]) == (again["curve"], again["predictions"])
    file = "adapter/adapter_model.safetensors" if base else "model/model.safetensors"
    assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()
    still = run(digits(content | base, checkpoint=0), tmp_path / "still")
    assert still["curve"] != whole["curve"], "augmentation changes what is seen"


@pytest.mark.parametrize("method", ["lora", "adapter", "prefix", "prompt", "p_tuning", "bitfit", "head", "full"])
def test_every_method_adapts_a_base_and_its_files_come_back(vit, tmp_path, files, method):
    config = digits({"base": str(vit), "model": None, "method": {"name": method}})
    before = (vit / "model.safetensors").read_bytes()
    result = run(config, tmp_path / "run")
    assert (vit / "model.safetensors").read_bytes() == before
    part = limit(load_pictures("digits").tests["test"], LIMIT["test_limit"], 0)
    base, _ = open_run(tmp_path / "run")
    assert (base.model.active, base.reader.mean) == (("mine",), (0.4, 0.5, 0.6))
    assert result["predictions"]["test"] == [labelled(base, pixels.repeat(3, 1, 1)) for pixels in part.pixels]
    assert len(list(answer_lines(tmp_path / "run", iter(files)))) == 20


@torch.no_grad()
def labelled(base, pixels: torch.Tensor) -> int:
    resized = torch.nn.functional.interpolate(pixels[None].float(), (12, 12), mode="bilinear", antialias=True)
    return int(base.model(base.images(resized.round().to(torch.uint8))).logits.argmax())


def test_a_damaged_adapter_of_a_vit_is_noticed(vit, tmp_path):
    base = peftlab.load(vit)
    peftlab.attach(base.model, "mine", peftlab.LoRA(rank=2))
    for addition in base.model.additions("mine").values():
        for parameter in addition.parameters():
            torch.nn.init.normal_(parameter)
    peftlab.save_adapter(base, "mine", tmp_path / "adapter")
    peftlab.detach(base.model, "mine")
    assert peftlab.load_adapter(base, tmp_path / "adapter", name="again") == "again"
    sidecar = json.loads((tmp_path / "adapter" / "peftlab.json").read_text())
    sidecar["probe"][0][0] ^= 1
    (tmp_path / "adapter" / "peftlab-manifest.json").unlink()
    (tmp_path / "adapter" / "peftlab.json").write_text(json.dumps(sidecar))
    with pytest.raises(UserError, match="gives another output for its probes than when it was saved"):
        peftlab.load_adapter(base, tmp_path / "adapter", name="damaged")
    sidecar["probe"][0][0] = 256
    (tmp_path / "adapter" / "peftlab.json").write_text(json.dumps(sidecar))
    with pytest.raises(UserError, match="has no probes"):
        peftlab.load_adapter(base, tmp_path / "adapter", name="damaged")


def test_an_adapter_belongs_to_what_its_base_makes_of_pixels(vit, tmp_path):
    base = peftlab.load(vit)
    peftlab.attach(base.model, "mine", peftlab.BitFit())
    peftlab.save_adapter(base, "mine", tmp_path / "adapter")
    (tmp_path / "other").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "other" / name).write_bytes((vit / name).read_bytes())
    (tmp_path / "other" / "preprocessor_config.json").write_text('{"image_mean": 0.1, "image_std": 1}')
    with pytest.raises(UserError, match="its image reader is"):
        peftlab.load_adapter(peftlab.load(tmp_path / "other"), tmp_path / "adapter")
    with pytest.raises(UserError, match="that of a model that reads images is kept in our own format"):
        peftlab.save_adapter(base, "mine", tmp_path / "stock", to="peft")


def test_a_merged_run_is_a_classifier_of_transformers(vit, tmp_path):
    run(digits({"base": str(vit), "model": None, "method": {"name": "lora"}}), tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "merged", "merged")
    theirs = transformers.ViTForImageClassification.from_pretrained(tmp_path / "merged").eval()
    base, _ = open_run(tmp_path / "run")
    images = base.images(torch.randint(256, (3, 3, 12, 12), dtype=torch.uint8))
    with torch.no_grad():
        torch.testing.assert_close(base.model(images).logits, theirs(images.pixels).logits, rtol=0, atol=1e-5)
    assert theirs.config.id2label == {i: str(i) for i in range(10)}


def test_a_run_s_model_is_a_base_for_another(tmp_path, files):
    run(digits(), tmp_path / "own")
    base = {"base": str(tmp_path / "own" / "model"), "model": None, "method": {"name": "lora"}}
    run(digits(base), tmp_path / "run")
    assert len(list(answer_lines(tmp_path / "run", iter(files)))) == 20
    with pytest.raises(UserError, match="a model of one's own is written without a head"):
        export_run(tmp_path / "run", tmp_path / "out", "merged")


def test_a_cnn_is_trained_opened_again_and_its_head_on_other_classes(tmp_path, files):
    result = run(digits({"model": CNN}, {}, steps=100, batch=64), tmp_path / "own")
    assert result["accuracy"] > 0.5
    found = [answer["label"] for answer in answer_lines(tmp_path / "own", iter(files))]
    assert found == [str(label) for label in result["predictions"]["test"][:20]]
    base = {"base": str(tmp_path / "own" / "model"), "model": None, "method": {"name": "head"}}
    run(digits(base, LIMIT | {"classes": ["3", "8"]}, steps=2), tmp_path / "run")
    assert {answer["label"] for answer in answer_lines(tmp_path / "run", iter(files))} <= {"3", "8"}
    with pytest.raises(UserError, match="has a network of convolutions, which has no attention"):
        look(tmp_path / "own", iter(files[:1]))


def test_a_model_of_some_classes_is_adapted_to_others(tmp_path, files):
    own = run(digits(images=LIMIT | {"classes": ["5", "0", "4"]}), tmp_path / "own")
    assert own["labels"] == ["5", "0", "4"]
    base = {"base": str(tmp_path / "own" / "model"), "model": None, "method": {"name": "lora"}}
    result = run(digits(base, LIMIT | {"classes": ["8", "1"]}, steps=1, evaluations=1), tmp_path / "run")
    assert set(result["predictions"]["test"]) <= {0, 1}
    assert {answer["label"] for answer in answer_lines(tmp_path / "run", iter(files))} <= {"8", "1"}
    assert read_config_file(tmp_path / "run" / "config.toml").images.classes == ("8", "1")


@pytest.mark.parametrize(("method", "pool"), [("lora", "first"), ("prompt", "mean")])
def test_the_page_of_attention_lies_over_the_image(vit, tmp_path, files, method, pool):
    config = digits({"base": str(vit), "model": None, "method": {"name": method}}, pool=pool, steps=1, evaluations=1)
    run(config, tmp_path / "run")
    [seen] = look(tmp_path / "run", iter(files[:1]))
    base, _ = open_run(tmp_path / "run")
    mean, rolled = seen.maps
    with torch.no_grad():
        maps = base.model(base.images(mean.pixels[None]), attention=True).attention
    layers = [layer[0].mean(0)[:, -10:] for layer in maps]  # the class token and 3×3 patches
    steps = [(layer / layer.sum(1, keepdim=True)).double() for layer in layers]
    expected = (steps[1] + torch.eye(10)) @ (steps[0] + torch.eye(10)) / 4
    for found, weights in ((mean, layers[-1]), (rolled, expected)):
        row = weights[0] if pool == "first" else weights.mean(0)
        torch.testing.assert_close(found.weights, row[1:].view(3, 3).float())
    write([seen], "a run", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    image = Image.open(BytesIO(b64decode(text.split('src="data:image/png;base64,')[1].split('"')[0])))
    assert torch.equal(torch.from_numpy(numpy.array(image)).permute(2, 0, 1), mean.pixels)
    assert f"{mean.title}: {float(mean.weights.max()):.2f} on the patch in row" in text
    assert "http" not in text.replace("http-equiv", "")


def test_predict_on_the_command_line_tells_a_file_that_is_no_image(tmp_path, files):
    run(digits(steps=1, evaluations=1), tmp_path / "run")
    command = [sys.executable, "-m", "peftlab", "predict", str(tmp_path / "run"), "--json"]
    (tmp_path / "text.png").write_text("no image")
    done = subprocess.run([*command, files[0], files[1]], capture_output=True, text=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["image"] for answer in found] == files[:2]
    assert found[0].keys() == {"image", "label", "probabilities", "logits"}
    done = subprocess.run([*command, str(tmp_path / "text.png")], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"peftlab: {tmp_path / 'text.png'} is no image, whatever its name says: " + (
        "there are PNG, JPEG, GIF, BMP, WEBP, TIFF, PPM\n"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"base": "tiny", "model": None}, "is of the kind Encoder: give a ViT, a DeiT, or a .model. to train"),
        ({"model": MODEL | {"kind": "decoder"}}, "unknown kind in .model. 'decoder': .there are vit, cnn"),
        ({"model": MODEL | {"image": 8}}, "unknown key of .model. for a vit 'image'"),
        ({"model": MODEL | {"patch": 9}}, "patch is 9, image is 8: an image must have a whole patch"),
        ({"model": MODEL | {"channels": 2}}, "channels is 2: an image has 1 .grey. or 3 .colours."),
        ({"method": {"name": "lora"}}, "lora adapts a base, and a .model. of one's own has none: use full"),
        ({"images": {"name": "nowhere"}}, "unknown images 'nowhere'"),
        ({"images": {"classes": ["3"]}}, "images.classes in .* is .'3'.: .*at least 2"),
        ({"images": {"classes": ["3", "8", "1O"]}}, "unknown class of digits in images.classes '1O'"),
        ({"images": {"nam": "digits"}}, "unknown key of .images. .*'nam': did you mean 'name'"),
        ({"images": None}, "texts are labelled by a base, and a .model. of one's own is none"),
        ({"translate": {}}, "has .translate. and .images.: a run has one task"),
    ],
)
def test_mistakes_are_told_before_training(tiny, tmp_path, content, message):
    content = content | ({"base": str(tiny)} if "base" in content else {})
    with pytest.raises(UserError, match=message):
        run(digits(content), tmp_path / "run")


@pytest.mark.parametrize("name", ["digits", "fashion-mnist", "fashion-eight", "fashion-cnn"])
def test_the_committed_configs_are_whole(name):
    config = read_config_file(Path(__file__).parents[2] / "configs" / f"{name}.toml")
    assert config.images is not None
    assert set(config.images.classes or ()) <= set(CLOTHES) - {"T-shirt", "shirt"}
    assert make(config.model, {"image": 28}).reads_images
