"""What layers compute with our own kernels, against torch's way of the same layer, gradients included."""

import pytest
import torch
from both_ways import Change, same
from torch import nn

from peftlab import native
from peftlab.layers.attention import Attention
from peftlab.layers.feedforward import FeedForward
from peftlab.layers.linear import Linear
from peftlab.layers.norm import LayerNorm
from peftlab.layers.residual import PostNorm
from peftlab.peft.changes import BiasChange

pytestmark = pytest.mark.skipif(native.LIBRARY is None, reason="the kernels were not built, or this is not AVX2")


@pytest.fixture(autouse=True)
def all_heights(monkeypatch):
    monkeypatch.setattr(native, "TALL", True)


@pytest.mark.parametrize("rows", [(3, 5), (70, 3), (1, 1), (200,)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(rows, bias):
    same(Linear(20, 90, bias), torch.randn(*rows, 20))
    same(Linear(80, 100, bias), torch.randn(*rows, 80))  # its weight's gradient is torch's


def test_what_is_frozen_has_no_gradient():
    layer = Linear(20, 30).requires_grad_(False)
    same(layer, torch.randn(60, 20))
    with native.computing():
        assert layer(torch.randn(60, 20)).requires_grad is False


@pytest.mark.parametrize("rows", [(3, 5), (70, 3), (1, 1), (200,)])
@pytest.mark.parametrize("rank", [1, 8, 70])
@pytest.mark.parametrize("bias", [True, False])
def test_a_change_of_low_rank(rows, rank, bias):
    layer = Linear(80, 100, bias).requires_grad_(False)
    layer.site.put("one", Change(80, rank, 100))
    layer.site.active = ("one",)
    same(layer, torch.randn(*rows, 80))
    x = torch.randn(80, *rows).movedim(0, -1)  # does not lie row by row
    layer.zero_grad()
    with native.computing():
        y = layer(x)
        assert type(y.grad_fn).__name__ == "LowRankProductBackward"
        y.sum().backward(retain_graph=True)
        once = layer.site["one"].A.grad.clone()
        y.sum().backward()
        torch.testing.assert_close(layer.site["one"].A.grad, 2 * once)
        with torch.no_grad():
            assert torch.equal(layer(x), y)  # as a reversible layer needs it
    for frozen in ("A", "B"):
        layer.site["one"].get_parameter(frozen).requires_grad_(False)
        same(layer, x)


def test_changes_that_are_not_one_of_low_rank_alone():
    layer = Linear(80, 100)
    for name in ("one", "two"):
        layer.site.put(name, Change(80, 4, 100))
    layer.site.active = ("one",)
    same(layer, torch.randn(60, 80))  # the weight learns as well
    layer.requires_grad_(False)
    layer.site.active = ("one", "two")
    same(layer, torch.randn(60, 80))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", ["gelu", "relu"])
def test_feed_forward(name, frozen):
    network = FeedForward(16, 50, name).requires_grad_(not frozen)
    for rows in (1, 25, 60):
        x = torch.randn(3, rows, 16)
        same(network, x)
        with torch.no_grad():
            expected = network(x)
            with native.computing():
                torch.testing.assert_close(network(x), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("frozen", [False, True])
def test_where_a_sublayer_is_joined(frozen, dropout):
    residual = PostNorm(24, Linear(24, 24), LayerNorm(24), dropout)
    torch.nn.init.normal_(residual.norm.weight)
    torch.nn.init.normal_(residual.norm.bias)
    residual.norm.requires_grad_(not frozen)
    same(residual.train(), torch.randn(5, 40, 24))
    same(residual.eval(), torch.randn(2, 3, 24))
    with torch.no_grad():
        x = torch.randn(5, 3, 24)
        expected = residual(x)
        with native.computing():
            torch.testing.assert_close(residual(x), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("masked", [False, True])
def test_attention(dropout, masked):
    torch.manual_seed(0)
    layer = Attention(24, 3, dropout=dropout)
    x = torch.randn(4, 17, 24)
    mask = torch.arange(17)[None] < torch.tensor([17, 3, 0, 9])[:, None] if masked else None
    same(layer.train(), x, mask=None if mask is None else mask[:, None, None])
    same(layer.eval(), x, torch.randn(4, 11, 24))  # to another sequence
    with torch.no_grad(), native.computing():
        looks: list = []
        torch.testing.assert_close(layer(x), layer(x, looks=looks), rtol=0, atol=1e-5)


def test_a_small_shift_of_a_large_bias_is_not_rounded_away():
    layer = Linear(4, 3).requires_grad_(False)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.ones_(layer.bias)
    layer.site.put("one", BiasChange(layer.bias))
    layer.site.active = ("one",)
    torch.nn.init.constant_(layer.site["one"].shift, 1e-3)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer(torch.ones(2, 4)).float(), torch.full((2, 3), 1.001), rtol=0, atol=1e-6)
    layer.site["one"].double()  # torch adds it, whatever it is
    with native.computing():
        torch.testing.assert_close(layer(torch.ones(20, 4)).float(), torch.full((20, 3), 1.001), rtol=0, atol=1e-6)


def test_frozen_weights_are_kept_for_those_who_compute_again():
    network, x = FeedForward(32, 64).requires_grad_(False), torch.randn(40, 32)
    with torch.no_grad():
        with native.computing():
            network(x)
        assert not hasattr(network.up.weight, "packed_False")
        for _ in range(2):
            expected = network(x)
            with native.computing(again=True):
                torch.testing.assert_close(network(x), expected, rtol=0, atol=1e-6)
            assert hasattr(network.up.weight, "packed_False")
            network.up.weight.mul_(2.0)  # what was kept of it is worth nothing now
            network.down.weight.mul_(2.0)
        learning = FeedForward(32, 64)
        with native.computing(again=True):
            learning(x)
        assert not hasattr(learning.up.weight, "packed_False")


def test_a_model_that_is_called_computes_with_torch():
    layer, x = Linear(64, 300), torch.randn(10, 64)
    assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
