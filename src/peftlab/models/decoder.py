"""The Transformer's decoder: each token sees those before it, and where it has cross-attention also a source.

Vaswani et al. 2017 (arXiv 1706.03762), section 3.1. Alone it is a language model, and GPT-2 (Radford et al. 2019) a
configuration of it; with cross-attention it is half of `models/seq2seq.py`.

    decoder = Decoder(DecoderConfig(vocab=1000, dim=64, layers=2, heads=4, inner=128, residual="pre"))
    decoder(batch).logits                                    # [B, T, V]: position t speaks of token t + 1

Shapes: B rows, T tokens, S tokens of the source, n virtual tokens, g hypotheses, t keys so far, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from peftlab import native
from peftlab.data.batch import Batch
from peftlab.errors import UserError
from peftlab.layers import masks
from peftlab.layers.attention import Look
from peftlab.layers.cache import Fixed, Growing, ancestors
from peftlab.layers.embedding import Table
from peftlab.layers.linear import Linear, faster, product
from peftlab.layers.residual import Absent, Residual
from peftlab.layers.site import Route, check_route, name_sites
from peftlab.models.model import Output
from peftlab.models.stack import (
    StackConfig,
    build_attention,
    build_embedding,
    build_feedforward,
    initialise,
    last_norm,
)
from peftlab.models.stepping import Stepper
from peftlab.models.writer import Choice, Marks, Memory, Writer


@dataclass(frozen=True)
class DecoderConfig(StackConfig):
    """The choices of a decoder."""

    cross: bool = False
    """whether it attends to a source"""
    tied: bool = True
    """whether the scores of tokens are products with the embedding's own vectors"""
    output_bias: bool = False
    """whether a bias that does not train is added to the scores (Marian, BART)"""
    start: int | None = None
    """the id of the token that stands before the first; None: a text to go on with does"""
    end: int = 0
    """the id of the token that ends a text"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tied and self.embedding_dim not in (None, self.dim):
            widths = f"embedding_dim is {self.embedding_dim} and dim is {self.dim}"
            raise UserError(f"{widths}: a tied output needs them equal, or tied=False")


class Source(NamedTuple):
    """What cross-attention looks at."""

    states: Tensor | None
    """[B, S, D], virtual tokens included; None: their keys and values are in the cache"""
    mask: Tensor | None
    """[B, 1, 1, S] True at real tokens; None: all are"""


class Looks(NamedTuple):
    """Where the attention of those who look is left."""

    own: list[Look]
    cross: list[Look]


class DecoderBlock(nn.Module):
    """Self-attention, cross-attention where there is a source, feed-forward, each in its residual wrapper."""

    def __init__(self, self_attention: Residual, cross_attention: nn.Module, feedforward: nn.Module) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.cross_attention = cross_attention
        self.feedforward = feedforward

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        source: Source,
        real: Tensor | None = None,
        route: Route | None = None,
        looks: Looks | None = None,
        kept: tuple[Growing, Fixed] | None = None,
    ) -> Tensor:
        """x [B, T, D]; mask [B, 1, T, t]; real [B, T] True at real tokens."""
        own, cross = kept or (None, None)
        x = self.self_attention(x, real, route, mask=mask, looks=looks and looks.own, kept=own)
        seen = {"memory": source.states, "mask": source.mask, "looks": looks and looks.cross, "kept": cross}
        x = self.cross_attention(x, real, route, **seen)
        return self.feedforward(x, real, route)


class DecoderMemory(Memory):
    """The cache of every layer, and who may see what of it. Hypotheses are tokens of their source's row."""

    def __init__(self, layers: int, room: int, choice: Choice) -> None:
        self.kept = [(Growing(room), Fixed()) for _ in range(layers)]
        self.choice = choice
        self.source = Source(None, None)
        self.seen: Tensor | None = None
        """[B, g, t] which keys a hypothesis sees; None: there is one a row, and it sees all"""
        self.hypotheses = 1
        self.position = torch.zeros(0)
        """[B] of the next token"""
        self.longest = 0
        """the largest of them"""
        self.stepper: Stepper | None = None
        """the short way through the blocks, where there is one"""
        self.spent: Tensor | None = None
        """scores that may be written over"""

    def widen(self, hypotheses: int) -> None:
        if hypotheses > 1:
            B, t = len(self.position), self.kept[0][0].length
            seen = self.position.new_ones(B, 1, t, dtype=torch.bool) if self.seen is None else self.seen
            self.seen, self.hypotheses = seen.expand(-1, hypotheses, -1), hypotheses
            for own, _ in self.kept:
                own.widen(hypotheses)

    def reorder(self, rows: Tensor) -> None:
        if self.seen is not None:
            self.seen = self.seen.flatten(0, 1)[rows].view_as(self.seen)

    def keep(self, sources: Tensor) -> None:
        for own, cross in self.kept:
            own.keep(sources)
            cross.keep(sources)
        self.position = self.position[sources]
        self.seen = None if self.seen is None else self.seen[sources]
        self.source = Source(None, None if self.source.mask is None else self.source.mask[sources])
        self.choice = self.choice.keep(sources)

    def spend(self, scores: Tensor) -> None:
        self.spent = scores

    def step(self) -> Tensor | None:
        """A token more for each hypothesis; gives the mask [B, 1, g, t + g]."""
        if self.seen is not None:
            self.seen = ancestors(self.seen, self.hypotheses)
        return None if self.seen is None else self.seen[:, None]


class Decoder(Writer):
    """Embedding, blocks, and the scores of the vocabulary."""

    def __init__(self, config: DecoderConfig, words: Table | None = None) -> None:
        super().__init__()
        self.config = config
        self.marks, self.max_length = Marks(config.start, config.end, config.pad), config.max_length
        self.embedding = build_embedding(config, words)
        self.blocks = nn.ModuleList(build_block(config) for _ in range(config.layers))
        self.norm = last_norm(config)
        self.vocabulary = None if config.tied else Linear(config.dim, config.vocab, bias=False)
        self.register_buffer("bias", torch.zeros(1, config.vocab) if config.output_bias else None)
        self.bias: Tensor | None
        name_sites(self, "decoder")
        if not self.embedding.words.weight.is_meta:
            config.check_tokens("pad")  # not of a published GPT-2, whose end may be one of a larger vocabulary
            initialise(self, config)

    @property
    def room(self) -> int | None:
        return self.embedding.room

    def forward(
        self,
        batch: Batch,
        adapters: Sequence[str | None] | None = None,
        attention: bool = False,
        route: Route | None = None,
    ) -> Output:
        """The scores of the token that follows each of the batch's; `adapters` as for an encoder."""
        if adapters is not None:
            route = self.route(adapters, stable=False)
        looks = Looks([], []) if attention else None
        x, n = self.states(batch, Source(None, None), route, looks)
        maps = None if looks is None else tuple(look.weights[:, :, n:] for look in looks.own)
        return Output(x[:, n:], attention=maps, scores=self.read(x[:, n:], route))

    def states(
        self, batch: Batch, source: Source, route: Route | None = None, looks: Looks | None = None
    ) -> tuple[Tensor, int]:
        """[B, n + T, D] the last hidden states, and n."""
        check_route(route, len(batch))
        x, real, full, n, _, _ = self.embedding(batch, route)
        mask = causal(real, full)
        for block in self.blocks:
            x = block(x, mask, source, real, route, looks)
        return self.norm(x, real, route), n

    def hidden(self, batch: Batch) -> Tensor:
        """[B, T, D] the last hidden states of the batch's tokens, which a loss reads at real ones alone."""
        x, n = self.states(batch, Source(None, None))
        return x[:, n:]

    def read(
        self, hidden: Tensor, route: Route | None = None, again: bool = False, over: Tensor | None = None
    ) -> Tensor:
        """[..., D] → [..., V] the scores of all tokens; `again` where more will be asked for of the same weights, and
        `over` what they may be written over.
        """
        words = self.embedding.words.weight
        if self.vocabulary is not None:
            scores = self.vocabulary(hidden, route)
        elif self.bias is not None and native.takes(self.bias) and faster(hidden, words):
            return product(hidden, words, self.bias, again, over)
        else:
            scores = product(hidden, words, None, again, over)
        if self.bias is None:
            return scores
        # in place only where that is the same: bf16 and fp32 add up to fp32
        return scores.add_(self.bias) if scores.dtype == self.bias.dtype else scores + self.bias

    def begin(
        self, batch: Batch, adapters: Sequence[str | None] | None = None, room: int = 0
    ) -> tuple[DecoderMemory, Tensor]:
        return self.prefill(batch, Source(None, None), Choice.of(self, adapters), room)

    def prefill(self, batch: Batch, source: Source, choice: Choice, room: int) -> tuple[DecoderMemory, Tensor]:
        """Read the tokens that are given, and keep what later ones need of them."""
        route = choice.route
        check_route(route, len(batch))
        x, real, full, _, _, shift = self.embedding(batch, route)
        memory = DecoderMemory(len(self.blocks), x.shape[1] + room, choice)
        mask = causal(real, full)
        for block, kept in zip(self.blocks, memory.kept, strict=True):
            x = block(x, mask, source, real, route, kept=kept)
        memory.source = Source(None, source.mask)
        memory.seen = None if full else real[:, None]
        memory.position = batch.mask.sum(1) + (0 if shift is None else shift)
        memory.longest = int(memory.position.max())
        memory.stepper = Stepper.of(self.blocks, x) if route is None else None
        native.forget(self.embedding.words.weight)
        last = x.shape[1] - 1 - batch.mask.int().flip(1).argmax(1)
        rows = torch.arange(len(batch), device=x.device)
        return memory, self.read(self.norm(x, real, route)[rows, last], route)

    def next(self, tokens: Tensor, memory: Memory) -> Tensor:
        assert isinstance(memory, DecoderMemory)
        if memory.longest >= self.config.max_length:
            raise UserError(f"the model has {self.config.max_length} positions and they are used up: write less")
        route = memory.choice.route
        ids = tokens.view(-1, memory.hypotheses)
        x = self.embedding.at(ids, memory.position[:, None].expand_as(ids), route)
        mask = memory.step()
        if memory.stepper is not None:
            x = memory.stepper(x, mask, memory.source.mask, memory.kept)
        else:
            for block, kept in zip(self.blocks, memory.kept, strict=True):
                x = block(x, mask, memory.source, None, route, kept=kept)
        memory.position = memory.position + 1
        memory.longest += 1
        spent, memory.spent = memory.spent, None
        return self.read(self.norm(x, None, route), route, again=True, over=spent).flatten(0, 1)


def causal(real: Tensor, full: bool) -> Tensor:
    """[B or 1, 1, T, T]: each token sees the real ones up to itself."""
    mask = masks.look_ahead(real.shape[1], device=real.device)
    return mask if full else mask & masks.padding(real)


def build_block(config: DecoderConfig) -> DecoderBlock:
    """One block of a configuration."""
    return DecoderBlock(
        build_attention(config), build_attention(config) if config.cross else Absent(), build_feedforward(config)
    )
