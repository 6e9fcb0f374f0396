"""The encoder against torch's own layer, its choices, its sites, and the user's mistakes."""

import pytest
import torch
from torch import nn

from peftlab.data.batch import Batch
from peftlab.errors import UserError
from peftlab.layers.addition import Addition
from peftlab.models.encoder import Encoder, EncoderConfig, build_block

SMALL = {"vocab": 50, "dim": 16, "layers": 2, "heads": 4, "inner": 24, "max_length": 12}


def batch(*lengths: int) -> Batch:
    T = max(lengths)
    return Batch(torch.randint(1, 50, (len(lengths), T)), torch.tensor([[t < n for t in range(T)] for n in lengths]))


@pytest.mark.parametrize("residual", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_block_equals_torch_encoder_layer(residual, activation):
    D, H, inner = 16, 4, 24
    reference = nn.TransformerEncoderLayer(
        D, H, inner, dropout=0.0, activation=activation, batch_first=True, norm_first=residual == "pre"
    )
    block = build_block(
        EncoderConfig(
            **{**SMALL, "activation": activation}, residual=residual, norm_eps=1e-5, dropout=0.0, attention_dropout=0.0
        )
    )
    attention, feedforward = block.self_attention, block.feedforward
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.normal_(std=0.3)
        sources = [
            *zip(reference.self_attn.in_proj_weight.chunk(3), reference.self_attn.in_proj_bias.chunk(3), strict=True),
            *((m.weight, m.bias) for m in (reference.self_attn.out_proj, reference.linear1, reference.linear2)),
            *((m.weight, m.bias) for m in (reference.norm1, reference.norm2)),
        ]
        a, f = attention.sublayer, feedforward.sublayer
        for part, (weight, bias) in zip(
            (a.q, a.k, a.v, a.o, f.up, f.down, attention.norm, feedforward.norm), sources, strict=True
        ):
            part.weight.copy_(weight)
            part.bias.copy_(bias)
    x, real = torch.randn(3, 7, D), torch.ones(3, 7, dtype=torch.bool)
    real[0, 4:] = False
    expected = reference(x, src_key_padding_mask=~real)
    torch.testing.assert_close(block(x, real[:, None, None], real)[real], expected[real], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "choice",
    [
        {"position": "sinusoidal"},
        {"position": "none"},
        {"norm": "batch"},
        {"norm": "none"},
        {"residual": "pre"},
        {"residual": "none"},
        {"score": "dot"},
        {"score": "weighted"},
        {"inner": 0},
        {"inner": 4},
        {"embedding_dim": 8},
        {"segments": 0},
        {"pooler": True},
    ],
    ids=str,
)
def test_every_choice_builds_runs_and_trains(choice):
    model = Encoder(EncoderConfig(**{**SMALL, **choice}))
    out = model(batch(5, 3))
    assert out.hidden.shape == (2, 5, 16)
    assert (out.pooled is not None) == model.config.pooler
    (out.hidden.square().mean() + (0 if out.pooled is None else out.pooled.square().mean())).backward()
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert [name for name, grad in grads.items() if grad is None] == []


def test_attention_on_request_equals_the_fast_path_and_sums_to_one():
    model, b = Encoder(EncoderConfig(**SMALL)).eval(), batch(5, 3)
    out = model(b, attention=True)
    torch.testing.assert_close(out.hidden, model(b).hidden, rtol=0, atol=1e-6)
    assert [m.shape for m in out.attention] == [(2, 4, 5, 5)] * 2
    torch.testing.assert_close(out.attention[0].sum(-1), torch.ones(2, 4, 5))
    assert out.attention[0][1, :, :, 3:].abs().max() == 0
    assert model(b).attention is None


def test_the_same_seed_gives_the_same_weights():
    torch.manual_seed(1)
    first = Encoder(EncoderConfig(**SMALL)).state_dict()
    torch.manual_seed(1)
    second = Encoder(EncoderConfig(**SMALL)).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(("narrow", "project"), [({}, []), ({"embedding_dim": 4}, ["encoder.embedding.project"])])
def test_sites_have_canonical_addresses_and_filling_them_changes_no_key_of_the_base(narrow, project):
    model = Encoder(EncoderConfig(**SMALL, **narrow, pooler=True))
    keys = list(model.base_state())
    assert keys == list(model.state_dict())
    block = [f"self.{part}" for part in ("q", "k", "v", "kv", "o", "out", "norm")]
    block += [f"ff.{part}" for part in ("up", "down", "out", "norm")]
    expected = ["encoder.embedding.tokens", "encoder.embedding.norm", *project]
    expected += [f"encoder.{layer}.{part}" for layer in range(2) for part in block]
    assert list(model.sites()) == [*expected, "encoder.pooler.dense", "encoder.head"]
    kinds = {site.kind for site in model.sites().values()}
    assert kinds == {"tokens", "linear", "kv", "sublayer", "norm", "head"}

    class Nothing(Addition):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3))

    for site in model.sites().values():
        site.put("mine", Nothing())
        site.put("keys", Nothing())  # names that a ModuleDict and a site have as attributes
        site.put("groups", Nothing())
    assert list(model.base_state()) == keys
    assert set(model.state_dict()) - set(keys) == {
        k for k in model.state_dict() if {"mine", "keys", "groups"} & {*k.split(".")}
    }
    for site in model.sites().values():
        site.remove("mine")
        site.remove("keys")
        site.remove("groups")
    assert list(model.state_dict()) == keys


def test_print_shows_the_parts_and_no_empty_site():
    text = repr(Encoder(EncoderConfig(**SMALL)))
    assert "2 x Block" in text
    assert "Site" not in text


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([[3, 50]]), "token id 50 is outside the vocabulary: ids go from 0 to 49"),
        (torch.tensor([[3, -1]]), "token id -1 is outside the vocabulary"),
        (torch.ones(1, 13, dtype=torch.long), "13 tokens is longer than the model's 12 positions"),
    ],
)
def test_ids_that_the_model_has_no_place_for_are_named(ids, message):
    model = Encoder(EncoderConfig(**SMALL))
    with pytest.raises(UserError, match=message):
        model(Batch(ids, torch.ones_like(ids)))


def test_segments_outside_the_table_are_named():
    model, ids = Encoder(EncoderConfig(**SMALL, segments=1)), torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(UserError, match=r"segment 1 is outside the model's 1 segment"):
        model(Batch(ids, ids, ids))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"position": "rotary"}, "unknown position 'rotary'"),
        ({"norm": "layr"}, "unknown norm 'layr': did you mean 'layer'"),
        ({"residual": "mid"}, "unknown residual 'mid'"),
        ({"score": "scald"}, "did you mean 'scaled'"),
        ({"heads": 0}, "heads is 0: it must be a whole number of at least 1"),
        ({"heads": 5}, "5 heads do not divide a width of 16"),
    ],
)
def test_a_choice_that_does_not_exist_is_told(choice, message):
    with pytest.raises(UserError, match=message):
        Encoder(EncoderConfig(**{**SMALL, **choice}))


def test_an_empty_batch_and_unequal_shapes_are_named():
    with pytest.raises(UserError, match="the batch is empty"):
        Batch(torch.zeros(0, 3), torch.zeros(0, 3))
    with pytest.raises(UserError, match=r"mask has shape \[2, 2\], ids have \[2, 3\]"):
        Batch(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 2))
    with pytest.raises(UserError, match=r"ids are torch.float32: they must be whole numbers"):
        Batch(torch.zeros(2, 3), torch.zeros(2, 3))
