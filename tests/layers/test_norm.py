"""Norms against torch's own, and batch norm's blindness to padding."""

import torch
from torch import nn

from peftlab.layers.norm import BatchNorm, LayerNorm, NoNorm

B, T, D = 4, 6, 8


def test_layer_norm_equals_torch():
    ours, reference = LayerNorm(D, 1e-6), nn.LayerNorm(D, 1e-6)
    nn.init.normal_(ours.weight)
    nn.init.normal_(ours.bias)
    reference.load_state_dict(ours.state_dict())
    x = torch.randn(B, T, D)
    assert torch.equal(ours(x), reference(x))


def test_batch_norm_equals_torch_on_the_real_tokens_alone():
    ours, reference = BatchNorm(D), nn.BatchNorm1d(D)
    mask = torch.rand(B, T) > 0.4
    for _ in range(3):
        x = torch.randn(B, T, D) * 3 + 1
        torch.testing.assert_close(ours(x, mask)[mask], reference(x[mask]))
    torch.testing.assert_close(ours.running_mean, reference.running_mean)
    torch.testing.assert_close(ours.running_var, reference.running_var)
    x = torch.randn(B, T, D)
    torch.testing.assert_close(ours.eval()(x, mask)[mask], reference.eval()(x[mask]))


def test_batch_norm_does_not_see_what_stands_at_padded_positions():
    x, mask = torch.randn(B, T, D), torch.ones(B, T, dtype=torch.bool)
    mask[:, 4:] = False
    other = x.clone()
    other[:, 4:] = 1e6
    assert torch.equal(BatchNorm(D)(x, mask)[mask], BatchNorm(D)(other, mask)[mask])


def test_no_norm_passes_values_on():
    x = torch.randn(B, T, D)
    assert torch.equal(NoNorm(D)(x), x)
