"""Attention of one query a row without keys and values: equal to the equation with both."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import peftlab
from peftlab import native
from peftlab.data.batch import Batch
from peftlab.layers.addition import LowRank
from peftlab.layers.attention import Attention, attend, split
from peftlab.layers.linear import Map
from peftlab.layers.one_query import attend_one
from peftlab.models.flops import encoder_flops

B, T, D, H, r = 3, 5, 12, 4, 2
MASKS = {"none": None, "some": torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def single(m: Map) -> Map:
    """The same for the kernels."""
    change = None if m.change is None else LowRank(*map(leaf, m.change[:2]), m.change.scale)
    return Map(leaf(m.weight), None if m.bias is None else leaf(m.bias), change)


def leaf(t: torch.Tensor) -> torch.Tensor:
    return t.detach().float().requires_grad_(t.requires_grad)


def a_map(bias: bool, change: bool, D: int = D) -> Map:
    return Map(random(D, D), random(D) if bias else None, LowRank(random(r, D), random(D, r), 0.7) if change else None)


def made(m: Map, x: torch.Tensor) -> torch.Tensor:
    """Keys or values as they are made elsewhere, [B, H, T, d]."""
    weight = m.weight if m.change is None else m.weight + m.change.scale * (m.change.B @ m.change.A)
    return split(torch.nn.functional.linear(x, weight, m.bias), H)


def tensors(*maps: Map) -> list[torch.Tensor]:
    return [t for m in maps for t in (m.weight, m.bias, *(m.change[:2] if m.change else ())) if t is not None]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("change", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_are_those_with_keys_and_values(bias, change, mask, dropout):
    torch.manual_seed(0)
    q, memory, k, v = random(B, H, 1, D // H), random(B, T, D), a_map(bias, change), a_map(bias, change)
    if bias and change:
        k.bias.requires_grad_(False)
    allowed, learned = MASKS[mask], [t for t in (q, memory, *tensors(k, v)) if t.requires_grad]
    seen = None if allowed is None else allowed[:, None, None]
    out = random(B, H, 1, D // H).detach()
    torch.manual_seed(1)
    one = attend_one(q, memory, k, v, 0.5, seen, dropout)
    torch.manual_seed(1)
    whole = attend(q, made(k, memory), made(v, memory), 0.5, seen, dropout).mixed
    torch.testing.assert_close(one, whole, rtol=0, atol=1e-12)
    ours, theirs = (torch.autograd.grad((found * out).sum(), learned) for found in (one, whole))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


@pytest.mark.skipif(native.LIBRARY is None, reason="the kernels were not built, or this is not AVX2")
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("change", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_the_kernel_gives_what_torch_gives(bias, change, mask, dropout):
    torch.manual_seed(0)
    for B, T, H, d in ((3, 5, 4, 3), (1, 1, 1, 8), (40, 33, 3, 40)):
        D = H * d
        q, memory, k, v = random(B, H, 1, d), random(B, T, D), a_map(bias, change, D), a_map(bias, change, D)
        allowed, out, scale = None if mask == "none" else torch.rand(B, 1, 1, T) < 0.5, torch.randn(B, H, 1, d), 0.5 / D
        found = []
        for given in ((q, memory, k, v), (leaf(q), leaf(memory), single(k), single(v))):
            torch.manual_seed(1)
            learned = [t for t in (*given[:2], *tensors(*given[2:])) if t.requires_grad]
            with native.computing():
                mixed = attend_one(*given, scale, allowed, dropout)
            step = type(mixed.grad_fn.next_functions[0][0]).__name__
            assert (step == "OneQueryBackward") == (mixed.dtype is torch.float32)
            found.append([mixed.detach(), *torch.autograd.grad((mixed * out).sum(), learned)])
        for theirs, ours in zip(*found, strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()) + 1e-6)


@pytest.mark.parametrize("score", ["scaled", "dot", "weighted"])
def test_each_score_asks_another_sequence_too(score):
    torch.manual_seed(0)
    layer, x, memory = Attention(D, H, score).eval(), torch.randn(B, 1, D), torch.randn(B, T, D)
    mask = MASKS["some"][:, None, None]
    looks: list = []
    torch.testing.assert_close(layer(x, memory, mask), layer(x, memory, mask, looks=looks), rtol=0, atol=1e-6)
    assert looks[0].weights.shape == (B, H, 1, T)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(
            layer(x, memory, mask).float(), layer(x, memory, mask, looks=looks).float(), rtol=0, atol=0.02
        )


def test_what_does_not_fit_together_is_torchs():
    torch.manual_seed(0)
    layer, x = Attention(32, 4).eval(), torch.randn(4, 1, 32)
    shared = torch.randn(1, 9, 32)  # the same for all rows
    with native.computing(), torch.no_grad():
        torch.testing.assert_close(layer(x, shared), layer(x, shared.expand(4, 9, 32)), rtol=0, atol=1e-5)
        with pytest.raises(RuntimeError, match="size"):
            layer(x, torch.randn(4, 9, 16))


def test_a_head_of_the_first_token_needs_no_keys_of_the_last_block():
    config = peftlab.EncoderConfig(vocab=50, dim=24, layers=3, heads=4, inner=48, max_length=32, pooler=True)
    model = peftlab.Encoder(config).eval()
    peftlab.attach(model, "mine", peftlab.Head(), head=peftlab.Classifier(labels=2))
    ids = torch.randint(50, (2, 9))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(Batch(ids, torch.ones_like(ids)), logits_only=True)
    pooler, head = 2 * 24 * 24, 2 * 24 * 2
    assert counter.get_total_flops() == 2 * (encoder_flops(config, 9, 1) + pooler + head)
