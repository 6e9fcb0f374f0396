"""What encoders and decoders have in common: their choices, and how the parts are put together from them."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from peftlab.errors import UserError, unknown
from peftlab.layers.attention import SCORES, Attention
from peftlab.layers.embedding import POSITIONS, Embedding, LearnedPositions, Table
from peftlab.layers.feedforward import ACTIVATIONS, ChunkedFeedForward, FeedForward
from peftlab.layers.linear import Linear
from peftlab.layers.norm import NORMS
from peftlab.layers.residual import RESIDUALS, Absent, Residual


@dataclass(frozen=True, kw_only=True)
class BlocksConfig:
    """The choices of a stack of blocks, whatever it reads."""

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
    inner_chunk: int = 0
    """how many tokens of a row go through the feed-forward network at a time, to save memory; 0 is all of them"""
    init_std: float = 0.02
    """standard deviation of the initial weights"""

    def __post_init__(self) -> None:
        self.check_counts("dim", "layers", "heads")
        self.check_counts("inner", "inner_chunk", none=True)
        self.check_choices(activation=ACTIVATIONS, norm=NORMS, residual=RESIDUALS, score=SCORES)
        self.check_numbers("norm_eps", "init_std")
        self.check_dropouts("dropout", "attention_dropout", "inner_dropout")

    def check_counts(self, *names: str, none: bool = False) -> None:
        """These fields are whole numbers of at least 1, or with `none` also 0."""
        for name in names:
            value = getattr(self, name)
            if type(value) is not int or value < (0 if none else 1):
                more = ", or 0 for none" if none else ""
                raise UserError(f"{name} is {value!r}: it must be a whole number of at least 1{more}")

    def check_numbers(self, *names: str, below: float = math.inf) -> None:
        """These fields are numbers from 0 to below another."""
        for name in names:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < below:
                end = "finite" if below == math.inf else f"below {below}"
                raise UserError(f"{name} is {value!r}: it must be a number, at least 0 and {end}")

    def check_dropouts(self, *names: str) -> None:
        """These fields are probabilities with which something is left."""
        self.check_numbers(*names, below=1)

    def check_choices(self, **choices: Collection[str]) -> None:
        """Each field is one of its choices."""
        for name, allowed in choices.items():
            if getattr(self, name) not in tuple(allowed):  # a list, which no dictionary can look for, is none of them
                raise unknown(name, str(getattr(self, name)), allowed)


@dataclass(frozen=True, kw_only=True)
class StackConfig(BlocksConfig):
    """The choices of a stack that reads tokens: every one that the ablations turn, decided when it is built."""

    vocab: int
    """number of tokens in the vocabulary"""
    max_length: int = 512
    """number of positions"""
    position: Literal["learned", "sinusoidal", "halves", "none"] = "learned"
    """how the order is told; halves are sinusoids with all sines before all cosines (Marian)"""
    position_offset: int = 0
    """rows at the start of a learned table that no token uses (RoBERTa: 2)"""
    segments: int = 0
    """number of segment vectors; 0 is none"""
    embedding_dim: int | None = None
    """width of the embedding where it differs from the model's (ELECTRA)"""
    embedding_scale: bool = False
    """whether token vectors are multiplied by √dim, as in the first Transformer"""
    embedding_norm: bool | None = None
    """whether the embedding is normalised; None: where the norms of the blocks stand behind the sum"""
    pad: int = 0
    """the id of the padding token"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("vocab", *(["embedding_dim"] if self.embedding_dim is not None else []))
        self.check_counts("position_offset", "segments", none=True)
        self.check_choices(position=POSITIONS)

    def check_tokens(self, *names: str) -> None:
        """These fields are ids of tokens."""
        for name in names:
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value < self.vocab:
                raise UserError(f"{name} is {value!r}: it must be a token of the vocabulary, 0 to {self.vocab - 1}")


def build_embedding(config: StackConfig, words: Table | None = None) -> Embedding:
    """The embedding of a configuration; `words` is another stack's table to share."""
    # not before: read as another family's, whose padding takes positions, a configuration may have none left
    config.check_counts("max_length")
    width = config.embedding_dim or config.dim
    if config.position == "learned":
        positions: nn.Module = LearnedPositions(config.max_length, width, config.position_offset)
    else:
        positions = POSITIONS[config.position](config.max_length, width)
    normed = config.residual != "pre" if config.embedding_norm is None else config.embedding_norm
    return Embedding(
        words=words or Table(config.vocab, width),
        positions=positions,
        segments=Table(config.segments, width) if config.segments else None,
        norm=NORMS[config.norm](width, config.norm_eps) if normed else Absent(),
        dropout=config.dropout,
        project=Linear(width, config.dim) if width != config.dim else None,
        scale=config.dim**0.5 if config.embedding_scale else 1.0,
    )


def wrap(config: BlocksConfig, sublayer: nn.Module) -> Residual:
    """A sublayer in its residual connection, with its norm and dropout."""
    norm = NORMS[config.norm](config.dim, config.norm_eps)
    return RESIDUALS[config.residual](config.dim, sublayer, norm, config.dropout)


def build_attention(config: BlocksConfig) -> Residual:
    """The attention of a block, to itself or to another sequence."""
    return wrap(config, Attention(config.dim, config.heads, config.score, config.attention_dropout))


def build_feedforward(config: BlocksConfig) -> nn.Module:
    """The feed-forward network of a block."""
    return wrap(config, inner_network(config)) if config.inner else Absent()


def inner_network(config: BlocksConfig) -> FeedForward:
    """The network itself, whole or in chunks."""
    choices = config.dim, config.inner, config.activation, config.inner_dropout
    return ChunkedFeedForward(*choices, config.inner_chunk) if config.inner_chunk else FeedForward(*choices)


def last_norm(config: BlocksConfig) -> nn.Module:
    """Behind the last block where the norms stand before the sublayers, so that its sum is normalised too."""
    return NORMS[config.norm](config.dim, config.norm_eps) if config.residual == "pre" else Absent()


@torch.no_grad()
def initialise(stack: nn.Module, config: StackConfig) -> None:
    """BERT's initial weights: those of `scatter`, and the padding token's vector zero."""
    scatter(stack, config.init_std)
    for module in stack.modules():
        if isinstance(module, Embedding):
            module.words.weight[config.pad] = 0.0


@torch.no_grad()
def scatter(stack: nn.Module, std: float) -> None:
    """Weights normal with a standard deviation, biases zero; norms stay one."""
    for module in stack.modules():
        if isinstance(module, nn.Linear | nn.Embedding | nn.Conv2d):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
            nn.init.zeros_(module.bias)
