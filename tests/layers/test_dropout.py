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


def test_one_mask_says_nothing_about_the_next():
    """Each begins at a place of its own; the first values of many masks are as random as those of one."""
    kept = torch.stack([dropout(torch.ones(8), 0.5) != 0 for _ in range(20_000)]).double()
    pairs = torch.cat([kept[:-1], kept[1:]], 1)  # of two masks in turn
    correlation = torch.corrcoef(pairs.T) - torch.eye(16)
    assert correlation.abs().max() < 0.035  # five standard deviations
    assert kept.mean(0).sub(0.5).abs().max() < 0.0177


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
