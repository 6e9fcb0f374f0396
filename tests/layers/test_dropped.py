"""Attention with dropout against the equation that it computes, drawn alike."""

import pytest
import torch

from peftlab.layers.attention import Attention, attend
from peftlab.layers.dropped import VECTOR, attend_dropped, softmax
from peftlab.layers.masks import look_ahead

B, H, D = 3, 2, 4
SHORT, LONG = 5, 40
"""less and more keys than make the weights larger than what they come from"""


def masks(queries: int, keys: int) -> dict[str, torch.Tensor | None]:
    padding = torch.ones(B, 1, 1, keys, dtype=torch.bool)
    padding[0, ..., keys // 2 :] = False
    nothing = padding.clone()
    nothing[1] = False
    ahead = torch.ones(queries, keys, dtype=torch.bool).tril()
    return {"none": None, "padding": padding, "nothing": nothing, "ahead": ahead[None, None], "both": padding & ahead}


def drawn(queries: int, keys: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Queries, keys and values as attention has them: views of [B, T, H · D]."""
    wide = [torch.randn(B, t, H * D, dtype=dtype, requires_grad=True) for t in (queries, keys, keys)]
    return [t.unflatten(-1, (H, D)).transpose(1, 2) for t in wide]


@pytest.mark.parametrize("mask", ["none", "padding", "nothing", "ahead", "both"])
@pytest.mark.parametrize("keys", [SHORT, LONG])
@pytest.mark.parametrize("queries", [1, 7, LONG])
def test_values_and_gradients_are_those_of_the_equation(mask, keys, queries):
    given, seen = drawn(queries, keys), masks(queries, keys)[mask]
    torch.manual_seed(1)
    expected = attend(*given, 0.7, seen, 0.3).mixed
    torch.manual_seed(1)
    ours = attend_dropped(*given, 0.7, seen, 0.3)
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    arrived = torch.randn_like(ours)
    for mine, theirs in zip(
        torch.autograd.grad(ours, given, arrived), torch.autograd.grad(expected, given, arrived), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("keys", [1, 2, VECTOR - 1, VECTOR, LONG])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_softmax_is_torchs(keys, dtype):
    least = torch.finfo(dtype).min
    scores = 50 * torch.randn(6, 5, keys, dtype=dtype)
    scores[0, :, keys // 2 :] = least
    scores[1] = least
    expected = scores.softmax(-1)
    torch.testing.assert_close(softmax(scores.clone()), expected)


@pytest.mark.parametrize("keys", [SHORT, LONG])
def test_less_waits_for_the_backward_pass(keys):
    def waiting(f) -> int:
        held: dict[int, int] = {}

        def hold(t: torch.Tensor) -> torch.Tensor:
            held[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(hold, lambda t: t):
            kept = f()  # alive, so that no two share an address
        assert kept is not None
        return sum(held.values())

    given, mask = drawn(keys, keys, torch.float32), masks(keys, keys)["padding"]
    ours = waiting(lambda: attend_dropped(*given, 0.7, mask, 0.3))
    theirs = waiting(lambda: attend(*given, 0.7, mask, 0.3))
    weights = B * H * keys * keys
    assert ours < theirs
    if keys == LONG:
        inputs = sum(4 * t.numel() for t in given)
        assert mask is not None
        assert ours == inputs + weights + mask.numel()


def test_half_precision_is_near_and_takes_what_comes():
    q, k, v = drawn(LONG, LONG, torch.float32)
    torch.manual_seed(1)
    expected = attend(q, k, v, 0.7, None, 0.3).mixed
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16):
        ours = attend_dropped(q.bfloat16(), k, v, 0.7, None, 0.3)  # a prefix makes keys fp32
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.float(), expected, atol=0.05, rtol=0.05)
    (mine,) = torch.autograd.grad(ours.float().square().sum(), [v])
    (theirs,) = torch.autograd.grad(expected.square().sum(), [v])
    torch.testing.assert_close(mine, theirs, atol=0.1, rtol=0.1)


def test_the_layer_learns_by_it_as_by_the_slow_path():
    layer, x = Attention(H * D, H, dropout=0.4).double(), torch.randn(B, 9, H * D, dtype=torch.float64)
    gradients = []
    for looks in (None, []):
        torch.manual_seed(2)
        layer.zero_grad()
        layer(x, mask=look_ahead(9), looks=looks).square().sum().backward()
        gradients.append([p.grad.clone() for p in layer.parameters()])
    torch.testing.assert_close(*gradients)
