"""The reversible stack against plain autograd: gradients, randomness, what is hashed, and memory."""

import sys

import pytest
import torch
from torch import nn

from benchmarks.memory import peak
from peftlab import native
from peftlab.layers import lsh
from peftlab.layers.attention import Attention
from peftlab.layers.feedforward import FeedForward
from peftlab.layers.lsh import Hashed, LSHAttention
from peftlab.layers.norm import LayerNorm
from peftlab.layers.reversible import Blocks, Branch, Call, irreversible, reversible

D, T = 16, 37


def build(depth: int, kind: str = "lsh", dropout: float = 0.2) -> list[tuple[Branch, Branch]]:
    def attention() -> nn.Module:
        if kind == "lsh":
            return LSHAttention(D, 2, chunk=8, rounds=2, causal=True, dropout=dropout)
        return Attention(D, 2, dropout=dropout)

    def branch(sublayer: nn.Module) -> Branch:
        return Branch(D, sublayer, LayerNorm(D), dropout)

    return [(branch(attention()), branch(FeedForward(D, 4 * D, dropout=dropout))) for _ in range(depth)]


def calls(pairs, kind: str = "lsh") -> Blocks:
    return [(Call(f, {"hashed": Hashed(i)} if kind == "lsh" else {}), Call(g, {})) for i, (f, g) in enumerate(pairs)]


def learned(pairs) -> list[nn.Parameter]:
    return [parameter for pair in pairs for part in pair for parameter in part.parameters() if parameter.requires_grad]


def gradients(run, pairs, x, kind="lsh", **cast):
    """Of x and of all parameters, the outputs, and the random number that comes next."""
    torch.manual_seed(3)
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, **cast) if cast else torch.autocast("cpu", enabled=False):
        y1, y2 = run(x, 2 * x, calls(pairs, kind))
    loss = (y1.float() * torch.linspace(-1, 1, D)).sum() + y2.float().square().sum()
    return torch.autograd.grad(loss, [x, *learned(pairs)]), (y1, y2), torch.rand(3)


@pytest.mark.parametrize("kind", ["lsh", "ordinary"])
@pytest.mark.parametrize("depth", [1, 4])
def test_gradients_equal_plain_autograd_with_dropout_on(kind, depth):
    pairs, x = build(depth, kind), torch.randn(2, T, D)
    ours, outputs, after = gradients(reversible, pairs, x, kind)
    plain, expected, after_plain = gradients(irreversible, pairs, x, kind)
    assert torch.equal(outputs[0], expected[0])
    assert torch.equal(outputs[1], expected[1])
    assert torch.equal(after, after_plain), "the way back leaves the random state as it is"
    for found, wanted in zip(ours, plain, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 * max(1.0, float(wanted.abs().max())))
    other, *_ = gradients(irreversible, build(depth, kind), x, kind)
    assert not torch.allclose(other[0], plain[0], atol=1e-3)


def test_the_way_back_has_the_precision_of_the_way_there():
    pairs, x = build(2, dropout=0.0), torch.randn(2, T, D)
    ours, *_ = gradients(reversible, pairs, x, enabled=True)
    plain, *_ = gradients(irreversible, pairs, x, enabled=True)
    full, *_ = gradients(irreversible, pairs, x)
    near = [float((a - b).norm() / b.norm()) for a, b in ((ours[0], plain[0]), (full[0], plain[0]))]
    assert near[0] < near[1] / 3, near


@pytest.mark.skipif(native.LIBRARY is None, reason="the kernels were not built, or this is not AVX2")
def test_the_way_back_is_in_integers_where_the_way_there_is(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "D", 32)
    monkeypatch.setattr(native, "TALL", True)
    pairs, x = build(4, "ordinary"), torch.randn(2, T, D)
    for branch in (branch for pair in pairs for branch in pair):
        branch.requires_grad_(False)
    with native.computing(integers=True):
        ours, outputs, _ = gradients(reversible, pairs, x, "ordinary")
        plain, expected, _ = gradients(irreversible, pairs, x, "ordinary")
    numbers, rounded, _ = gradients(irreversible, pairs, x, "ordinary")
    assert torch.equal(outputs[0], expected[0])
    assert not torch.allclose(rounded[0], expected[0], rtol=1e-6, atol=1e-6)
    near = [float((a[0] - plain[0]).norm() / plain[0].norm()) for a in (ours, numbers)]
    assert near[0] < near[1] / 3, near


def test_what_is_hashed_is_kept_and_not_hashed_again(monkeypatch):
    """On the way back the inputs are the same but for rounding, which is enough for another bucket."""
    hashes, find = [], lsh.buckets_of
    monkeypatch.setattr(lsh, "buckets_of", lambda *given: hashes.append(1) or find(*given))
    x = torch.randn(2, T, D, requires_grad=True)
    y1, y2 = reversible(x, x, calls(build(3)))
    assert len(hashes) == 3
    (y1 + y2).sum().backward()
    assert len(hashes) == 3


def test_only_what_learns_is_computed_back():
    pairs, x = build(4), torch.randn(2, T, D)
    for part in (part for pair in pairs for part in pair):
        part.requires_grad_(False)
    pairs[2][1].sublayer.up.weight.requires_grad_(True)
    passed = []
    for i, (f, _) in enumerate(pairs):
        f.register_forward_hook(lambda *_, i=i: passed.append(i))
    torch.manual_seed(3)
    y1, y2 = reversible(x, x, calls(pairs))
    assert passed == [0, 1, 2, 3]
    (found,) = torch.autograd.grad((y1 + y2).square().sum(), learned(pairs))
    assert passed == [0, 1, 2, 3, 3, 2]
    torch.manual_seed(3)
    y1, y2 = irreversible(x, x, calls(pairs))
    (expected,) = torch.autograd.grad((y1 + y2).square().sum(), learned(pairs))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        assert not reversible(x, x, calls(pairs))[0].requires_grad


def test_a_block_that_is_there_twice_gets_the_sum():
    pair, x = build(1, dropout=0.0), torch.randn(2, T, D)
    ours, plain = (
        torch.autograd.grad(run(x, x, calls(pair * 2))[1].square().sum(), learned(pair))
        for run in (reversible, irreversible)
    )
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


def activations(run, depth: int) -> int:
    """Bytes of a training step at its peak, without weights, and without the gradients that it leaves."""
    pairs, x = build(depth), torch.randn(2, 512, D)

    def step() -> None:
        y1, y2 = run(x, x, calls(pairs))
        (y1 + y2).square().mean().backward()

    most = peak(step)
    return most - sum(parameter.grad.nbytes for parameter in learned(pairs))


def test_activation_memory_does_not_grow_with_depth():
    depths = (3, 6, 12, 24)
    back, plain = ([activations(run, depth) for depth in depths] for run in (reversible, irreversible))
    assert max(back) <= 1.3 * min(back), back
    assert plain[-1] > 6 * plain[0], plain
    assert back[0] < plain[0]
