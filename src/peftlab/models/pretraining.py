"""What an encoder is pretrained with: heads that guess masked tokens or find replaced ones, and ELECTRA's two networks.

BERT's masked tokens: Devlin et al. 2018 (arXiv 1810.04805). ELECTRA: a small generator fills masked places, and the
discriminator, which is the base to keep, says of every token whether it was replaced (Clark et al. 2020, arXiv
2003.10555). `tasks/masked_tokens.py` and `tasks/replaced_tokens.py` have the losses.

    model = MaskedLanguageModel(encoder, MaskedTokenHead(encoder.config, "gelu"))
    model(batch, places)                                       # [B, k, V]: only there are all tokens scored

Shapes: B rows, T tokens, k places of a row that are asked for, D width, E embedding width, V tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peftlab.data.batch import Batch
from peftlab.errors import UserError, unknown
from peftlab.layers.feedforward import activation_named
from peftlab.layers.site import name_sites
from peftlab.models.encoder import Encoder, EncoderConfig
from peftlab.models.model import Model
from peftlab.models.stack import scatter

SHARING = ("none", "embeddings", "all")


class PretrainingHead(nn.Module):
    """A head with a dense layer; it is published as its family says (`models/families.py`)."""

    kind: ClassVar[str]

    def __init__(self, config: EncoderConfig, activation: str, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(config.dim, width)
        self.activation = activation_named(activation)


class MaskedTokenHead(PretrainingHead):
    """norm(activation(Wx + b)) · the embedding's own vectors + bias."""

    kind = "masked_tokens"

    def __init__(self, config: EncoderConfig, activation: str) -> None:
        width = config.embedding_dim or config.dim
        super().__init__(config, activation, width)
        self.norm = nn.LayerNorm(width, config.norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab))
        scatter(self, config.init_std)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        """x [..., D], words [V, E] → [..., V]."""
        return F.linear(self.norm(self.activation(self.dense(x))), words, self.bias)


class ReplacedTokenHead(PretrainingHead):
    """w · activation(Wx + b) + b: above 0 where a token is taken for a replaced one."""

    kind = "replaced_tokens"

    def __init__(self, config: EncoderConfig, activation: str) -> None:
        super().__init__(config, activation, config.dim)
        self.out = nn.Linear(config.dim, 1)
        scatter(self, config.init_std)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] → [...]."""
        return self.out(self.activation(self.dense(x))).squeeze(-1)


class MaskedLanguageModel(Model):
    """An encoder that guesses tokens; BERT in pretraining, ELECTRA's generator."""

    def __init__(self, encoder: Encoder, head: MaskedTokenHead) -> None:
        super().__init__()
        self.config = encoder.config
        self.encoder = encoder
        self.head = head

    def forward(self, batch: Batch, places: Tensor) -> Tensor:
        """The scores [B, k, V] of all tokens at some places [B, k]."""
        return self.read(self.states(batch, places))

    def states(self, batch: Batch, places: Tensor) -> Tensor:
        """[B, k, D]; the last block follows no other token."""
        if self.config.norm == "batch":  # its mean is over all tokens
            return self.encoder.states(batch).x[torch.arange(len(batch), device=places.device)[:, None], places]
        return self.encoder.states(batch, at=places).x

    def read(self, states: Tensor) -> Tensor:
        """[..., D] → [..., V]."""
        return self.head(states, self.encoder.embedding.words.weight)


class Electra(Model):
    """The discriminator, and the generator that it learns from."""

    def __init__(
        self, encoder: Encoder, head: ReplacedTokenHead, generator: MaskedLanguageModel, adversarial: bool = False
    ) -> None:
        super().__init__()
        self.config = encoder.config
        self.encoder = encoder
        self.head = head
        self.generator = generator
        self.baseline = nn.Linear(generator.config.dim, 1) if adversarial else None
        """of a generator that is to fool the discriminator: how well that will do, from the generator's states"""

    def forward(self, batch: Batch) -> Tensor:
        """[B, T] above 0 where a token is taken for a replaced one."""
        return self.head(self.encoder.states(batch).x)


def make_generator(encoder: Encoder, size: float, sharing: str, activation: str) -> MaskedLanguageModel:
    """A generator for a discriminator: of a fraction of its width, and with its embedding, all its weights, or none.

    Where it has the embedding, it has it in the discriminator's width, and projects it to its own.
    """
    config: EncoderConfig = encoder.config
    if sharing not in SHARING:
        raise unknown("sharing", sharing, SHARING)
    if sharing == "all":
        if size != 1:
            raise UserError(f"the generator is {size:g} of the discriminator: they share all weights only at 1")
        return MaskedLanguageModel(encoder, MaskedTokenHead(config, activation))
    width = config.embedding_dim or config.dim
    if min(round(part * size) for part in (config.dim, width, config.inner or config.dim)) < 1:
        raise UserError(f"a generator of {size:g} has no width left: choose a larger size, such as 0.25 or 0.5")
    smaller = replace(
        config,
        dim=round(config.dim * size),
        heads=max(1, round(config.heads * size)),
        inner=round(config.inner * size),
        embedding_dim=width if sharing == "embeddings" else round(width * size),
        pooler=False,
    )
    if smaller.dim % smaller.heads:
        sizes = f"a generator of {size:g} would be {smaller.dim} wide with {smaller.heads} heads"
        raise UserError(f"{sizes}, which do not divide it: choose another size, such as 0.25 or 0.5")
    generator = Encoder(smaller)
    name_sites(generator, "generator")
    if sharing == "embeddings":
        own, theirs = generator.embedding, encoder.embedding
        own.words, own.positions, own.segments, own.norm = theirs.words, theirs.positions, theirs.segments, theirs.norm
    return MaskedLanguageModel(generator, MaskedTokenHead(smaller, activation))
