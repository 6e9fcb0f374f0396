"""Recurrence: what the Transformer replaced, rung by rung, from a cell to attention over a sequence.

    tanh_cell            one state, rewritten at each token                     Elman 1990
    gru_cell             gates say how much of it is rewritten                  Cho et al. 2014 (arXiv 1406.1078)
    lstm_cell            a second state beside it that is mostly added to       Hochreiter and Schmidhuber 1997
    OneVector            a decoder is told its source in one vector             Cho et al. 2014
    AdditiveScore        it looks at all of the source's states: vᵀtanh(Wq+Uk)  Bahdanau et al. 2015 (arXiv 1409.0473)
    MultiplicativeScore  the same by one product: qᵀWk                          Luong et al. 2015 (arXiv 1508.04025)

The cells here are for reading: models run torch's kernels, which take a whole sequence in one call, and a test holds
the two equal. Both scores are used as Luong does, after the cell. Bahdanau's own decoder gives what it saw to the next
cell, and so must go through a target token by token; after the cell, one call of the kernel and one attention serve all
tokens of a target.

    python -m pytest tests/layers/test_recurrent.py

Shapes: B rows, T tokens, Tq queries, S tokens of the source, E width of the input, D width of the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from peftlab.layers.linear import Linear
from peftlab.layers.site import Route, hide_empty_sites

CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


def tanh_cell(x: Tensor, h: Tensor, W: Tensor, U: Tensor, b: Tensor, d: Tensor) -> Tensor:
    """x [B, E], h [B, D] → h [B, D]. The four parameters are `cells.all_weights[layer]` of torch's module.

    >>> cells = nn.RNN(3, 5)
    >>> tanh_cell(torch.ones(2, 3), torch.zeros(2, 5), *cells.all_weights[0]).shape
    torch.Size([2, 5])
    """
    return torch.tanh(F.linear(x, W, b) + F.linear(h, U, d))


def gru_cell(x: Tensor, h: Tensor, W: Tensor, U: Tensor, b: Tensor, d: Tensor) -> Tensor:
    """As `tanh_cell`, with W [3D, E] and U [3D, D]: the reset gate, the update gate and the new state."""
    xr, xz, xn = F.linear(x, W, b).chunk(3, -1)
    hr, hz, hn = F.linear(h, U, d).chunk(3, -1)
    r = torch.sigmoid(xr + hr)
    z = torch.sigmoid(xz + hz)
    n = torch.tanh(xn + r * hn)
    return (1 - z) * n + z * h


def lstm_cell(x: Tensor, h: Tensor, c: Tensor, W: Tensor, U: Tensor, b: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """As `tanh_cell`, with a state c, W [4D, E] and U [4D, D]: gates in and forget, the new values, the gate out."""
    i, f, g, o = (F.linear(x, W, b) + F.linear(h, U, d)).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def read_both_ways(cells: nn.RNNBase, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """x [B, S, E] → the states [B, S, D] of bidirectional cells, and where the two directions end [B, D].

    Only real tokens are read (`mask` [B, S], None: all are), wherever a row's padding stands: the way back starts at
    the row's last real token. States at padding are zero.
    """
    last: Any
    if mask is None:
        states, last = cells(x)
    else:
        order = mask.int().argsort(stable=True, dim=1, descending=True)  # real tokens to the left, in their order
        moved, lengths = x.gather(1, order[..., None].expand_as(x)), mask.sum(1).cpu()
        packed, last = cells(pack_padded_sequence(moved, lengths, batch_first=True, enforce_sorted=False))
        states, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
        states = states.gather(1, order.argsort(1)[..., None].expand_as(states))
    h = last[0] if isinstance(last, tuple) else last  # [2·layers, B, D/2], the top layer's two at the end
    return states, torch.cat([h[-2], h[-1]], -1)


class AdditiveScore(nn.Module):
    """score(q, k) = vᵀ tanh(Wq + Uk): a small network that sees both."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q = Linear(dim, dim, bias=False)
        self.k = Linear(dim, dim)
        self.v = Linear(dim, 1, bias=False)

    def keys(self, states: Tensor, route: Route | None = None) -> Tensor:
        """Uk, which no query changes: computed once a source."""
        return self.k(states, route)

    def forward(self, queries: Tensor, keys: Tensor, route: Route | None = None) -> Tensor:
        """[B, Tq, D], `keys` of [B, S, D] → [B, Tq, S]."""
        both = torch.tanh(self.q(queries, route)[:, :, None] + keys[:, None])  # [B, Tq, S, D]
        return self.v(both.flatten(1, 2), route).unflatten(1, both.shape[1:3]).squeeze(-1)


class MultiplicativeScore(nn.Module):
    """score(q, k) = qᵀWk, Luong's "general" one: without the tanh between them one product gives all scores."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.k = Linear(dim, dim, bias=False)

    def keys(self, states: Tensor, route: Route | None = None) -> Tensor:
        """Wk, as in `AdditiveScore`."""
        return self.k(states, route)

    def forward(self, queries: Tensor, keys: Tensor, route: Route | None = None) -> Tensor:
        """[B, Tq, D], `keys` of [B, S, D] → [B, Tq, S]."""
        return queries @ keys.mT


class Source(NamedTuple):
    """What a decoder knows of its sources."""

    vector: Tensor
    """[B, D] the one vector from which it starts"""
    states: Tensor | None = None
    """[B, S, D] of the encoder; None where the one vector is all"""
    keys: Tensor | None = None
    """[B, S, D] what the score makes of the states"""
    mask: Tensor | None = None
    """[B, S] True at real tokens; None: all are"""

    def take(self, rows: Tensor) -> Source:
        """Those of some rows."""
        return Source(*(None if part is None else part[rows] for part in self))  # type: ignore[arg-type]


class OneVector(nn.Module):
    """No attention: the source's one vector goes into the cell beside each token."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.extra = dim
        """by how much the cell's input is wider than a token's vector"""

    def source(self, vector: Tensor, states: Tensor, mask: Tensor | None, route: Route | None = None) -> Source:
        """What is kept of a source."""
        return Source(vector)

    def receive(self, x: Tensor, source: Source) -> Tensor:
        """What the cell is given for tokens [B, T, E]: [B, T, E + D]."""
        return torch.cat([x, source.vector[:, None].expand(-1, x.shape[1], -1)], -1)

    def forward(self, h: Tensor, source: Source, route: Route | None = None) -> tuple[Tensor, Tensor | None]:
        """The cell's states [B, Tq, D] as they are, and no weights."""
        return h, None


class AfterCell(nn.Module):
    """Attention from the cell's states h to all states of the source: h̃ = tanh(W[c; h]), c = Σ softmax(score)·state."""

    def __init__(self, dim: int, score: AdditiveScore | MultiplicativeScore) -> None:
        super().__init__()
        self.extra = 0
        """as in `OneVector`"""
        self.score = score
        self.o = Linear(2 * dim, dim, bias=False)

    def source(self, vector: Tensor, states: Tensor, mask: Tensor | None, route: Route | None = None) -> Source:
        """What is kept of a source."""
        return Source(vector, states, self.score.keys(states, route), mask)

    def receive(self, x: Tensor, source: Source) -> Tensor:
        """What the cell is given for tokens [B, T, E]: themselves."""
        return x

    def forward(self, h: Tensor, source: Source, route: Route | None = None) -> tuple[Tensor, Tensor | None]:
        """h [B, Tq, D] → h̃ [B, Tq, D] and the weights [B, Tq, S], 0 at padding."""
        assert source.keys is not None
        scores = self.score(h, source.keys, route)
        if source.mask is not None:  # each row has a real token, so that −∞ leaves no row of nothing
            scores = scores.masked_fill(~source.mask[:, None], -torch.inf)
        weights = scores.softmax(-1)
        return torch.tanh(self.o(torch.cat([weights @ source.states, h], -1), route)), weights

    __repr__ = hide_empty_sites


ATTENTIONS: dict[str, Callable[[int], OneVector | AfterCell]] = {
    "none": OneVector,
    "additive": lambda dim: AfterCell(dim, AdditiveScore(dim)),
    "multiplicative": lambda dim: AfterCell(dim, MultiplicativeScore(dim)),
}
