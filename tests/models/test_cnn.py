"""The residual network against its formula, its places and head, its files, and the user's mistakes."""

import pytest
import torch
from torch import Tensor

import peftlab
from peftlab.data.batch import Images
from peftlab.errors import UserError
from peftlab.models.cnn import CNN, CNNConfig
from peftlab.models.own import load_own, make, save_own
from peftlab.models.pretrained import load_checkpoint

SMALL = {"dim": 16, "stages": 3, "blocks": 2, "groups": 2, "image": 10, "channels": 3}


def images(rows: int = 3, side: int = 10) -> Images:
    return Images(torch.randn(rows, 3, side, side))


def scattered(**choices) -> CNN:
    """With norms that do something, too."""
    model = CNN(CNNConfig(**SMALL | choices)).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, mean=0.5)
    return model


def convolved(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Every place's surroundings as a column, times a matrix."""
    k = weight.shape[2]
    side = (x.shape[2] + 2 * (k // 2) - k) // stride + 1
    columns = torch.nn.functional.unfold(x, k, padding=k // 2, stride=stride)
    return (weight.flatten(1) @ columns).unflatten(2, (side, side))


def normed(x: Tensor, norm: torch.nn.GroupNorm) -> Tensor:
    """relu of (x − mean) / √(var + ε), over a group's features and all places, scaled and shifted by feature."""
    parts = x.unflatten(1, (norm.num_groups, -1)).flatten(2)
    parts = (parts - parts.mean(2, keepdim=True)) / (parts.var(2, correction=0, keepdim=True) + norm.eps).sqrt()
    scaled = parts.view_as(x) * norm.weight[:, None, None] + norm.bias[:, None, None]
    return scaled.clamp(min=0)


def test_it_is_its_formula():
    model, batch = scattered(), images()
    x = convolved(batch.pixels, model.stem.weight, 1)
    for number, stage in enumerate(model.stages):
        for place, block in enumerate(stage):
            stride = 2 if number and not place else 1
            y = convolved(normed(x, block.norm1), block.conv1.weight, stride)
            y = convolved(normed(y, block.norm2), block.conv2.weight, 1)
            x = y + (x if stride == 1 else convolved(x, block.shortcut.weight, 2))
    expected = normed(x, model.norm).flatten(2).transpose(1, 2)
    torch.testing.assert_close(model(batch).hidden, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("side", [1, 9, 10, 28])
def test_the_places_of_the_last_stage_are_as_many_as_said_and_each_image_has_its_own(side):
    model, batch = scattered(), images(4, side)
    hidden = model(batch).hidden
    assert hidden.shape == (4, model.config.tokens(side), 16)
    torch.testing.assert_close(model(Images(batch.pixels[2:3])).hidden[0], hidden[2], rtol=0, atol=1e-5)


@pytest.mark.parametrize("pool", ["first", "mean"])
def test_a_head_is_one_linear_map_of_the_mean_of_the_places(pool):
    model, batch = scattered(), images()
    for name in ("mine", "other"):
        peftlab.attach(model, name, peftlab.Head(), head=peftlab.Classifier(labels=3, pool=pool))
    peftlab.activate(model, ["mine"])
    out, heads = model(batch), {name: model.additions(name)["encoder.head"].out for name in ("mine", "other")}
    expected = {name: out.hidden.mean(1) @ head.weight.T + head.bias for name, head in heads.items()}
    torch.testing.assert_close(out.logits, expected["mine"])
    mixed = model(batch, adapters=["other", "mine", "other"]).logits
    torch.testing.assert_close(mixed[:2], torch.stack([expected["other"][0], expected["mine"][1]]))


def test_the_first_weights_come_from_the_seed_and_keep_the_variance():
    torch.manual_seed(1)
    state = CNN(CNNConfig(**SMALL | {"dim": 256, "channels": 1})).state_dict()
    torch.manual_seed(1)
    again = CNN(CNNConfig(**SMALL | {"dim": 256, "channels": 1})).state_dict()
    for name, tensor in state.items():
        assert torch.equal(tensor, again[name])
        if "norm" not in name:
            assert float(tensor.std()) == pytest.approx((2 / tensor[0].numel()) ** 0.5, rel=0.1), name


def test_it_is_written_and_read_again(tmp_path):
    model, batch = scattered(), images()
    save_own(model, tmp_path / "model")
    again, family, settings = load_checkpoint(tmp_path / "model")
    assert (family, settings["kind"], again.config) == ("peftlab", "cnn", model.config)
    assert torch.equal(again(batch).hidden, model(batch).hidden)
    with pytest.raises(UserError, match="is not that of a cnn"):
        load_own(tmp_path / "model", {"kind": "cnn", "config": {"dim": 16, "heads": 2}})


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"dim": 20}, "dim is 20: it must be a multiple of 8"),
        ({"blocks": 0}, "blocks is 0: it must be a whole number of at least 1"),
        ({"stages": 2.0}, "stages is 2.0: it must be a whole number"),
        ({"layers": 3}, "unknown key of .model. for a cnn 'layers'"),
    ],
)
def test_a_choice_that_can_not_be_is_told(choice, message):
    with pytest.raises(UserError, match=message):
        make({"kind": "cnn", **{key: SMALL[key] for key in ("dim", "groups")}, **choice}, {"image": 8})


def test_what_it_has_no_place_for_is_told():
    model = scattered()
    with pytest.raises(UserError, match=r"the images have 1 channel.s., the model reads 3"):
        model(Images(torch.randn(1, 1, 8, 8)))
    with pytest.raises(UserError, match="lora needs a linear site: this model has head"):
        peftlab.attach(model, "mine", peftlab.LoRA())
