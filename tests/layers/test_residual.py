"""The three wrappers against their equations, and the feed-forward network against torch's modules."""

import pytest
import torch
from torch import nn

from peftlab.errors import UserError
from peftlab.layers.feedforward import ACTIVATIONS, FeedForward
from peftlab.layers.norm import LayerNorm
from peftlab.layers.residual import RESIDUALS

D = 8


@pytest.mark.parametrize(
    ("kind", "equation"),
    [
        ("post", lambda x, f, norm: norm(x + f(x))),
        ("pre", lambda x, f, norm: x + f(norm(x))),
        ("none", lambda x, f, norm: norm(f(x))),
    ],
)
def test_each_wrapper_is_its_equation(kind, equation):
    f, norm, x = FeedForward(D, 3), LayerNorm(D), torch.randn(2, 5, D)
    nn.init.normal_(norm.weight)
    assert torch.equal(RESIDUALS[kind](D, f, norm, 0.0)(x), equation(x, f, norm))


@pytest.mark.parametrize(
    ("name", "module"), [("relu", nn.ReLU()), ("gelu", nn.GELU()), ("gelu_new", nn.GELU("tanh")), ("silu", nn.SiLU())]
)
@pytest.mark.parametrize("inner", [3, 32])
def test_feed_forward_equals_torch_modules(name, module, inner):
    ours = FeedForward(D, inner, name)
    x = torch.randn(2, 5, D)
    up, down = nn.Linear(D, inner), nn.Linear(inner, D)
    up.load_state_dict(ours.up.state_dict())
    down.load_state_dict(ours.down.state_dict())
    assert torch.equal(ours(x), nn.Sequential(up, module, down)(x))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_without_a_gradient_an_activation_is_the_same_in_the_place_of_its_input(name):
    network, x = FeedForward(D, 32, name), torch.randn(2, 5, D)
    seen: list[torch.Tensor] = []
    network.up.register_forward_hook(lambda _, __, inner: seen.append(inner))
    network.down.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    learning = network(x)
    with torch.no_grad():
        asked = network(x)
    assert torch.equal(asked, learning)
    assert [a.data_ptr() == b.data_ptr() for a, b in (seen[:2], seen[2:])] == [False, True]


def test_an_unknown_activation_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'gelu'"):
        FeedForward(D, 3, "gelo")
