"""Attention against torch's own layer, the fast path against the slow one, and the masks."""

import pytest
import torch
from torch import nn

from peftlab.errors import UserError
from peftlab.layers import masks
from peftlab.layers.attention import SCORES, Attention, attend
from peftlab.peft.prefix import PrefixPair

B, T, S, D, H = 3, 5, 7, 16, 4


def copy_from(reference: nn.MultiheadAttention, ours: Attention) -> None:
    weights = reference.in_proj_weight.chunk(3)
    biases = reference.in_proj_bias.chunk(3)
    with torch.no_grad():
        reference.in_proj_bias.normal_()
        for part, weight, bias in zip((ours.q, ours.k, ours.v), weights, biases, strict=True):
            part.weight.copy_(weight)
            part.bias.copy_(bias)
        ours.o.weight.copy_(reference.out_proj.weight)
        ours.o.bias.copy_(reference.out_proj.bias)


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_equals_torch_multihead_attention(cross, padded):
    reference, ours = nn.MultiheadAttention(D, H, batch_first=True), Attention(D, H)
    copy_from(reference, ours)
    x = torch.randn(B, T, D)
    memory = torch.randn(B, S, D) if cross else x
    real = torch.ones(B, memory.shape[1], dtype=torch.bool)
    if padded:
        real[0, 3:] = False
        real[1, :2] = False
    expected, weights = reference(x, memory, memory, key_padding_mask=~real, average_attn_weights=False)
    looks = []
    mask = masks.padding(real) if padded else None
    torch.testing.assert_close(ours(x, memory if cross else None, mask), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(ours(x, memory, mask, looks=looks), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(looks[0].weights, weights, rtol=0, atol=1e-6)


def test_look_ahead_equals_torch_causal_mask():
    reference, ours = nn.MultiheadAttention(D, H, batch_first=True), Attention(D, H)
    copy_from(reference, ours)
    x = torch.randn(B, T, D)
    causal = nn.Transformer.generate_square_subsequent_mask(T)
    expected, _ = reference(x, x, x, attn_mask=causal, is_causal=True)
    torch.testing.assert_close(ours(x, mask=masks.look_ahead(T)), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("score", SCORES)
def test_fast_path_equals_slow_path_and_so_do_the_gradients(score):
    layer = Attention(D, H, score)
    real = torch.rand(B, S) > 0.3
    real[:, 0] = True
    mask = masks.padding(real) & masks.look_ahead(S)
    x = torch.randn(B, S, D, requires_grad=True)
    fast, slow = layer(x, mask=mask), layer(x, mask=mask, looks=[])
    torch.testing.assert_close(fast, slow, rtol=0, atol=2e-6)
    for ours, theirs in zip(
        torch.autograd.grad(fast.square().sum(), [x, *layer.parameters()]),
        torch.autograd.grad(slow.square().sum(), [x, *layer.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("score", "formula"),
    [
        ("dot", lambda q, k, w: q @ k.mT),
        ("scaled", lambda q, k, w: q @ k.mT / (D / H) ** 0.5),
        ("weighted", lambda q, k, w: torch.einsum("bhid,hde,bhje->bhij", q, w, k)),
    ],
)
def test_the_three_scores_are_their_formulas(score, formula):
    layer = Attention(D, H, score)
    if score == "weighted":
        nn.init.normal_(layer.score.weight)
    x, looks = torch.randn(B, T, D), []
    layer(x, looks=looks)
    q, k = (part(x).view(B, T, H, D // H).transpose(1, 2) for part in (layer.q, layer.k))
    torch.testing.assert_close(
        looks[0].scores, formula(q, k, getattr(layer.score, "weight", None)), rtol=1e-5, atol=1e-5
    )


def test_scaling_keeps_the_variance_of_scores_near_one():
    q, k = torch.randn(2, 1, 400, 256), torch.randn(2, 1, 400, 256)
    assert attend(q, k, k, 256**-0.5).scores.var() == pytest.approx(1, abs=0.1)
    assert attend(q, k, k, 1.0).scores.var() == pytest.approx(256, rel=0.1)


@pytest.mark.parametrize("looks", [None, []])
def test_a_row_that_may_see_nothing_yields_zeros_and_finite_gradients(looks):
    layer = Attention(D, H)
    nn.init.zeros_(layer.o.bias)
    x = torch.randn(B, T, D, requires_grad=True)
    mask = torch.ones(B, 1, T, T, dtype=torch.bool)
    mask[0] = False
    mask[1, :, 2] = False
    y = layer(x, mask=mask, looks=looks)
    assert torch.equal(y[0], torch.zeros(T, D))
    assert torch.equal(y[1, 2], torch.zeros(D))
    assert y[2].abs().min() > 0
    y.sum().backward()
    assert x.grad.isfinite().all()


def test_masks_combine_for_self_and_cross_attention():
    real = torch.tensor([[True, True, False], [True, True, True]])
    both = masks.padding(real) & masks.look_ahead(3)
    expected = [[[1, 0, 0], [1, 1, 0], [1, 1, 0]], [[1, 0, 0], [1, 1, 0], [1, 1, 1]]]
    assert both[:, 0].int().tolist() == expected
    assert masks.look_ahead(2, past=2)[0, 0].int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]

    # a decoder's two attentions: to itself behind both masks, then to a source, whose padding alone counts there
    source = torch.tensor([[True, True, True, False], [True, False, False, False]])
    layer, looks = Attention(D, H), []
    x = torch.randn(2, 3, D)
    layer(x, mask=both, looks=looks)
    layer(x, torch.randn(2, 4, D), masks.padding(source), looks=looks)
    itself, cross = ((look.weights > 0).int() for look in looks)
    assert all(itself[:, head].tolist() == expected for head in range(H))
    assert all(cross[:, head].tolist() == [[[1, 1, 1, 0]] * 3, [[1, 0, 0, 0]] * 3] for head in range(H))


def test_later_tokens_do_not_reach_earlier_ones_behind_the_look_ahead_mask():
    layer, x = Attention(D, H), torch.randn(B, T, D)
    changed = x.clone()
    changed[:, 3:] = torch.randn(B, T - 3, D)
    mask = masks.look_ahead(T)
    assert torch.equal(layer(x, mask=mask)[:, :3], layer(changed, mask=mask)[:, :3])


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_a_prefix_stands_before_the_keys_and_values_of_self_and_cross_attention(cross, padded):
    layer, x = Attention(D, H), torch.randn(B, T, D)
    memory = torch.randn(B, S, D) if cross else x
    prefix = PrefixPair(torch.randn(3, D), torch.randn(3, D))
    layer.kv.put("mine", prefix)
    layer.kv.active = ("mine",)
    real = torch.ones(B, memory.shape[1], dtype=torch.bool)
    if padded:
        real[0, 3:] = False
    got = layer(x, memory, masks.padding(real) if padded else None)
    heads = [t.unflatten(-1, (H, -1)).transpose(1, 2) for t in (layer.q(x), layer.k(memory), layer.v(memory))]
    more = [t.expand(B, -1, -1).unflatten(-1, (H, -1)).transpose(1, 2) for t in (prefix.keys, prefix.values)]
    k, v = (torch.cat([front, back], 2) for front, back in zip(more, heads[1:], strict=True))
    scores = heads[0] @ k.mT / (D / H) ** 0.5
    scores[:, :, :, 3:] = scores[:, :, :, 3:].masked_fill(~real[:, None, None], -torch.inf)
    expected = layer.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


def test_dropout_acts_in_training_only():
    layer, x = Attention(D, H, dropout=0.5), torch.randn(B, T, D)
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(UserError, match="5 heads do not divide a width of 16"):
        Attention(16, 5)
