"""The Transformer's encoder; BERT, RoBERTa, ELECTRA and DistilBERT are configurations of it, and ViT of its blocks.

Vaswani et al. 2017 (arXiv 1706.03762); Devlin et al. 2018 (arXiv 1810.04805). Every choice that the ablations turn is
a field of `EncoderConfig`, decided when the module is built.

    encoder = Encoder(EncoderConfig(vocab=1000, dim=64, layers=2, heads=4, inner=128))
    encoder(batch).hidden

Shapes: B rows, T tokens, n virtual tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from peftlab.data.batch import Batch, Images
from peftlab.errors import UserError
from peftlab.layers import masks
from peftlab.layers.addition import States
from peftlab.layers.attention import Look
from peftlab.layers.embedding import Embedded, Embedding
from peftlab.layers.linear import Linear
from peftlab.layers.residual import Residual
from peftlab.layers.site import HeadSite, Route, Site, check_route, name_sites
from peftlab.models.model import Model, Output
from peftlab.models.stack import (
    BlocksConfig,
    StackConfig,
    build_attention,
    build_embedding,
    build_feedforward,
    initialise,
    last_norm,
)

HEADS = ("linear", "tanh", "gelu", "relu")


@dataclass(frozen=True)
class EncoderConfig(StackConfig):
    """The choices of an encoder."""

    segments: int = 2
    """number of segment vectors; 0 is none"""
    pooler: bool = False
    """BERT's tanh layer on the first token"""
    head: Literal["linear", "tanh", "gelu", "relu"] = "linear"
    """the family's classifier: one linear map of the pooled token, or a dense layer with an activation before it"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choices(head=HEADS)
        self.check_tokens("pad")


class Block(nn.Module):
    """Self-attention, then feed-forward, each in its residual wrapper."""

    def __init__(self, self_attention: Residual, feedforward: nn.Module) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.feedforward = feedforward

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        real: Tensor | None,
        route: Route | None = None,
        looks: list[Look] | None = None,
        among: Tensor | None = None,
    ) -> Tensor:
        """x [B, T, D]; mask [B, 1, 1, T] or None; real [B, T] True at real tokens.

        With `among` [B, T, D] only some of its tokens are followed further: x [B, few, D].
        """
        x = self.self_attention(x, real, route, among, mask=mask, looks=looks)
        return self.feedforward(x, real, route)


class Pooler(nn.Module):
    """tanh(Wx + b) of the first token."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dense = Linear(dim, dim)

    def forward(self, x: Tensor, route: Route | None = None) -> Tensor:
        return torch.tanh(self.dense(x, route))


@dataclass(frozen=True)
class Begun:
    """Rows that the embedding and the first blocks have read already, in the place of a batch."""

    states: Embedded
    """what enters the next block"""
    block: int
    """its number from the input; behind the last one comes the head"""

    @classmethod
    def of(cls, rows: Sequence[Tensor], block: int) -> Begun:
        """From the states [T, D] of each row, on the CPU, where they are kept; padding is decided here."""
        x, lengths = pad_sequence(list(rows), batch_first=True), torch.tensor([len(row) for row in rows])
        mask = torch.arange(x.shape[1]) < lengths[:, None]
        return cls(Embedded(x, mask, bool(mask.all()), 0, torch.zeros_like(lengths), None), block)

    def rows(self) -> list[Tensor]:
        """The states [T, D] of each row, without padding."""
        x, mask = self.states.x, self.states.mask
        return list(x[mask].split(mask.sum(1).tolist()))

    def __len__(self) -> int:
        return len(self.states.x)

    def to(self, device: torch.device | str) -> Begun:
        """The same on a device."""
        x, mask, _, _, first, _ = self.states
        return replace(self, states=self.states._replace(x=x.to(device), mask=mask.to(device), first=first.to(device)))


class Reader(Model):
    """Reads a whole sequence at once: embedding, blocks, an optional pooler, and the site of a task's head."""

    def __init__(self, config: BlocksConfig, embedding: Embedding, pooler: Pooler | None) -> None:
        super().__init__()
        self.config = config
        self.embedding = embedding
        self.blocks = nn.ModuleList(build_block(config) for _ in range(config.layers))
        self.norm = last_norm(config)
        self.pooler = pooler
        self.head = HeadSite()
        name_sites(self, "encoder")

    def forward(
        self,
        batch: Batch | Images | Begun,
        adapters: Sequence[str | None] | None = None,
        attention: bool = False,
        route: Route | None = None,
        logits_only: bool = False,
    ) -> Output:
        """The hidden states of a batch; `adapters` names one a row (or None), `route` is the same made beforehand.

        Whoever wants the logits and nothing else says so: where the heads read the first token alone, the last block
        then follows no other, which saves nearly all of it.
        """
        if adapters is not None:
            route = self.route(adapters, stable=False)
        looks: list[Look] | None = [] if attention else None
        narrow = logits_only and self.head.read_first(route) and looks is None and self.config.norm != "batch"
        x, real, _, n, first, _ = self.states(batch, route, looks, narrow)
        state = x[torch.arange(len(batch), device=x.device), first]  # [B, D]
        pooled = None if self.pooler is None else self.pooler(state, route)
        states = States(state, x[:, n:], real[:, n:], pooled)
        scores, counts = self.head(states, route) or (None, None)
        maps = None if looks is None else tuple(look.weights[:, :, n:] for look in looks)
        return Output(x[:, n:], pooled, maps, scores=scores, counts=counts)

    def states(
        self,
        batch: Batch | Images | Begun,
        route: Route | None = None,
        looks: list[Look] | None = None,
        narrow: bool = False,
        at: Tensor | None = None,
    ) -> Embedded:
        """The last hidden states, virtual tokens included; `narrow`: of each row's first token alone; `at` [B, k]: of
        these tokens alone.
        """
        check_route(route, len(batch))
        if isinstance(batch, Begun):
            entering, blocks = batch.states, list(self.blocks)[batch.block :]
        else:
            entering, blocks = self.embedding(batch, route), list(self.blocks)
        x, real, full, n, first, shift = entering
        mask = None if full else masks.padding(real)
        places = first[:, None] if narrow else None if at is None else n + at
        last = blocks.pop() if places is not None and blocks else None
        for block in blocks:
            x = block(x, mask, real, route, looks)
        if places is not None:
            few = x[torch.arange(len(batch), device=x.device)[:, None], places]
            x = few if last is None else last(few, mask, None, route, among=x)
            n, first, real = 0, torch.zeros_like(first), torch.ones_like(x[..., 0], dtype=torch.bool)
        return Embedded(self.norm(x, real, route), real, full, n, first, shift)

    def begin(self, batch: Batch | Images, block: int) -> Begun:
        """What enters a block; given to `forward`, the model goes on from there."""
        states = self.embedding(batch)
        x, mask = states.x, None if states.full else masks.padding(states.mask)
        for below in list(self.blocks)[:block]:
            x = below(x, mask, states.mask)
        return Begun(states._replace(x=x), block)

    def shorten(self, layers: int) -> None:
        """Keep the first blocks alone."""
        if not 1 <= layers <= len(self.blocks):
            raise UserError(f"layers is {layers} and there are {len(self.blocks)} blocks: choose from 1 to all of them")
        del self.blocks[layers:]
        self.config = replace(self.config, layers=layers)

    @property
    def frozen_blocks(self) -> int:
        """The number of the lowest block that learns: what enters it is, without dropout, a fixed function of a row."""
        if self.config.norm == "batch":  # its averages move with all that is read
            return 0
        stages = [self.embedding, *self.blocks]
        return max(0, next((i for i, stage in enumerate(stages) if learns(stage)), len(stages)) - 1)


class Encoder(Reader):
    """A reader of tokens."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config, build_embedding(config), Pooler(config.dim) if config.pooler else None)
        if not self.embedding.words.weight.is_meta:
            initialise(self, config)

    @property
    def room(self) -> int | None:
        return self.embedding.room


def learns(part: nn.Module) -> bool:
    """Whether anything in a part of a model trains, or was added to it."""
    added = any(site.active for site in part.modules() if isinstance(site, Site))
    return added or any(parameter.requires_grad for parameter in part.parameters())


def build_block(config: BlocksConfig) -> Block:
    """One block of a configuration."""
    return Block(build_attention(config), build_feedforward(config))
