"""The cells against torch's kernels, the scores against their formulas, and padding that nobody reads."""

import pytest
import torch
from torch import nn

from peftlab.layers.recurrent import (
    ATTENTIONS,
    CELLS,
    AdditiveScore,
    MultiplicativeScore,
    Source,
    gru_cell,
    lstm_cell,
    read_both_ways,
    tanh_cell,
)

B, T, S, E, D = 3, 5, 7, 6, 8


@pytest.mark.parametrize(("kernel", "cell"), [("rnn", tanh_cell), ("gru", gru_cell), ("lstm", lstm_cell)])
def test_a_cell_in_a_loop_equals_torch_kernel(kernel, cell):
    cells, x = CELLS[kernel](E, D, 2, batch_first=True), torch.randn(B, T, E)
    state = [torch.randn(2, B, D) for _ in range(2 if kernel == "lstm" else 1)]
    expected, last = cells(x, tuple(state) if kernel == "lstm" else state[0])
    for layer in range(2):
        now, outputs = tuple(part[layer] for part in state), []
        for t in range(T):
            now = cell(x[:, t], *now, *cells.all_weights[layer])
            now = now if kernel == "lstm" else (now,)
            outputs.append(now[0])
        x = torch.stack(outputs, 1)
        for part, end in zip(now, last if kernel == "lstm" else (last,), strict=True):
            torch.testing.assert_close(part, end[layer], rtol=0, atol=1e-6)
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-6)


REAL = {
    "right": [[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0, 0]],
    "left": [[0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1]],
    "both": [[0, 0, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 0, 0, 0]],
    "full": [[1] * S] * B,
}


@pytest.mark.parametrize("side", REAL)
@pytest.mark.parametrize("kernel", CELLS)
@torch.no_grad()
def test_reading_both_ways_equals_each_row_alone_wherever_its_padding_stands(kernel, side):
    cells = CELLS[kernel](E, D // 2, 2, batch_first=True, bidirectional=True)
    x, mask = torch.randn(B, S, E), torch.tensor(REAL[side]).bool()
    states, ends = read_both_ways(cells, x, None if side == "full" else mask)
    for row in range(B):
        alone, last = cells(x[row, mask[row]][None])
        h = last[0] if kernel == "lstm" else last
        torch.testing.assert_close(states[row, mask[row]], alone[0], rtol=0, atol=1e-6)
        torch.testing.assert_close(ends[row], torch.cat([h[2, 0], h[3, 0]]), rtol=0, atol=1e-6)
    assert (states[~mask] == 0).all()


def additive(score: AdditiveScore, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return score.v.weight[0] @ torch.tanh(score.q.weight @ q + score.k.weight @ k + score.k.bias)


def multiplicative(score: MultiplicativeScore, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ score.k.weight @ k


@pytest.mark.parametrize(("kind", "formula"), [(AdditiveScore, additive), (MultiplicativeScore, multiplicative)])
def test_a_score_is_its_formula_for_each_query_and_key(kind, formula):
    score, queries, states = kind(D), torch.randn(B, T, D), torch.randn(B, S, D)
    scores = score(queries, score.keys(states))
    assert scores.shape == (B, T, S)
    for b in range(B):
        for t in range(T):
            for s in range(S):
                torch.testing.assert_close(scores[b, t, s], formula(score, queries[b, t], states[b, s]))


@pytest.mark.parametrize("kind", ["additive", "multiplicative"])
def test_attention_after_the_cell_is_its_formula_over_real_states_alone(kind):
    attention, h, states = ATTENTIONS[kind](D), torch.randn(B, T, D), torch.randn(B, S, D)
    mask = torch.tensor(REAL["both"]).bool()
    mixed, weights = attention(h, attention.source(torch.randn(B, D), states, mask))
    for b in range(B):
        real = states[b, mask[b]]
        expected = attention.score(h[b : b + 1], attention.score.keys(real[None]))[0].softmax(-1)
        torch.testing.assert_close(weights[b][:, mask[b]], expected)
        assert (weights[b][:, ~mask[b]] == 0).all()
        W_c, W_h = attention.o.weight.split(D, 1)
        torch.testing.assert_close(mixed[b], torch.tanh(expected @ real @ W_c.T + h[b] @ W_h.T))


def test_without_attention_the_one_vector_goes_beside_each_token_and_nothing_else_is_kept():
    attention, x, h, vector = ATTENTIONS["none"](D), torch.randn(B, T, E), torch.randn(B, T, D), torch.randn(B, D)
    source = attention.source(vector, torch.randn(B, S, D), None)
    assert source == Source(vector)
    given = attention.receive(x, source)
    assert given.shape[-1] == E + attention.extra
    for t in range(T):
        assert torch.equal(given[:, t], torch.cat([x[:, t], vector], 1))
    assert attention(h, source) == (h, None)


def test_a_gradient_reaches_every_parameter_of_both_scores():
    for kind in ("additive", "multiplicative"):
        attention: nn.Module = ATTENTIONS[kind](D)
        source = attention.source(torch.randn(B, D), torch.randn(B, S, D), None)
        attention(torch.randn(B, T, D), source)[0].square().sum().backward()
        assert all(parameter.grad.abs().max() > 0 for parameter in attention.parameters())
