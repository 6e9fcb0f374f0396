"""Published ViT and DeiT checkpoints, in and out, against `transformers`, at other resolutions too; timm's names."""

import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import peftlab
from peftlab.data.batch import Images
from peftlab.errors import UserError
from peftlab.models.pretrained import load_checkpoint, save_checkpoint
from peftlab.models.timm import ratio

SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 36}
SMALL = SIZES | {"image_size": 12, "patch_size": 4, "num_channels": 3}
KINDS = {
    "vit": (transformers.ViTModel, transformers.ViTConfig(**SMALL)),
    "vit-grey": (
        transformers.ViTModel,
        transformers.ViTConfig(
            **SMALL | {"image_size": 10, "patch_size": 2, "num_channels": 1}, hidden_act="relu", layer_norm_eps=1e-6
        ),
    ),
    "deit": (transformers.DeiTModel, transformers.DeiTConfig(**SMALL)),
}


def write(model, folder: Path):
    """A model saved as `transformers` does, all its weights random."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)  # norms and biases too, so that a mix-up shows
    model.eval().save_pretrained(folder)
    return model


@pytest.fixture(params=KINDS)
def reference(request, tmp_path):
    kind, config = KINDS[request.param]
    return write(kind(config), tmp_path / "reference"), tmp_path / "reference"


@pytest.mark.parametrize("size", [None, (20, 20), (8, 28), (13, 9)], ids=str)
def test_hidden_states_equal_those_of_transformers_at_any_resolution(reference, size):
    model, folder = reference
    side = model.config.image_size
    pixels = torch.randn(3, model.config.num_channels, *(size or (side, side)))
    ours, _, _ = load_checkpoint(folder)
    with torch.no_grad():
        expected = model(pixels, interpolate_pos_encoding=size is not None)
        out = ours(Images(pixels))
    torch.testing.assert_close(out.hidden, expected.last_hidden_state, rtol=0, atol=1e-5)
    torch.testing.assert_close(out.pooled, expected.pooler_output, rtol=0, atol=1e-5)


def test_attention_equals_that_of_transformers(reference):
    model, folder = reference
    model.set_attn_implementation("eager")
    pixels = torch.randn(2, model.config.num_channels, 16, 12)
    with torch.no_grad():
        expected = model(pixels, interpolate_pos_encoding=True, output_attentions=True).attentions
        found = load_checkpoint(folder)[0](Images(pixels), attention=True).attention
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_round_trip_is_bit_equal(reference, tmp_path):
    model, folder = reference
    save_checkpoint(*load_checkpoint(folder), tmp_path / "written")
    again = transformers.AutoModel.from_pretrained(tmp_path / "written")
    assert type(again) is type(model)
    expected = model.state_dict()
    assert again.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in again.state_dict().items())
    first, second = (json.loads((at / "config.json").read_text()) for at in (folder, tmp_path / "written"))
    assert first == second
    files = [load_file(at / "model.safetensors") for at in (folder, tmp_path / "written")]
    assert files[0].keys() == files[1].keys()


@pytest.mark.parametrize("kind", ["ViT", "DeiT"])
def test_a_classifier_of_ours_is_that_of_transformers(kind, tmp_path):
    config = getattr(transformers, f"{kind}Config")(**SMALL, num_labels=5)
    write(getattr(transformers, f"{kind}ForImageClassification")(config), tmp_path / "theirs")
    with pytest.warns(UserWarning, match="2 tensors are not the base's and are left aside, as classifier"):
        ours, family, settings = load_checkpoint(tmp_path / "theirs")
    pixels = torch.randn(3, 3, 12, 12)
    assert ours(Images(pixels)).pooled is None
    names = ("a", "b", "c", "d", "e")
    peftlab.attach(ours, "mine", peftlab.Head(), head=peftlab.Classifier(labels=names))
    head = ours.additions("mine")["encoder.head"]
    theirs = load_file(tmp_path / "theirs" / "model.safetensors")
    with torch.no_grad():
        head.out.weight.copy_(theirs["classifier.weight"])
        head.out.bias.copy_(theirs["classifier.bias"])
    save_checkpoint(ours, family, settings, tmp_path / "ours", head="mine")
    again = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "ours").eval()
    assert type(again).__name__ == f"{kind}ForImageClassification"
    assert again.config.id2label == dict(enumerate(names))
    for size in (12, 16):
        pixels = torch.randn(3, 3, size, size)
        with torch.no_grad():
            expected = again(pixels, interpolate_pos_encoding=True).logits
            torch.testing.assert_close(ours(Images(pixels)).logits, expected, rtol=0, atol=1e-5)
    written = load_file(tmp_path / "ours" / "model.safetensors")
    assert written.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in written.items())


def test_a_head_on_a_base_with_a_pooler_reads_past_it_as_in_transformers(tmp_path):
    write(transformers.ViTModel(transformers.ViTConfig(**SMALL)), tmp_path / "theirs")
    ours, family, settings = load_checkpoint(tmp_path / "theirs")
    peftlab.attach(ours, "mine", peftlab.Head(), head=peftlab.Classifier(labels=5))
    save_checkpoint(ours, family, settings, tmp_path / "ours", head="mine")
    again = transformers.ViTForImageClassification.from_pretrained(tmp_path / "ours").eval()
    pixels = torch.randn(3, 3, 12, 12)
    with torch.no_grad():
        torch.testing.assert_close(ours(Images(pixels)).logits, again(pixels).logits, rtol=0, atol=1e-5)


def test_the_two_heads_of_a_teacher_are_left_aside(tmp_path):
    model = write(transformers.DeiTForImageClassificationWithTeacher(transformers.DeiTConfig(**SMALL)), tmp_path)
    with pytest.warns(UserWarning, match="4 tensors are not the base's"):
        ours, _, _ = load_checkpoint(tmp_path)
    pixels = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        expected = model.deit(pixels).last_hidden_state
        torch.testing.assert_close(ours(Images(pixels)).hidden, expected, rtol=0, atol=1e-5)


# — timm —

# what stands in `transformers`' model → what timm's class calls it
TIMM = [
    (r"embeddings\.cls_token", "cls_token"),
    (r"embeddings\.distillation_token", "dist_token"),
    (r"embeddings\.position_embeddings", "pos_embed"),
    (r"embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"layers\.(\d+)\.layernorm_before\.", r"blocks.\1.norm1."),
    (r"layers\.(\d+)\.layernorm_after\.", r"blocks.\1.norm2."),
    (r"layers\.(\d+)\.attention\.o_proj\.", r"blocks.\1.attn.proj."),
    (r"layers\.(\d+)\.mlp\.", r"blocks.\1.mlp."),
    (r"layernorm\.", "norm."),
]


def timm_state(model) -> dict[str, torch.Tensor]:
    """The state of a base of `transformers` under timm's names."""
    state, renamed = model.state_dict(), {}
    for name, tensor in state.items():
        if found := re.fullmatch(r"layers\.(\d+)\.attention\.q_proj\.(weight|bias)", name):
            parts = [state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            renamed[f"blocks.{found[1]}.attn.qkv.{found[2]}"] = torch.cat(parts)
        elif not re.search(r"\.[kv]_proj\.", name):
            ((pattern, put),) = [(old, new) for old, new in TIMM if re.match(old, name)]
            renamed[re.sub(pattern, put, name)] = tensor.clone()
    return renamed


ARGUMENTS = {"embed_dim": 24, "depth": 2, "num_heads": 4, "mlp_ratio": 1.5}
ARGUMENTS |= {"img_size": 12, "patch_size": 4, "in_chans": 3}
ARCHITECTURES = {"ViT": "vit_small_patch16_224", "DeiT": "deit_tiny_distilled_patch16_224"}


@pytest.fixture(params=ARCHITECTURES)
def timm(request, tmp_path):
    """A base of `transformers`, and a folder with its weights as timm writes them."""
    config = getattr(transformers, f"{request.param}Config")(**SMALL, layer_norm_eps=1e-6)
    model = write(getattr(transformers, f"{request.param}Model")(config, add_pooling_layer=False), tmp_path / "theirs")
    folder = tmp_path / "timm"
    folder.mkdir()
    save_file(timm_state(model), folder / "model.safetensors")
    about = {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.5, 0.25], "input_size": [3, 12, 12], "tag": "mine"}
    settings = {"architecture": ARCHITECTURES[request.param], "num_classes": 0, "model_args": ARGUMENTS}
    (folder / "config.json").write_text(json.dumps(settings | {"pretrained_cfg": about}))
    return model, folder


def test_timms_names_are_read_and_written(timm, tmp_path):
    model, folder = timm
    ours, family, settings = load_checkpoint(folder)
    pixels = torch.randn(2, 3, 16, 12)
    with torch.no_grad():
        expected = model(pixels, interpolate_pos_encoding=True).last_hidden_state
        torch.testing.assert_close(ours(Images(pixels)).hidden, expected, rtol=0, atol=1e-5)
    save_checkpoint(ours, family, settings, tmp_path / "written")
    written, before = load_file(tmp_path / "written" / "model.safetensors"), load_file(folder / "model.safetensors")
    assert written.keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in written.items())
    settings = json.loads((tmp_path / "written" / "config.json").read_text())
    assert settings["architecture"] in ARCHITECTURES.values()
    assert settings["model_args"] == ARGUMENTS
    assert settings["pretrained_cfg"]["tag"] == "mine"


def test_a_checkpoint_goes_from_transformers_to_timm_and_back(timm, tmp_path):
    model, folder = timm
    ours, family, settings = load_checkpoint(tmp_path / "theirs")
    save_checkpoint(ours, "timm", settings, tmp_path / "there")
    there, expected = load_file(tmp_path / "there" / "model.safetensors"), load_file(folder / "model.safetensors")
    assert there.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in there.items())
    back, _, _ = load_checkpoint(tmp_path / "there")
    save_checkpoint(back, family, settings, tmp_path / "back")
    again = type(model).from_pretrained(tmp_path / "back", add_pooling_layer=False).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in model.state_dict().items())


def test_a_head_is_written_for_timm_where_it_has_one(timm, tmp_path):
    ours, family, settings = load_checkpoint(timm[1])
    peftlab.attach(ours, "mine", peftlab.Head(), head=peftlab.Classifier(labels=("cat", "dog")))
    if ours.config.distilled:
        with pytest.raises(UserError, match="timm's distilled models have a head for each of two tokens"):
            save_checkpoint(ours, family, settings, tmp_path / "ours", head="mine")
        assert not (tmp_path / "ours").exists()
        return
    save_checkpoint(ours, family, settings, tmp_path / "ours", head="mine")
    assert load_file(tmp_path / "ours" / "model.safetensors")["head.weight"].shape == (2, 24)
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert (written["num_classes"], written["label_names"]) == (2, ["cat", "dog"])


@pytest.mark.parametrize(
    ("pooler", "choice", "message"),
    [
        (True, {"layer_norm_eps": 1e-6}, "VisionTransformer has no place for the model's pooler.dense"),
        (False, {}, "timm has ε = 1e-06 and gelu, this model 1e-12 and gelu"),
        (False, {"layer_norm_eps": 1e-6, "hidden_act": "relu"}, "this model 1e-06 and relu"),
    ],
)
def test_what_timm_can_not_hold_is_told(pooler, choice, message, tmp_path):
    write(transformers.ViTModel(transformers.ViTConfig(**SMALL | choice), add_pooling_layer=pooler), tmp_path)
    ours, _, settings = load_checkpoint(tmp_path)
    with pytest.raises(UserError, match=message):
        save_checkpoint(ours, "timm", settings, tmp_path / "timm")
    assert not (tmp_path / "timm").exists()


def test_the_feed_forward_ratio_survives_timms_rounding():
    assert all(int(dim * ratio(inner, dim)) == inner for dim in range(1, 200) for inner in range(1, 400))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "resnet50"}, "architecture in .* is 'resnet50': of timm's models those are read"),
        ({"architecture": "vit_base_patch16_clip_224"}, "architecture in .* is 'vit_base_patch16_clip_224'"),
        ({"model_args": {"reg_tokens": 4}}, "unknown argument in model_args of .* 'reg_tokens'"),
        ({"model_args": {"embed_dim": "wide"}}, "embed_dim in model_args of .* is 'wide'"),
        ({"model_args": [1]}, r"model_args in .* is \[1\]"),
        ({"model_args": {}}, r"says 12 layers|asks for"),
        ({"model_args": ARGUMENTS | {"depth": 3}}, "has no tensor blocks.2"),
        ({"model_args": ARGUMENTS | {"img_size": 16}}, r"pos_embed in .* has shape"),
    ],
)
def test_a_config_of_timm_that_does_not_fit_is_told(timm, changes, message):
    path = timm[1] / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match=message):
        load_checkpoint(timm[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patch_size": [4, 4]}, r"patch_size in .* is \[4, 4\]: it must be a sensible int"),
        ({"patch_size": 0}, "patch is 0"),
        ({"image_size": 16}, r"position_embeddings in .* has shape \[1, 10, 24\], its config.json asks for \[1, 17"),
        ({"num_channels": 1}, r"asks for \[24, 1, 4, 4\]"),
        ({"qkv_bias": False}, "qkv_bias in .* is False: this model has it only as True"),
        ({"model_type": "deit"}, "has no tensor embeddings.distillation_token"),
    ],
)
def test_a_config_that_does_not_fit_is_told(changes, message, tmp_path):
    write(transformers.ViTModel(transformers.ViTConfig(**SMALL)), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match=message):
        load_checkpoint(tmp_path)


# — a base —


def test_a_base_that_reads_images_is_loaded_and_saved(tmp_path):
    model = write(transformers.ViTModel(transformers.ViTConfig(**SMALL)), tmp_path / "theirs")
    about = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.5, 0.25], "size": {"height": 12, "width": 12}}
    (tmp_path / "theirs" / "preprocessor_config.json").write_text(json.dumps(about))
    base = peftlab.load(tmp_path / "theirs")
    pixels = torch.randint(256, (2, 3, 12, 12), dtype=torch.uint8)
    scaled = (pixels.double() / 255 - torch.tensor(about["image_mean"]).view(3, 1, 1)) / torch.tensor(
        about["image_std"]
    ).view(3, 1, 1)
    with torch.no_grad():
        expected = model(scaled.float()).last_hidden_state
        torch.testing.assert_close(base.model(base.images(pixels)).hidden, expected, rtol=0, atol=1e-5)
    assert "3×3 patches of 4×4" in repr(base)
    base.save(tmp_path / "ours")
    again = peftlab.load(tmp_path / "ours")
    assert torch.equal(again.images(pixels).pixels, base.images(pixels).pixels)
    kept = json.loads((tmp_path / "ours" / "preprocessor_config.json").read_text())
    assert kept.items() >= about.items()
    with pytest.raises(UserError, match="reads images and has no tokenizer"):
        base.encode(["a text"])


def test_timms_own_normalisation_is_read(timm):
    base = peftlab.load(timm[1])
    assert (base.reader.mean, base.reader.std) == ((0.1, 0.2, 0.3), (0.5, 0.5, 0.25))


def test_without_a_preprocessor_the_usual_normalisation_is_told(tmp_path):
    write(transformers.ViTModel(transformers.ViTConfig(**SMALL)), tmp_path)
    with pytest.warns(UserWarning, match=r"has no preprocessor_config.json: pixels are brought between −1 and 1"):
        base = peftlab.load(tmp_path)
    pixels = torch.tensor([0, 255], dtype=torch.uint8).repeat(1, 3, 4, 2)
    assert torch.equal(base.images(pixels).pixels.unique(), torch.tensor([-1.0, 1.0]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_mean": "grey"}, "image_mean in .* is 'grey': it must be a number for each channel"),
        ({"image_std": [0.5, 0.0, 0.5]}, "image_std in .* is"),
        ({"image_mean": []}, r"image_mean in .* is \[\]"),
        ({"image_mean": [0.5, 0.5]}, r"the images have 3 channel\(s\), the base knows 2"),
    ],
)
def test_a_preprocessor_that_does_not_fit_is_told(settings, message, tmp_path):
    write(transformers.ViTModel(transformers.ViTConfig(**SMALL)), tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match=message):
        peftlab.load(tmp_path).images(torch.zeros(1, 3, 12, 12, dtype=torch.uint8))


def test_pixels_that_are_normalised_already_are_named(tmp_path):
    write(transformers.ViTModel(transformers.ViTConfig(**SMALL)), tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"pixels are torch.float32 of shape .*: they must be torch.uint8"):
        peftlab.load(tmp_path).images(torch.zeros(1, 3, 12, 12))
