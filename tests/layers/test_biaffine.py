"""Biaffine scores against the paper's equations, written out word by word."""

import torch
from torch import nn

from peftlab.layers.biaffine import ArcScores, LabelScores


def shaken(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def test_an_arc_is_a_bilinear_form_and_a_bias_of_the_head():
    B, N, M, d = 2, 3, 4, 5
    arcs, dependents, heads = shaken(ArcScores(d)), torch.randn(B, N, d), torch.randn(B, M, d)
    found = arcs(dependents, heads)
    assert found.shape == (B, N, M)
    U, u = arcs.affine.weight, arcs.affine.bias
    for b in range(B):
        for i in range(N):
            for j in range(M):
                expected = heads[b, j] @ U @ dependents[b, i] + heads[b, j] @ u
                torch.testing.assert_close(found[b, i, j], expected)


def test_a_label_is_a_bilinear_form_and_an_affine_one_of_both():
    B, N, L, d = 2, 3, 4, 5
    labels, dependents, heads = shaken(LabelScores(d, L)), torch.randn(B, N, d), torch.randn(B, N, d)
    found = labels(dependents, heads)
    bilinear = nn.functional.bilinear(dependents, heads, labels.weight.transpose(0, 1).contiguous(), labels.affine.bias)
    linear = torch.cat([dependents, heads], -1) @ labels.affine.weight.T
    torch.testing.assert_close(found, bilinear + linear)


def test_both_begin_without_an_opinion_and_learn():
    x = torch.randn(1, 3, 5)
    for module in (ArcScores(5), LabelScores(5, 2)):
        out = module(x, x)
        assert not out.any()
        (out * torch.randn_like(out)).sum().backward()
        assert all(parameter.grad.any() for parameter in module.parameters())
