"""Hashed attention against full attention, its hashes, who may see whom, and its gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peftlab.layers import local as chunks
from peftlab.layers.local import LocalAttention, in_chunks
from peftlab.layers.lsh import (
    Hashed,
    LSHAttention,
    attend_all,
    attend_sorted,
    buckets_of,
    unit,
    usual_buckets,
)


def vectors(T: int, B: int = 2, H: int = 3, d: int = 8, dtype=torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    q, v = torch.randn(2, B, T, H, d, dtype=dtype)
    return q.requires_grad_(), v.requires_grad_()


def hashed_attention(q, v, chunk: int, rounds: int = 1, mask=None, causal: bool = False, seed: int = 0, dropout=0.0):
    """What `LSHAttention` does between its projections."""
    _, T, H, d = q.shape
    both, mask, size = in_chunks(torch.cat([q, v], -1).flatten(2), mask, chunk)
    q, v = both.unflatten(-1, (H, -1)).chunk(2, -1)
    order = LSHAttention(H * d, H, chunk=chunk, rounds=rounds).order(q.detach(), mask, seed)
    return attend_sorted(q, v, order, size, mask, causal, dropout)[:, :T]


def ragged(T: int, *lengths: int, side: str = "right") -> torch.Tensor:
    return torch.tensor([[t < n if side == "right" else t >= T - n for t in range(T)] for n in lengths])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("T", "chunk"), [(11, 16), (16, 16), (32, 16), (27, 16), (13, 7)])
def test_where_every_chunk_is_seen_it_equals_full_attention(T, chunk, padded, causal):
    """In one chunk all are seen, whatever the bucket, and of two each sees the other."""
    q, v = vectors(T)
    mask = ragged(T, T, T // 2 + 1) if padded else None
    real = torch.ones(2, T, dtype=torch.bool) if mask is None else mask
    weights = torch.randn(*v.shape) * real[..., None, None]
    found, expected = hashed_attention(q, v, chunk, 1, mask, causal), attend_all(q, v, mask, causal)
    torch.testing.assert_close(found[real], expected[real], rtol=0, atol=1e-5)
    for ours, theirs in zip(
        torch.autograd.grad(found, (q, v), weights), torch.autograd.grad(expected, (q, v), weights), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@torch.no_grad()
def test_more_rounds_come_closer_to_full_attention():
    """Tokens in pairs of near directions, so that attention has something to find."""
    pairs = torch.randn(128, 1, 32) + 0.2 * torch.randn(128, 2, 32)
    q, v = 3.5 * pairs.reshape(1, 256, 1, 32)[:, torch.randperm(256)], torch.randn(1, 256, 1, 32)
    expected = attend_all(q, v)

    def error(rounds: int) -> float:
        """Of five draws of the rotations."""
        found = [hashed_attention(q, v, 16, rounds, seed=seed) for seed in range(5)]
        return sum(float((one - expected).norm() / expected.norm()) for one in found) / 5

    curve = [error(rounds) for rounds in (1, 2, 4, 8, 16)]
    assert curve == sorted(curve, reverse=True)
    assert curve[-1] < 0.05 < 0.5 < curve[0], curve


def test_a_bucket_is_the_nearest_of_the_rotated_axes_and_their_opposites():
    q = torch.randn(2, 9, 3, 8)
    found = buckets_of(q, 4, (6,), seed=5)
    rotations = torch.randn(3, 8, 4, 3, generator=torch.Generator().manual_seed(5))
    rotated = torch.einsum("bthd,hdre->bhrte", q, rotations)
    assert torch.equal(found, torch.cat([rotated, -rotated], -1).argmax(-1))
    assert torch.equal(buckets_of(3 * q, 4, (6,), seed=5), found), "length does not matter"
    assert torch.equal(buckets_of(-q, 4, (6,), seed=5), (found + 3) % 6)
    assert not torch.equal(buckets_of(q, 4, (6,), seed=6), found)


def test_two_hashes_make_one_bucket():
    q = torch.randn(2, 50, 3, 8)
    found = buckets_of(q, 2, (4, 6), seed=5)
    rotations = torch.randn(3, 8, 2, 5, generator=torch.Generator().manual_seed(5))
    rotated = torch.einsum("bthd,hdre->bhrte", q, rotations)
    low, high = (torch.cat([part, -part], -1).argmax(-1) for part in rotated.split([2, 3], -1))
    assert torch.equal(found, low + 4 * high)
    assert usual_buckets(64 * 64, 64) == (128,)
    assert usual_buckets(2 * 64 * 64, 64) == (16, 16)


def test_the_same_seed_gives_the_same_and_another_one_another():
    x = torch.randn(1, 40, 16)
    attention = LSHAttention(16, 2, chunk=8, rounds=2, seed=3)
    first = attention(x)
    torch.rand(5)  # another random state
    assert torch.equal(attention(x), first)
    assert not torch.allclose(attention(x, hashed=Hashed(4)), first, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(T=st.integers(6, 41), rounds=st.integers(1, 3), local=st.booleans(), data=st.data())
def test_no_token_enters_an_earlier_one(T, rounds, local, data):
    t = data.draw(st.integers(1, T - 4))
    torch.manual_seed(T)
    attention = (
        LocalAttention(8, 2, chunk=5, causal=True)
        if local
        else LSHAttention(8, 2, chunk=5, rounds=rounds, causal=True, seed=t)
    )
    x = torch.randn(2, T, 8, requires_grad=True)
    kept = {} if local else {"hashed": Hashed(t)}
    before = attention(x, **kept)
    (gradient,) = torch.autograd.grad(before[:, :t].square().sum(), x)
    assert (gradient[:, t:] == 0).all()
    assert (gradient[:, 0] != 0).any()
    later = torch.cat([x[:, :t], torch.randn(2, T - t, 8)], 1)
    after = attention(later, **kept)  # cut as before
    torch.testing.assert_close(after[:, :t], before[:, :t], rtol=0, atol=1e-6)
    assert not torch.allclose(after[:, t:], before[:, t:], atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(
    T=st.integers(2, 41), rounds=st.integers(1, 3), local=st.booleans(), causal=st.booleans(),
    side=st.sampled_from(["left", "right"]), data=st.data(),
)  # fmt: skip
def test_what_stands_at_padding_changes_nothing(T, rounds, local, causal, side, data):
    mask = ragged(T, data.draw(st.integers(1, T)), data.draw(st.integers(1, T)), side=side)
    torch.manual_seed(T)
    attention = (
        LocalAttention(8, 2, chunk=5, causal=causal)
        if local
        else LSHAttention(8, 2, chunk=5, rounds=rounds, causal=causal)
    )
    x = torch.randn(2, T, 8, requires_grad=True)
    before = attention(x, mask=mask)
    assert before.isfinite().all()
    (gradient,) = torch.autograd.grad(before[mask].square().sum(), x)
    assert (gradient[~mask] == 0).all()
    other = torch.where(mask[..., None], x, 9 * torch.randn(2, T, 8))
    torch.testing.assert_close(attention(other, mask=mask)[mask], before[mask], rtol=0, atol=1e-6)


@pytest.mark.parametrize("rounds", [1, 3])
@torch.no_grad()
def test_a_token_sees_itself_only_where_it_sees_nothing_else(rounds):
    q, _ = vectors(37, B=1, H=1, d=37)
    own = hashed_attention(q, torch.eye(37)[None, :, None], 6, rounds, causal=True)[0, :, 0]  # the weights
    torch.testing.assert_close(own.sum(1), torch.ones(37))
    assert own[0, 0] == 1
    alone = own.diagonal() > 0
    assert (own.diagonal()[alone] == 1).all()
    assert 0 < alone.sum() < 37


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_equal_finite_differences(causal, dropout):
    q, v = vectors(7, B=1, H=2, d=2, dtype=torch.float64)
    mask = ragged(7, 5)

    def attend(q, v):
        torch.manual_seed(1)
        return hashed_attention(q, v, 2, 2, mask, causal, dropout=dropout)

    assert torch.autograd.gradcheck(attend, (q, v))


@pytest.mark.parametrize("scores", [1, 300, 10**6])
def test_how_many_scores_are_computed_at_a_time_does_not_matter(scores, monkeypatch):
    q, v = vectors(45)
    weights = torch.randn(*v.shape)
    expected = hashed_attention(q, v, 8, 2, causal=True)
    gradients = torch.autograd.grad(expected, (q, v), weights)
    monkeypatch.setattr(chunks, "SCORES", scores)
    found = hashed_attention(q, v, 8, 2, causal=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.autograd.grad(found, (q, v), weights), gradients, rtol=0, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("T", [5, 6, 12, 23])
def test_local_attention_equals_torch_with_the_mask_of_two_chunks(T, causal):
    c, mask = 6, ragged(T, T, T - 2)
    attention = LocalAttention(8, 2, chunk=c, causal=causal)
    x, chunks = torch.randn(2, T, 8), -(-T // c)
    i, j = torch.arange(T)[:, None], torch.arange(T)
    seen = (i // c == j // c) | ((i // c - 1) % chunks == j // c)
    seen = seen & (i >= j) if causal else seen
    q, k, v = (part(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in (attention.q, attention.k, attention.v))
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen & mask[:, None, None])
    expected = attention.o(mixed.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, mask=mask)[mask], expected[mask], rtol=0, atol=1e-5)


def test_half_precision_stays_near():
    attention, x = LSHAttention(16, 2, chunk=8, rounds=2, causal=True), torch.randn(2, 37, 16, requires_grad=True)
    kept = Hashed(0)
    expected = attention(x, hashed=kept)
    with torch.autocast("cpu", torch.bfloat16):
        found = attention(x, hashed=kept)
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.03)
    found.float().square().sum().backward()
    assert x.grad.isfinite().all()


def test_keys_have_length_one():
    torch.testing.assert_close(unit(torch.randn(4, 8) * 5).norm(dim=-1), torch.ones(4), rtol=1e-5, atol=0)
