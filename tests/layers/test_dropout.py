"""Dropout's rate, scale, gradient and repeatability."""

import pytest
import torch

from peftlab.layers.dropout import Dropout, dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.003, 0.9])
def test_the_rate_and_the_expectation(p):
    n = 400_001  # not a multiple of four
    y = dropout(torch.ones(n), p)
    zeros = (y == 0).double().mean().item()
    assert zeros == pytest.approx(p, abs=4 * (p * (1 - p) / n) ** 0.5 + 1e-5)
    assert y.double().mean().item() == pytest.approx(1, abs=4 * (p / (1 - p) / n) ** 0.5)
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - p)), rtol=2e-4, atol=0)


def test_neighbours_are_independent():
    """Four values share a draw of 64 bits: none of them may say anything about another."""
    kept = (dropout(torch.ones(400_000, 4), 0.5) != 0).double()
    correlation = torch.corrcoef(kept.T) - torch.eye(4)
    assert correlation.abs().max() < 0.01


def test_the_gradient_passes_where_the_value_did():
    x = torch.randn(50, 7, requires_grad=True)
    y = dropout(x, 0.3)
    y.backward(torch.ones_like(y))
    torch.testing.assert_close(x.grad, torch.where(y == 0, 0.0, y / x).detach())


def test_the_same_seed_drops_the_same():
    x = torch.randn(9, 9)
    torch.manual_seed(3)
    first = dropout(x, 0.4)
    second = dropout(x, 0.4)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.4), first)
    assert not torch.equal(first, second)


def test_nothing_is_dropped_in_evaluation_or_at_zero():
    x = torch.randn(5)
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0) is x
    assert Dropout(0.5).eval()(x) is x
    assert torch.equal(dropout(x, 1.0), torch.zeros(5))
