"""The Vision Transformer: every method on it, its sites and output, rows of several adapters, the user's mistakes."""

import pytest
import torch

import peftlab
from peftlab.data.batch import Images
from peftlab.errors import UserError
from peftlab.models.encoder import Block
from peftlab.models.vit import ViT, ViTConfig

SMALL = {"dim": 16, "layers": 2, "heads": 4, "inner": 24, "image": 8, "patch": 2, "channels": 1}
METHODS = {
    "lora": peftlab.LoRA(rank=3),
    "dora": peftlab.LoRA(rank=3, dora=True),
    "adapter": peftlab.Adapter(width=4),
    "parallel": peftlab.Adapter(placement="parallel", width=4),
    "prompt": peftlab.Prompt(tokens=3),
    "prompt-random": peftlab.Prompt(tokens=3, init="random"),
    "p-tuning": peftlab.PTuning(tokens=3),
    "p-tuning-lstm": peftlab.PTuning(tokens=2, encoder="lstm", hidden=6),
    "prefix": peftlab.Prefix(length=3),
    "prefix-mlp": peftlab.Prefix(length=3, mlp=5),
    "bitfit": peftlab.BitFit(),
    "head": peftlab.Head(),
    "full": peftlab.Full(),
}


def images(rows: int = 3, side: int = 8) -> Images:
    return Images(torch.randn(rows, 1, side, side))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_attaches_trains_a_step_and_leaves_the_base(method):
    model, batch, labels = ViT(ViTConfig(**SMALL, init_std=0.2)), images(), torch.tensor([0, 1, 2])
    before = {key: tensor.clone() for key, tensor in model.base_state().items()}
    plain = model(batch).hidden
    peftlab.attach(model, "mine", METHODS[method], head=peftlab.Classifier(labels=3, dropout=0.0))
    peftlab.freeze(model)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all("mine" in name for name in trained) == (method != "full")
    optimizer = torch.optim.SGD(trained.values(), lr=0.02)
    for _ in range(2):  # what starts as zero lets the gradient through from the second step on
        loss = torch.nn.functional.cross_entropy(model(batch).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert [name for name, parameter in trained.items() if not parameter.grad.abs().sum() > 0] == []
    with torch.no_grad():
        assert torch.nn.functional.cross_entropy(model(batch).logits, labels) < loss
        assert model(batch).hidden.shape == plain.shape
    assert model.base_state().keys() == before.keys()
    if method != "full":
        peftlab.detach(model, "mine")
        assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
        assert torch.equal(model(batch).hidden, plain)


def test_rows_of_one_batch_have_adapters_of_their_own():
    model, batch = ViT(ViTConfig(**SMALL, init_std=0.2)).eval(), images(4)
    names = ["lora", "prompt", "prefix", None]
    for name in names[:3]:
        peftlab.attach(model, name, METHODS[name], head=peftlab.Classifier(labels=3))
        for addition in model.additions(name).values():
            for parameter in addition.parameters():
                torch.nn.init.normal_(parameter, std=0.3)
    together = model(batch, adapters=names)
    for row, name in enumerate(names):
        peftlab.activate(model, [name] if name else [])
        alone = model(Images(batch.pixels[row : row + 1]))
        torch.testing.assert_close(together.hidden[row], alone.hidden[0], rtol=0, atol=1e-5)
        if name:
            torch.testing.assert_close(together.logits[row], alone.logits[0], rtol=0, atol=1e-5)


def test_a_head_is_one_linear_map_of_the_class_token_with_a_pooler_or_without():
    for tanh in (False, True):
        model = ViT(ViTConfig(**SMALL, tanh=tanh)).eval()
        peftlab.attach(model, "mine", peftlab.Head(), head=peftlab.Classifier(labels=3))
        out, head = model(images()), model.additions("mine")["encoder.head"]
        assert [name for name, _ in head.named_parameters()] == ["out.weight", "out.bias"]
        torch.testing.assert_close(out.logits, out.hidden[:, 0] @ head.out.weight.T + head.out.bias)
        assert (out.pooled is not None) == tanh


@pytest.mark.parametrize("pool", ["first", "mean"])
@pytest.mark.parametrize("method", ["lora", "prompt", "prefix"])
def test_logits_alone_equal_those_of_the_whole(method, pool):
    model, batch = ViT(ViTConfig(**SMALL, init_std=0.2)).eval(), images()
    peftlab.attach(model, "mine", METHODS[method], head=peftlab.Classifier(labels=3, pool=pool))
    short = model(batch, logits_only=True)
    assert short.hidden.shape[1] == (1 if pool == "first" else 17)
    torch.testing.assert_close(short.logits, model(batch).logits, rtol=0, atol=1e-5)


def test_attention_on_request_has_the_virtual_columns_first_and_sums_to_one():
    model, batch = ViT(ViTConfig(**SMALL)).eval(), images(side=6)
    peftlab.attach(model, "mine", METHODS["prompt"])
    out = model(batch, attention=True)
    assert [maps.shape for maps in out.attention] == [(3, 4, 10, 13)] * 2
    assert out.virtual == 3
    torch.testing.assert_close(out.attention[0].sum(-1), torch.ones(3, 4, 10))
    torch.testing.assert_close(out.hidden, model(batch).hidden, rtol=0, atol=1e-6)


def test_virtual_tokens_start_as_vectors_that_differ():
    model = ViT(ViTConfig(**SMALL))
    peftlab.attach(model, "mine", peftlab.Prompt(tokens=200))
    vectors = model.additions("mine")["encoder.embedding.tokens"].weight.detach()
    assert len(vectors.unique(dim=0)) == 200
    assert float(vectors.std()) == pytest.approx(float(model.embedding.positions.weight.detach().std()), rel=0.1)


def test_blocks_and_addresses_are_those_of_the_encoder():
    model = ViT(ViTConfig(**SMALL, tanh=True))
    assert {type(block) for block in model.blocks} == {Block}
    block = [f"self.{part}" for part in ("q", "k", "v", "kv", "o", "out", "norm")]
    block += [f"ff.{part}" for part in ("up", "down", "out", "norm")]
    inside = [f"encoder.{layer}.{part}" for layer in range(2) for part in block]
    outside = ["encoder.norm", "encoder.pooler.dense", "encoder.head"]
    assert list(model.sites()) == ["encoder.embedding.tokens", *inside, *outside]
    assert model.shape == "2 layers, 16 wide, 4 heads, 4×4 patches of 2×2"
    assert "Site" not in repr(model)


def test_the_first_weights_are_small_and_every_one_is_set():
    torch.manual_seed(1)
    state = ViT(ViTConfig(**SMALL, distilled=True, init_std=0.05)).state_dict()
    torch.manual_seed(1)
    again = ViT(ViTConfig(**SMALL, distilled=True, init_std=0.05)).state_dict()
    for name, tensor in state.items():
        assert torch.equal(tensor, again[name])
        if name.endswith("bias"):
            assert tensor.abs().max() == 0
        elif "norm" in name:
            assert (tensor == 1).all()
        else:
            assert 0.5 < tensor.std() / 0.05 < 1.6, name


@pytest.mark.parametrize("method", [peftlab.Prompt(layout="peft"), peftlab.Prefix(layout="peft")], ids=repr)
def test_a_layout_that_moves_positions_is_refused(method):
    model = ViT(ViTConfig(**SMALL))
    peftlab.attach(model, "mine", method)
    with pytest.raises(UserError, match=r'patches stay where they are: use "native"'):
        model(images())


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"patch": 9}, "patch is 9, image is 8: an image must have a whole patch"),
        ({"channels": 0}, "channels is 0: it must be a whole number of at least 1"),
        ({"heads": 3}, "3 heads do not divide a width of 16"),
        ({"residual": "prr"}, "unknown residual 'prr': did you mean 'pre'"),
    ],
)
def test_a_choice_that_can_not_be_is_told(choice, message):
    with pytest.raises(UserError, match=message):
        ViT(ViTConfig(**SMALL | choice))
