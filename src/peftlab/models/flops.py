"""How many floating point operations a row of tokens costs an encoder: those of its matrix products, forward.

A product of [n, a] and [a, b] has 2·n·a·b; a backward pass has twice as many as the forward pass. What is not a matrix
product (norms, activations, softmax, lookups) is not counted, as in the tables of the papers.

Shapes: T tokens of a row, k places that the last block follows, D width, E embedding width, V tokens of the vocabulary.
"""

from __future__ import annotations

from peftlab.models.encoder import EncoderConfig
from peftlab.models.pretraining import Electra, MaskedLanguageModel

TRAINED = 3
"""passes forward that a training step costs: itself, and twice as much backward"""


def block_flops(config: EncoderConfig, T: int, n: int) -> float:
    """Of one block that follows n of T tokens: keys and values of all, the rest of n; where n is one of several, it
    needs neither (`layers/one_query.py`).
    """
    D = config.dim
    made, looked = (1, config.heads * D) if n == 1 < T else (T, D)
    projections = 2 * D * D * (2 * made + 2 * n)
    return projections + 2 * (2 * n * T * looked) + 2 * (2 * n * D * config.inner)


def encoder_flops(config: EncoderConfig, T: int, k: int | None = None) -> float:
    """Of a row; `k`: where the last block follows only so many places."""
    D, E = config.dim, config.embedding_dim or config.dim
    project = 2 * T * E * D if E != D else 0
    last = T if k is None or config.norm == "batch" else k
    return project + (config.layers - 1) * block_flops(config, T, T) + block_flops(config, T, last)


def masked_flops(model: MaskedLanguageModel, T: int, k: int) -> float:
    """Of a row with k places to guess."""
    config: EncoderConfig = model.config
    E = config.embedding_dim or config.dim
    return encoder_flops(config, T, k) + 2 * k * config.dim * E + 2 * k * E * config.vocab


def discriminator_flops(model: Electra, T: int) -> float:
    """Of a row in which every token is judged, without the generator."""
    config: EncoderConfig = model.config
    return encoder_flops(config, T) + 2 * T * config.dim * (config.dim + 1)


def electra_training_flops(model: Electra, T: int, k: int, alone: float = 0.0) -> float:
    """Of training on a row, there and back; `alone`: the share of the steps in which the generator is trained and
    nothing else, and after which it no longer learns.
    """
    guess, judge = masked_flops(model.generator, T, k), discriminator_flops(model, T)
    if alone:
        return alone * TRAINED * guess + (1 - alone) * (guess + TRAINED * judge)
    return TRAINED * (guess + judge)
