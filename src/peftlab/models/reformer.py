"""The Reformer: a Transformer for long sequences, as encoder and as causal decoder.

Kitaev et al. 2020 (arXiv 2001.04451): attention by hashing (`layers/lsh.py`) or among neighbours
(`layers/local.py`), reversible blocks (`layers/reversible.py`), a feed-forward network that may go chunk by chunk, and
axial positions (`layers/axial.py`).

    decoder = ReformerDecoder(ReformerConfig(vocab=256, dim=64, layers=4, heads=2, inner=256, max_length=8192))
    decoder(batch).logits                                       # [B, T, V]: position t speaks of token t + 1

Both streams of the reversible blocks begin as the embedding, and at the end they stand side by side: hidden states are
2·D wide. Rotations are drawn anew in every training pass, from torch's random state; in evaluation they come from
`seed`. A prefix has no place here: a key from outside has no bucket.

Published checkpoints of `transformers` are read and written, of ReformerModel and ReformerModelWithLMHead, with layers
"lsh" and "local" in any order, any chunk lengths, rounds and buckets. Not covered are other windows than one chunk
before and none after, positions that are not axial, the head of a classifier, and the output's bias, which is in its
files and which it does not use. Results are equal in evaluation, with its `hash_seed` as our seed, where it pads as we
do: with one chunk length at any length of text, with two at multiples of both.

Shapes: B rows, T tokens, n virtual tokens, D width of a stream, V vocabulary, g hypotheses, R = B·g.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from peftlab.data.batch import Batch
from peftlab.errors import UserError, unknown
from peftlab.layers.addition import States
from peftlab.layers.axial import AxialPositions
from peftlab.layers.embedding import Embedded, Embedding, Table
from peftlab.layers.linear import Linear
from peftlab.layers.local import LocalAttention
from peftlab.layers.lsh import Hashed, LSHAttention
from peftlab.layers.norm import NORMS
from peftlab.layers.residual import Absent
from peftlab.layers.reversible import Branch, Call, irreversible, reversible
from peftlab.layers.site import HeadSite, Route, check_route, name_sites
from peftlab.models.model import Model, Output
from peftlab.models.stack import BlocksConfig, inner_network, scatter
from peftlab.models.writer import Marks, Memory, Writer

LAYERS = {"lsh": "self_attention", "local": "local_attention"}
"""kind of attention → its name in a block"""


@dataclass(frozen=True, kw_only=True)
class ReformerConfig(BlocksConfig):
    """The choices of a Reformer."""

    vocab: int
    """number of tokens in the vocabulary"""
    attention: tuple[str, ...] = ("lsh",)
    """lsh or local, of the blocks in turn: ("local", "lsh") are every other one"""
    head_dim: int | None = None
    """width of a head; None: the heads share the model's"""
    chunk: int = 64
    """tokens of a chunk in the lsh layers"""
    rounds: int = 4
    """of hashing"""
    buckets: tuple[int, ...] | None = None
    """how many in a round, or two numbers whose product it is; None: about two for each chunk"""
    seed: int | None = None
    """of the rotations, in evaluation; None is 0"""
    local_chunk: int = 64
    """tokens of a chunk in the local layers"""
    max_length: int = 4096
    """number of positions"""
    axes: tuple[int, ...] | None = None
    """rows and columns of the positions' table; None: a square"""
    axis_dims: tuple[int, ...] | None = None
    """widths of a row's and of a column's vector; None: half of the model's each"""
    activation: str = "relu"
    """of the feed-forward network"""
    residual: Literal["pre"] = "pre"
    """norms stand before the sublayers: the way back through the sum needs it bare"""
    score: Literal["scaled"] = "scaled"
    """lsh: a product with a key of unit length; local: of one divided by √d"""
    dropout: float = 0.05
    """on embeddings and on each sublayer's output"""
    attention_dropout: float = 0.0
    """on attention weights of the lsh layers"""
    local_dropout: float = 0.05
    """on attention weights of the local layers"""
    start: int | None = None
    """the id of the token that stands before the first; None: a text to go on with does"""
    end: int = 0
    """the id of the token that ends a text"""
    pad: int = 0
    """the id of the padding token"""

    head: ClassVar[str] = "first"
    """a classifier is one linear map of the first token as it is"""
    segments: ClassVar[int] = 0
    """the second text of a pair is told by its marks alone"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("attention", "buckets", "axes", "axis_dims"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, tuple(given) if isinstance(given, list | tuple) else (given,))
        self.check_counts("vocab", "inner", "chunk", "rounds", "local_chunk", "max_length")
        self.check_counts(*(name for name in ("head_dim",) if getattr(self, name) is not None))
        self.check_dropouts("local_dropout")
        if not isinstance(self.seed, int | None):
            raise UserError(f"seed is {self.seed!r}: it must be a whole number")
        for name in ("axes", "axis_dims"):
            if any(type(value) is not int or value < 1 for value in getattr(self, name) or ()):
                raise UserError(f"{name} is {list(getattr(self, name))}: it must be two whole numbers of at least 1")
        if len(self.buckets or ()) > 2:
            raise UserError(f"buckets is {list(self.buckets or ())}: it must be one number, or two")
        self.check_choices(norm=("layer", "none"), residual=("pre",), score=("scaled",))
        for kind in self.attention or ("",):
            if kind not in LAYERS:
                raise unknown("attention", str(kind), LAYERS)
        for factor in self.buckets or ():
            if type(factor) is not int or factor < 2 or factor % 2:
                raise UserError(
                    f"buckets is {list(self.buckets or ())}: each number must be even, as −x is x's opposite"
                )
        if self.head_dim is None and self.dim % self.heads:
            raise UserError(f"{self.heads} heads do not divide a width of {self.dim}: give head_dim, or other heads")

    @property
    def embedding_dim(self) -> int:
        """As wide as the model."""
        return self.dim


class Reformer(Model):
    """What encoder and decoder share: embedding, reversible blocks, and a norm over both streams."""

    causal: ClassVar[bool]
    config: ReformerConfig

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        c = self.config = config
        positions = AxialPositions(c.max_length, c.dim, c.axes, c.axis_dims)
        self.embedding = Embedding(Table(c.vocab, c.dim), positions, None, Absent(), c.dropout)
        self.blocks = nn.ModuleList(build_block(c, kind, self.causal) for kind in islice(cycle(c.attention), c.layers))
        self.norm = NORMS[c.norm](2 * c.dim, c.norm_eps)

    def initialise(self) -> None:
        """Normal with `init_std`, positions too; biases zero, norms one."""
        if not self.embedding.words.weight.is_meta:
            scatter(self, self.config.init_std)
            for table in self.embedding.positions.parameters():
                nn.init.normal_(table, std=self.config.init_std)

    @property
    def room(self) -> int | None:
        return self.embedding.room

    @property
    def width(self) -> int:
        return 2 * self.config.dim

    def states(self, batch: Batch, route: Route | None = None) -> Embedded:
        """The last hidden states [B, n + T, 2·D], virtual tokens included."""
        check_route(route, len(batch))
        x, real, full, n, first, shift = self.embedding(batch, route)
        L, mask = len(self.blocks), None if full else real
        seeds = torch.randint(2**31, (L,)).tolist() if self.training else [self.config.seed or 0] * L
        blocks = [calls(block, mask, route, seed) for block, seed in zip(self.blocks, seeds, strict=True)]
        # what a route carries may learn, and only autograd itself knows the way to it
        run = reversible if route is None else irreversible
        both = torch.cat(run(x, x, blocks), -1)
        return Embedded(self.norm(both, real, route), real, full, n, first, shift)

    def chosen(self, adapters: Sequence[str | None] | None, attention: bool, route: Route | None) -> Route | None:
        """The route of what was asked for."""
        if attention:
            raise UserError("a Reformer has no attention to show: it never computes the scores of all pairs")
        return route if adapters is None else self.route(adapters, stable=False)


class ReformerEncoder(Reformer):
    """Reads a whole sequence, and has the site of a task's head."""

    causal = False

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__(config)
        self.head = HeadSite()
        name_sites(self, "encoder")
        self.initialise()

    def forward(
        self,
        batch: Batch,
        adapters: Sequence[str | None] | None = None,
        attention: bool = False,
        route: Route | None = None,
        logits_only: bool = False,
    ) -> Output:
        """As an `Encoder`'s; every token is followed to the end, as any may be in the chunk of one that is read."""
        route = self.chosen(adapters, attention, route)
        x, real, _, n, first, _ = self.states(batch, route)
        state = x[torch.arange(len(batch), device=x.device), first]
        scores, counts = self.head(States(state, x[:, n:], real[:, n:], None), route) or (None, None)
        return Output(x[:, n:], scores=scores, counts=counts)


class ReformerDecoder(Reformer, Writer):
    """Writes: the scores of the vocabulary are read from both streams."""

    causal = True

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__(config)
        self.marks, self.max_length = Marks(config.start, config.end, config.pad), config.max_length
        self.vocabulary = Linear(2 * config.dim, config.vocab, bias=False)
        name_sites(self, "decoder")
        self.initialise()

    def forward(
        self,
        batch: Batch,
        adapters: Sequence[str | None] | None = None,
        attention: bool = False,
        route: Route | None = None,
    ) -> Output:
        """The scores of the token that follows each of the batch's."""
        route = self.chosen(adapters, attention, route)
        x, _, _, n, _, _ = self.states(batch, route)
        return Output(x[:, n:], scores=self.read(x[:, n:], route))

    def hidden(self, batch: Batch) -> Tensor:
        """[B, T, 2·D] the last hidden states of the batch's tokens, which a loss reads at real ones alone."""
        x, _, _, n, _, _ = self.states(batch)
        return x[:, n:]

    def read(self, hidden: Tensor, route: Route | None = None) -> Tensor:
        """[..., 2·D] → [..., V] the scores of all tokens."""
        return self.vocabulary(hidden, route)

    def begin(
        self, batch: Batch, adapters: Sequence[str | None] | None = None, room: int = 0
    ) -> tuple[ReformerMemory, Tensor]:
        memory = ReformerMemory(batch, adapters)
        return memory, self.last(memory)

    def next(self, tokens: Tensor, memory: Memory) -> Tensor:
        assert isinstance(memory, ReformerMemory)
        memory.add(tokens)
        return self.last(memory)

    def last(self, memory: ReformerMemory) -> Tensor:
        """[R, V] the scores of the token that follows each row."""
        route = None if memory.names is None else self.route(memory.names, stable=False)
        return self.read(self.states(Batch(memory.ids, memory.mask), route).x[:, -1], route)


class ReformerMemory(Memory):
    """The text so far, which is read again for each token: a new one moves the chunks of all.

    So does padding: beside a longer text a row is hashed into other buckets and cut at other places, and may go on
    otherwise than alone. Who wants the same text always gives one row at a time, as `peftlab predict` does.
    """

    def __init__(self, batch: Batch, names: Sequence[str | None] | None) -> None:
        order = batch.mask.int().argsort(dim=1, stable=True)  # padding to the left, so that rows grow at one end
        self.ids, self.mask = batch.ids.gather(1, order), batch.mask.gather(1, order)
        self.names = None if names is None else list(names)
        """of each row's adapter"""
        self.hypotheses = 1

    def add(self, tokens: Tensor) -> None:
        """A token [R] more for each row."""
        self.ids = torch.cat([self.ids, tokens[:, None]], 1)
        self.mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], 1)

    def widen(self, hypotheses: int) -> None:
        self.hypotheses *= hypotheses
        self.take(torch.arange(len(self.ids), device=self.ids.device).repeat_interleave(hypotheses))

    def reorder(self, rows: Tensor) -> None:
        self.take(rows)

    def keep(self, sources: Tensor) -> None:
        g = self.hypotheses
        self.take((sources[:, None] * g + torch.arange(g, device=sources.device)).flatten())

    def take(self, rows: Tensor) -> None:
        """Go on with these rows."""
        self.ids, self.mask = self.ids[rows], self.mask[rows]
        self.names = None if self.names is None else [self.names[row] for row in rows.tolist()]


def build_block(config: ReformerConfig, kind: str, causal: bool) -> nn.ModuleDict:
    """f and g: attention of a kind, and the feed-forward network."""
    c = config
    attention: nn.Module
    if kind == "lsh":
        attention = LSHAttention(
            c.dim, c.heads, c.head_dim, c.chunk, c.rounds, c.buckets, causal, c.seed or 0, c.attention_dropout
        )
    else:
        attention = LocalAttention(c.dim, c.heads, c.head_dim, c.local_chunk, causal, c.local_dropout)
    sublayers = {LAYERS[kind]: attention, "feedforward": inner_network(c)}
    return nn.ModuleDict(
        {name: Branch(c.dim, part, NORMS[c.norm](c.dim, c.norm_eps), c.dropout) for name, part in sublayers.items()}
    )


def calls(block: nn.Module, mask: Tensor | None, route: Route | None, seed: int) -> tuple[Call, Call]:
    """f and g with what they are given in a pass; what is hashed is kept for the way back."""
    f, g = block.children()
    hashed = {"hashed": Hashed(seed)} if isinstance(f.sublayer, LSHAttention) else {}
    return Call(f, {"mask": mask, "route": route, **hashed}), Call(g, {"route": route})
