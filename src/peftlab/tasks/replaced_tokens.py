"""Replaced tokens (N→N): say of every token whether it stood there, or whether a generator put it there.

Clark et al. 2020 (arXiv 2003.10555). A generator guesses masked tokens; its guesses, drawn from its probabilities, fill
the places, and the discriminator judges all tokens: loss = MLM + 50 · RTD. A guess that is right counts as original.
Drawing has no gradient, so none comes from the discriminator to the generator, but in weights that they share.

    the text        the chef cooked the meal
    masked          [MASK] chef [MASK] the meal
    filled          the chef ate the meal
    replaced        0   0    1   0   0

A generator that is to fool the discriminator (the paper's appendix F) learns by policy gradient in the place of MLM:
the reward of a guess is the discriminator's loss there, less what a baseline expects from the generator's states alone.

In two stages either network may be frozen: one that does not train has no part in the loss.

Shapes: B rows, T tokens, k masked places of a row, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peftlab.data.batch import Batch
from peftlab.tasks.masked_tokens import Masked, each_nats, masked_loss, perplexity
from peftlab.tasks.next_token import IGNORED
from peftlab.tasks.task import Task


class Filled(NamedTuple):
    """A batch in which a generator filled the masked places."""

    batch: Batch
    replaced: Tensor
    """[B, T] 1 where a token is not the one that stood there"""
    guesses: Tensor
    """[B, k] what was drawn"""


class Judged(NamedTuple):
    """Of a row."""

    nats: float
    """−log p of the masked tokens, by the generator"""
    places: int
    doubt: float
    """−log p of what each token is, by the discriminator"""
    tokens: int
    right: int
    """tokens of which it was right"""
    replaced: int
    """tokens that are"""
    said: int
    """tokens that it takes for such"""
    found: int
    """tokens that are and that it takes for such"""


@dataclass(frozen=True)
class ReplacedTokens(Task):
    """MLM + weight · RTD; to choose by, the geometric mean of the probabilities of what is right, by both networks.

    The accuracy alone would choose badly: the better the generator gets, the harder are its guesses to find.
    """

    weight: float = 50.0
    """of the discriminator's loss"""

    def loss(self, model: Any, inputs: Masked, labels: Tensor) -> Tensor:
        generates, discriminates = trains(model.generator), trains(model.head)
        with torch.set_grad_enabled(generates and torch.is_grad_enabled()):
            states = model.generator.states(inputs.batch, inputs.places)
            logits = model.generator.read(states).float()
        if not discriminates:
            return masked_loss(logits, labels)
        filled = fill(inputs, labels, logits.detach())
        doubt = doubts(model(filled.batch).float(), filled.replaced)
        rtd = self.weight * doubt.mean()
        if not generates:
            return rtd
        if model.baseline is None:
            return masked_loss(logits, labels) + rtd
        reward = doubt.detach().gather(1, inputs.places)
        return policy_loss(model.baseline, states, logits, filled.guesses, reward, labels != IGNORED) + rtd

    def judge(self, model: Any, inputs: Masked, labels: Tensor) -> Sequence[Judged]:
        logits = model.generator(inputs.batch, inputs.places).float()
        filled = fill(inputs, labels, logits)
        scores, replaced = model(filled.batch).float(), filled.replaced.bool()
        said = scores > 0
        columns = (
            each_nats(logits, labels),
            labels != IGNORED,
            doubts(scores, filled.replaced),
            inputs.batch.mask,
            said == replaced,
            replaced,
            said,
            said & replaced,
        )
        return [Judged(*row) for row in zip(*(column.sum(1).tolist() for column in columns), strict=True)]

    def score(self, judged: Sequence[Judged], rows: Any) -> float:
        all_ = total(judged)
        return 1 / (perplexity(all_.nats, all_.places) * perplexity(all_.doubt, all_.tokens))

    def measures(self, judged: Sequence[Judged]) -> dict[str, float]:
        all_ = total(judged)
        return {
            "perplexity": perplexity(all_.nats, all_.places),
            "rtd_accuracy": all_.right / all_.tokens,
            "rtd_precision": all_.found / max(all_.said, 1),
            "rtd_recall": all_.found / max(all_.replaced, 1),
        }


def total(judged: Sequence[Judged]) -> Judged:
    """Over all rows."""
    return Judged(*(sum(column) for column in zip(*judged, strict=True)))


def doubts(scores: Tensor, replaced: Tensor) -> Tensor:
    """−log p [B, T] of what each token is."""
    return F.binary_cross_entropy_with_logits(scores, replaced, reduction="none")


def trains(part: nn.Module) -> bool:
    """Whether a part of a model has weights that do."""
    return any(parameter.requires_grad for parameter in part.parameters())


def fill(inputs: Masked, labels: Tensor, logits: Tensor) -> Filled:
    """Draw a token for each masked place; what was not to be guessed stays as it is."""
    given, asked = inputs.batch.ids.gather(1, inputs.places), labels != IGNORED
    guesses = torch.where(asked, draw(logits, inputs.chance), given)
    ids = inputs.batch.ids.scatter(1, inputs.places, guesses)
    wrong = (asked & (guesses != labels)).float()
    replaced = torch.zeros_like(ids, dtype=torch.float).scatter(1, inputs.places, wrong)
    return Filled(Batch(ids, inputs.batch.mask), replaced, guesses)


def draw(logits: Tensor, chance: Tensor) -> Tensor:
    """A token [B, k] from softmax(logits) [B, k, V]: the one in whose share of the sum the chance [B, k] falls."""
    upto = logits.softmax(-1).cumsum(-1)
    # of the sum as it was rounded, which may be less than 1
    point = (chance * upto[..., -1]).unsqueeze(-1)
    return torch.searchsorted(upto, point, right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)


def policy_loss(
    baseline: nn.Linear, states: Tensor, logits: Tensor, guesses: Tensor, reward: Tensor, asked: Tensor
) -> Tensor:
    """REINFORCE: −(reward − expected) · log p(guess), and what teaches the baseline to expect the reward.

    The baseline gives the probability that the discriminator is right at a place, −log of which is the reward; it does
    not train the generator.
    """
    sure = baseline(states.detach().float()).squeeze(-1)  # B k
    better = reward + F.logsigmoid(sure.detach())
    log_p = logits.log_softmax(-1).gather(2, guesses.unsqueeze(-1)).squeeze(-1)
    learned = F.binary_cross_entropy_with_logits(sure, (-reward).exp(), reduction="none")
    return ((learned - better * log_p) * asked).sum() / asked.sum().clamp(min=1)
