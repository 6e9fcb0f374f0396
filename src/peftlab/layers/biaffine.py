"""Biaffine attention: how well one word is the head of another, and by which relation.

Dozat & Manning 2017 (arXiv 1611.01734), section 3.1. Both start from zero, with no opinion, as in the authors' parser.

    arcs     s_ij = h_jᵀ U d_i + h_jᵀ u                the bias u says how likely a word is a head at all
    labels   s_ir = hᵀ U_r d_i + W_r (d_i ⊕ h) + b_r   for the one head h that the word has

Shapes: B sentences, N dependents, M heads, d width, L labels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ArcScores(nn.Module):
    """Each dependent with each head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.affine = nn.Linear(width, width)
        nn.init.zeros_(self.affine.weight)
        nn.init.zeros_(self.affine.bias)

    def forward(self, dependents: Tensor, heads: Tensor) -> Tensor:
        """[B, N, d], [B, M, d] → [B, N, M]."""
        return self.affine(dependents) @ heads.transpose(1, 2)


class LabelScores(nn.Module):
    """Each dependent with its own head."""

    def __init__(self, width: int, labels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, labels, width))
        self.affine = nn.Linear(2 * width, labels)
        nn.init.zeros_(self.affine.weight)
        nn.init.zeros_(self.affine.bias)

    def forward(self, dependents: Tensor, heads: Tensor) -> Tensor:
        """[B, N, d] each → [B, N, L]."""
        turned = (dependents @ self.weight.flatten(1)).unflatten(-1, self.weight.shape[1:])  # [B, N, L, d]
        return (turned @ heads[..., None])[..., 0] + self.affine(torch.cat([dependents, heads], -1))
