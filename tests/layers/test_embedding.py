"""Positions against their formula; padding on either side; what order is without them."""

import math

import pytest
import torch

from peftlab.data.batch import Batch
from peftlab.layers.embedding import LearnedPositions, sinusoids
from peftlab.models.encoder import Encoder, EncoderConfig

CONFIG = {"vocab": 50, "dim": 16, "layers": 2, "heads": 4, "inner": 8, "max_length": 12}


@pytest.mark.parametrize("dim", [8, 7])
def test_sinusoids_equal_the_formula(dim):
    table = sinusoids(20, dim)
    for t in range(20):
        for i in range(dim):
            angle = t / 10_000 ** (2 * (i // 2) / dim)
            assert table[t, i] == pytest.approx(math.sin(angle) if i % 2 == 0 else math.cos(angle), abs=1e-6)


def test_learned_positions_keep_the_rows_before_their_offset_for_padding():
    positions = LearnedPositions(4, 3, offset=2)
    mask = torch.tensor([[True, True, False]])
    rows = positions(torch.tensor([[0, 1, 2]]), mask)
    assert torch.equal(rows[0], positions.weight[[2, 3, 1]])


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "none"])
def test_padding_on_either_side_changes_no_real_token(position):
    model = Encoder(EncoderConfig(**CONFIG, position=position)).eval()
    ids = torch.randint(1, 50, (1, 5))
    plain = model(Batch(ids, torch.ones_like(ids))).hidden
    pad = torch.zeros(1, 3, dtype=torch.long)
    right = model(Batch(torch.cat([ids, pad], 1), torch.tensor([[1] * 5 + [0] * 3]))).hidden[:, :5]
    left = model(Batch(torch.cat([pad, ids], 1), torch.tensor([[0] * 3 + [1] * 5]))).hidden[:, 3:]
    torch.testing.assert_close(right, plain, rtol=0, atol=1e-6)
    torch.testing.assert_close(left, plain, rtol=0, atol=1e-6)


def test_without_positions_the_order_is_lost_and_with_them_it_is_not():
    ids = torch.randint(1, 50, (1, 6))
    order = torch.randperm(6)
    for position, lost in (("none", True), ("learned", False), ("sinusoidal", False)):
        model = Encoder(EncoderConfig(**CONFIG, position=position, init_std=0.2)).eval()
        hidden = model(Batch(ids, torch.ones_like(ids))).hidden[:, order]
        shuffled = model(Batch(ids[:, order], torch.ones_like(ids))).hidden
        assert torch.allclose(hidden, shuffled, atol=1e-5) == lost
