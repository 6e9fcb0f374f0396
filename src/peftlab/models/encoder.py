"""The Transformer's encoder; BERT, RoBERTa, ELECTRA and DistilBERT are configurations of it.

Vaswani et al. 2017 (arXiv 1706.03762); Devlin et al. 2018 (arXiv 1810.04805). Every choice that the ablations turn is
a field of `EncoderConfig`, decided when the module is built.

    encoder = Encoder(EncoderConfig(vocab=1000, dim=64, layers=2, heads=4, inner=128))
    encoder(batch).hidden

Shapes: B rows, T tokens, n virtual tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from peftlab.data.batch import Batch
from peftlab.errors import UserError, unknown
from peftlab.layers import masks
from peftlab.layers.addition import States
from peftlab.layers.attention import SCORES, Attention, Look
from peftlab.layers.embedding import Embedding, LearnedPositions, NoPositions, SinusoidalPositions, Table
from peftlab.layers.feedforward import FeedForward
from peftlab.layers.linear import Linear
from peftlab.layers.norm import NORMS
from peftlab.layers.residual import RESIDUALS, Absent, Residual
from peftlab.layers.site import HeadSite, Route, name_sites
from peftlab.models.model import Model, Output

POSITIONS = ("learned", "sinusoidal", "none")
HEADS = ("linear", "tanh", "gelu", "relu")


@dataclass(frozen=True)
class EncoderConfig:
    """The choices of an encoder."""

    vocab: int
    """number of tokens in the vocabulary"""
    dim: int
    """width of the model"""
    layers: int
    """number of blocks"""
    heads: int
    """attention heads a block; they divide the width"""
    inner: int
    """width of the feed-forward network, also narrower than the model; 0 is none at all"""
    activation: str = "gelu"
    """of the feed-forward network"""
    max_length: int = 512
    """number of positions"""
    position: Literal["learned", "sinusoidal", "none"] = "learned"
    """how the order is told"""
    position_offset: int = 0
    """rows at the start of a learned table that no token uses (RoBERTa: 2)"""
    segments: int = 2
    """number of segment vectors; 0 is none"""
    embedding_dim: int | None = None
    """width of the embedding where it differs from the model's (ELECTRA)"""
    norm: Literal["layer", "batch", "none"] = "layer"
    """what is normalised"""
    norm_eps: float = 1e-12
    """ε of the norms"""
    residual: Literal["post", "pre", "none"] = "post"
    """where the norm stands, or no residual connection"""
    score: Literal["scaled", "dot", "weighted"] = "scaled"
    """attention's score"""
    dropout: float = 0.1
    """on embeddings and on each sublayer's output"""
    attention_dropout: float = 0.1
    """on attention weights"""
    inner_dropout: float = 0.0
    """inside the feed-forward network (torch's own layer has it, BERT has not)"""
    pooler: bool = False
    """BERT's tanh layer on the first token"""
    head: Literal["linear", "tanh", "gelu", "relu"] = "linear"
    """the family's classifier: one linear map of the pooled token, or a dense layer with an activation before it"""
    pad: int = 0
    """the id of the padding token"""
    init_std: float = 0.02
    """standard deviation of the initial weights"""

    def __post_init__(self) -> None:
        for name, value in (("dim", self.dim), ("layers", self.layers), ("heads", self.heads), ("vocab", self.vocab)):
            if type(value) is not int or value < 1:
                raise UserError(f"{name} is {value!r}: it must be a whole number of at least 1")
        choices = {"position": POSITIONS, "norm": NORMS, "residual": RESIDUALS, "score": SCORES, "head": HEADS}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise unknown(name, str(getattr(self, name)), allowed)


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


class Encoder(Model):
    """Embedding, blocks, an optional pooler, and the site of a task's head."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = build_embedding(config)
        self.blocks = nn.ModuleList(build_block(config) for _ in range(config.layers))
        self.norm = NORMS[config.norm](config.dim, config.norm_eps) if config.residual == "pre" else Absent()
        self.pooler = Pooler(config.dim) if config.pooler else None
        self.head = HeadSite()
        name_sites(self, "encoder")
        if not self.embedding.words.weight.is_meta:
            self.initialise()

    def forward(
        self,
        batch: Batch,
        adapters: Sequence[str | None] | None = None,
        attention: bool = False,
        route: Route | None = None,
        logits_only: bool = False,
    ) -> Output:
        """The hidden states of a batch; `adapters` names one a row (or None), `route` is the same made beforehand.

        Whoever wants the logits and nothing else says so: where the heads read the first token alone, the last block
        then follows no other, which saves a seventh of a six-block model's work.
        """
        if adapters is not None:
            route = self.route(adapters, stable=False)
        if not torch.compiler.is_compiling():
            self.check(batch, route)
        x, real, full, n, first = self.embedding(batch, route)
        mask = None if full else masks.padding(real)
        looks: list[Look] | None = [] if attention else None
        rows = torch.arange(len(batch), device=x.device)
        narrow = logits_only and self.head.read_first(route) and looks is None and self.config.norm != "batch"
        for i, block in enumerate(self.blocks):
            if narrow and i == len(self.blocks) - 1:
                x = block(x[rows, first][:, None], mask, None, route, among=x)
                n, first = 0, torch.zeros_like(rows)
            else:
                x = block(x, mask, real, route, looks)
        x = self.norm(x, None if narrow else real, route)
        state = x[rows, first]  # [B, D]
        pooled = None if self.pooler is None else self.pooler(state, route)
        scores, counts = self.head(States(state, x[:, n:], batch.mask, pooled), route) or (None, None)
        maps = None if looks is None else tuple(look.weights[:, :, n:] for look in looks)
        return Output(x[:, n:], pooled, maps, scores, counts)

    def check(self, batch: Batch, route: Route | None) -> None:
        """The user's mistakes that a lookup would answer with an index error."""
        low, high = int(batch.ids.min()), int(batch.ids.max())
        if low < 0 or high >= self.config.vocab:
            wrong = low if low < 0 else high
            raise UserError(f"token id {wrong} is outside the vocabulary: ids go from 0 to {self.config.vocab - 1}")
        if batch.segments is not None and self.config.segments:
            low, high = int(batch.segments.min()), int(batch.segments.max())
            if low < 0 or high >= self.config.segments:
                wrong = low if low < 0 else high
                raise UserError(
                    f"segment {wrong} is outside the model's {self.config.segments} segment(s): give segments=None"
                )
        if route is not None and route.rows != len(batch):
            raise UserError(
                f"{route.rows} adapters are named for a batch of {len(batch)} rows: name one a row, or None"
            )

    @torch.no_grad()
    def initialise(self) -> None:
        """BERT's initial weights: normal with `init_std`, biases zero, norms one."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.init_std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        self.embedding.words.weight[self.config.pad] = 0.0


def build_embedding(config: EncoderConfig) -> Embedding:
    """The embedding of a configuration."""
    width = config.embedding_dim or config.dim
    positions: nn.Module
    if config.position == "learned":
        positions = LearnedPositions(config.max_length, width, config.position_offset)
    else:
        positions = {"sinusoidal": SinusoidalPositions, "none": NoPositions}[config.position](config.max_length, width)
    return Embedding(
        words=Table(config.vocab, width),
        positions=positions,
        segments=Table(config.segments, width) if config.segments else None,
        norm=NORMS[config.norm](width, config.norm_eps) if config.residual != "pre" else Absent(),
        dropout=config.dropout,
        project=Linear(width, config.dim) if width != config.dim else None,
    )


def build_block(config: EncoderConfig) -> Block:
    """One block of a configuration."""

    def wrap(sublayer: nn.Module) -> Residual:
        norm = NORMS[config.norm](config.dim, config.norm_eps)
        return RESIDUALS[config.residual](config.dim, sublayer, norm, config.dropout)

    return Block(
        wrap(Attention(config.dim, config.heads, config.score, config.attention_dropout)),
        wrap(FeedForward(config.dim, config.inner, config.activation, config.inner_dropout))
        if config.inner
        else Absent(),
    )
