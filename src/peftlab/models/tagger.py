"""A tagger: one label for each token, by one linear map of its hidden state, as `transformers` does for every family.

    attach(model, "mine", LoRA(rank=8), head=Tagger(labels=("NOUN", "VERB")))
    model(batch).logits

Virtual tokens are not among the states that a head is given, so prompts and prefixes change nothing here.

Shapes: B rows, T tokens, D width, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from peftlab.layers.addition import States
from peftlab.layers.dropout import dropout
from peftlab.models.heads import Labels, TokenHead, check_dropout
from peftlab.models.model import Model


@dataclass(frozen=True)
class Tagger(Labels):
    """One label a token."""

    kind = "tagger"
    lr = 2e-3
    dropout: float = 0.1
    """before the linear map"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dropout(self.dropout)

    def build(self, model: Model) -> TaggerHead:
        """The module for a model's head site."""
        config: Any = model.config
        return TaggerHead(model.width, self.count, self.dropout, config.init_std)


class TaggerHead(TokenHead):
    """out, at each token."""

    def __init__(self, dim: int, labels: int, dropout: float, std: float) -> None:
        super().__init__()
        self.drop = dropout
        self.out = nn.Linear(dim, labels)
        nn.init.normal_(self.out.weight, std=std)
        nn.init.zeros_(self.out.bias)

    def forward(self, states: States) -> Tensor:
        """[B, T, L]."""
        return self.out(dropout(states.hidden, self.drop, self.training))
