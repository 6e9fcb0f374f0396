"""Recurrent sequence to sequence: an encoder that reads both ways, a bridge, and a decoder with or without attention.

Cho et al. 2014 (arXiv 1406.1078) without, Bahdanau et al. 2015 (arXiv 1409.0473) and Luong et al. 2015 (arXiv
1508.04025) with it; the parts are in `layers/recurrent.py`. It is trained and searched like every other writer.

    model = RecurrentSeq2Seq(RecurrentConfig(vocab=1000, dim=64, cell="lstm", attention="additive"))
    model(pair).scores                                  # teacher forcing
    memory, scores = model.begin(pair.source)           # one token after the other

Each direction of the encoder is D/2 wide, so that its states are as wide as the decoder's. Where the two directions of
the top layer end is all that the bridge is given, and what it gives is the start of every layer of the decoder: the one
vector in which a model without attention has to keep the whole source.

Shapes: B sources, g hypotheses of each, R = B·g rows, S tokens of a source, T of a target, E embedding width, D width,
V tokens of the vocabulary, L layers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peftlab.data.batch import Batch, Pair
from peftlab.errors import UserError, unknown
from peftlab.layers.dropout import Dropout
from peftlab.layers.embedding import Table, outside
from peftlab.layers.linear import Linear
from peftlab.layers.recurrent import ATTENTIONS, CELLS, Source, read_both_ways
from peftlab.layers.site import Route, check_route, name_sites
from peftlab.models.model import Output
from peftlab.models.writer import Choice, Marks, Memory, Writer

State = tuple[Tensor, ...]
"""[L, R, D] of the decoder's cells: h, and an LSTM's c after it"""


@dataclass(frozen=True)
class RecurrentConfig:
    """The choices of a recurrent model."""

    vocab: int
    """number of tokens in the vocabulary that source and target share, and with it one embedding"""
    dim: int
    """width of the decoder's state; each direction of the encoder has half of it"""
    embedding_dim: int | None = None
    """width of the embedding where it differs from the state's"""
    layers: int = 1
    """number of cells above each other, in the encoder and in the decoder"""
    cell: Literal["rnn", "gru", "lstm"] = "gru"
    """what carries the state from token to token"""
    attention: Literal["none", "additive", "multiplicative"] = "additive"
    """the score with which the decoder looks at the source; with none, one vector tells it all"""
    dropout: float = 0.1
    """on embeddings, between layers, and on what the vocabulary is read from"""
    tied: bool = True
    """whether the output matrix is the embedding's; their widths must then be equal"""
    sampling: float = 0.0
    """scheduled sampling (Bengio et al. 2015, arXiv 1506.03099): the probability with which, in training, the decoder
    is given its own best token in the place of the target's; then it goes token by token, and else one call of the
    kernel serves them all"""
    pad: int = 0
    """the id of the padding token"""
    start: int = 1
    """the id of the token before the first one of a target"""
    end: int = 2
    """the id of the token after the last one"""

    def __post_init__(self) -> None:
        sizes = {"vocab": self.vocab, "dim": self.dim, "layers": self.layers, "embedding_dim": self.inputs}
        for name, value in sizes.items():
            if type(value) is not int or value < 1:
                raise UserError(f"{name} is {value!r}: it must be a whole number of at least 1")
        if self.dim % 2:
            raise UserError(f"dim is {self.dim}: it must be even, for each direction of the encoder has half of it")
        choices: dict[str, Collection[str]] = {"cell": CELLS, "attention": ATTENTIONS}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise unknown(name, str(getattr(self, name)), allowed)
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout is {self.dropout!r}: it must be a number from 0 to below 1")
        if not 0 <= self.sampling <= 1:
            raise UserError(f"sampling is {self.sampling!r}: it must be a probability, a number from 0 to 1")
        if self.tied and self.inputs != self.dim:
            raise UserError(
                f"embedding_dim is {self.inputs} and dim is {self.dim}: a tied output needs them equal, or tied=False"
            )
        for name, mark in (("pad", self.pad), ("start", self.start), ("end", self.end)):
            if type(mark) is not int or not 0 <= mark < self.vocab:
                raise UserError(f"{name} is {mark!r}: it must be a token of the vocabulary, 0 to {self.vocab - 1}")

    @property
    def inputs(self) -> int:
        """E, the width of the embedding."""
        return self.dim if self.embedding_dim is None else self.embedding_dim


class RecurrentMemory(Memory):
    """The decoder's state, a row a hypothesis; what is known of a source is kept once, for all its hypotheses."""

    def __init__(self, source: Source, state: State, choice: Choice) -> None:
        self.source, self.state, self.choice = source, state, choice

    def widen(self, hypotheses: int) -> None:
        self.state = tuple(part.repeat_interleave(hypotheses, 1) for part in self.state)

    def reorder(self, rows: Tensor) -> None:
        self.state = tuple(part[:, rows] for part in self.state)

    def keep(self, sources: Tensor) -> None:
        B = len(self.source.vector)
        self.state = tuple(part.unflatten(1, (B, -1))[:, sources].flatten(1, 2) for part in self.state)
        self.source = self.source.take(sources)
        self.choice = self.choice.keep(sources)


class RecurrentSeq2Seq(Writer):
    """Reads a source into states, and writes a target from them."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        self.marks = Marks(config.start, config.end, config.pad)
        self.max_length, self.sampling = None, config.sampling
        E, D, L = config.inputs, config.dim, config.layers
        cells, between = CELLS[config.cell], config.dropout if L > 1 else 0.0
        self.words = Table(config.vocab, E)
        self.dropout = Dropout(config.dropout)
        self.encoder = cells(E, D // 2, L, batch_first=True, bidirectional=True, dropout=between)
        self.bridge = Linear(D, D)
        self.cross_attention = ATTENTIONS[config.attention](D)
        self.decoder = cells(E + self.cross_attention.extra, D, L, batch_first=True, dropout=between)
        # where it is tied there is no site: a change merged into that matrix would change the embedding, too
        self.vocabulary = None if config.tied else Linear(D, config.vocab, bias=False)
        name_sites(self, "decoder")
        self.initialise()

    @property
    def shape(self) -> str:
        c = self.config
        return f"{c.cell} with {c.attention} attention, {c.layers} layers, {c.dim} wide, {c.vocab:,} tokens"

    def forward(
        self,
        pair: Pair,
        adapters: Sequence[str | None] | None = None,
        attention: bool = False,
        route: Route | None = None,
    ) -> Output:
        """Teacher forcing: position t of the target, which begins with the start mark, speaks of token t + 1."""
        if adapters is not None:
            route = self.route(adapters, stable=False)
        output = self.states(pair, attention, route)
        return replace(output, scores=self.read(output.hidden, route))

    def states(self, pair: Pair, attention: bool = False, route: Route | None = None) -> Output:
        """The same without the scores, which a loss reads at real tokens alone."""
        if attention and self.config.attention == "none":
            raise UserError("this model has no attention to show: its decoder is told the source in one vector only")
        self.check_ids(pair.target)
        if not bool(pair.target.mask[:, 0].all()):
            raise UserError("a target begins with padding: its first token must be the start mark, padding comes last")
        source = self.encode(pair.source, route)
        if self.sampling and self.training:
            hidden, weights = self.follow_itself(pair.target.ids, source, route)
        else:
            h, _ = self.run(self.embed(pair.target.ids, source), self.start(source))
            hidden, weights = self.look(h, source, route)
        return Output(hidden, cross=(weights[:, None],) if attention and weights is not None else None)

    def begin(
        self, batch: Batch, adapters: Sequence[str | None] | None = None, room: int = 0
    ) -> tuple[RecurrentMemory, Tensor]:
        choice = Choice.of(self, adapters)
        source = self.encode(batch, choice.route)
        memory = RecurrentMemory(source, self.start(source), choice)
        return memory, self.next(torch.full_like(batch.ids[:, 0], self.config.start), memory)

    def next(self, tokens: Tensor, memory: Memory) -> Tensor:
        assert isinstance(memory, RecurrentMemory)
        hidden, _ = self.step(tokens, memory)
        return self.read(hidden, memory.choice.route).flatten(0, 1)

    def read(self, hidden: Tensor, route: Route | None = None) -> Tensor:
        """The scores [..., V] of hidden states [..., D]."""
        return F.linear(hidden, self.words.weight) if self.vocabulary is None else self.vocabulary(hidden, route)

    def encode(self, batch: Batch, route: Route | None) -> Source:
        """What the decoder knows of the sources."""
        self.check_ids(batch)
        check_route(route, len(batch))
        if not bool((real := batch.mask.any(1)).all()):
            raise UserError(f"row {int(real.int().argmin())} of the source has no token: give each at least one")
        mask = None if batch.full else batch.mask
        states, ends = read_both_ways(self.encoder, self.vectors(batch.ids), mask)
        return self.cross_attention.source(torch.tanh(self.bridge(ends, route)), states, mask, route)

    def start(self, source: Source) -> State:
        """The decoder's state before the first token: the one vector, in every layer and in an LSTM's both states."""
        state = source.vector.expand(self.config.layers, -1, -1).contiguous()
        return (state, state) if self.config.cell == "lstm" else (state,)

    def embed(self, tokens: Tensor, source: Source) -> Tensor:
        """What the cells are given for tokens [B, T]."""
        return self.cross_attention.receive(self.vectors(tokens), source)

    def vectors(self, ids: Tensor) -> Tensor:
        """[B, T] → [B, T, E], times √E as in the first Transformer: what is small enough to score tokens is too faint
        for a cell to learn from.
        """
        return self.dropout(self.words(ids) * self.config.inputs**0.5)

    def run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """The decoder's cells over inputs [R, T, …] → [R, T, D] and the state after them."""
        last: Any
        h, last = self.decoder(x, state if len(state) > 1 else state[0])
        return h, last if isinstance(last, tuple) else (last,)

    def look(self, h: Tensor, source: Source, route: Route | None) -> tuple[Tensor, Tensor | None]:
        """From the cells' states [B, T, D] to the hidden ones, and where they looked [B, T, S]."""
        hidden, weights = self.cross_attention(h, source, route)
        return self.dropout(hidden), weights

    def step(self, tokens: Tensor, memory: RecurrentMemory) -> tuple[Tensor, Tensor | None]:
        """One token [R] further: the hidden states [B, g, D], and where they looked [B, g, S].

        The hypotheses of a source stand where the tokens of a target do elsewhere, and so they share its keys.
        """
        B = len(memory.source.vector)
        x = self.embed(tokens.reshape(B, -1), memory.source)
        h, memory.state = self.run(x.flatten(0, 1)[:, None], memory.state)
        return self.look(h[:, 0].unflatten(0, (B, -1)), memory.source, memory.choice.route)

    def follow_itself(self, ids: Tensor, source: Source, route: Route | None) -> tuple[Tensor, Tensor | None]:
        """The hidden states [B, T, D] of targets [B, T] in which some tokens are the decoder's own."""
        memory, tokens = RecurrentMemory(source, self.start(source), Choice(route)), ids[:, 0]
        states: list[Tensor] = []
        looks: list[Tensor] = []
        for t in range(ids.shape[1]):
            if t > 0:
                own = self.read(states[-1], route)[:, 0].argmax(-1)
                tokens = ids[:, t].where(torch.rand(len(ids), device=ids.device) >= self.sampling, own)
            hidden, weights = self.step(tokens, memory)
            states.append(hidden)
            looks += [] if weights is None else [weights]
        return torch.cat(states, 1), torch.cat(looks, 1) if looks else None

    def check_ids(self, batch: Batch) -> None:
        """The user's mistake that a lookup would answer with an index error."""
        if (wrong := outside(batch.ids, self.words)) is not None:
            raise UserError(f"token id {wrong} is outside the vocabulary: ids go from 0 to {self.config.vocab - 1}")

    @torch.no_grad()
    def initialise(self) -> None:
        """Uniform in ±1/√D, torch's rule for its cells and at a width of 100 the ±0.1 of Luong et al.; biases zero,
        but one at an LSTM's forget gate, so that at first it keeps what it has (Jozefowicz et al. 2015). The vectors of
        tokens have about length one.
        """
        bound = self.config.dim**-0.5
        for name, parameter in self.named_parameters():
            kind = name.rpartition(".")[2]
            if kind.startswith("weight"):
                nn.init.uniform_(parameter, -bound, bound)
            else:
                nn.init.zeros_(parameter)
            if self.config.cell == "lstm" and kind.startswith("bias_ih"):
                parameter.chunk(4)[1].fill_(1.0)
        nn.init.normal_(self.words.weight, std=self.config.inputs**-0.5)
