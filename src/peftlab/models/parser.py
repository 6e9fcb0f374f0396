"""A parser: for each word its head among the others and its relation to it, by deep biaffine attention.

Dozat & Manning 2017 (arXiv 1611.01734). A word has four views, each a layer of its own: as a dependent and as a head,
for arcs and for labels. `forward` gives the states of the root and of all tokens; a task picks those that speak for
words, since only it knows them, and asks for their views and the scores of these: what is no word is never viewed.

    states = model(batch).scores             # [B, 1 + T, D], the root in front
    head = parser_of(model)
    words = head.view(states[:, places])     # [B, 1 + N, K]
    head.score_arcs(words); head.score_labels(words, heads, real)

Shapes: B rows, T tokens, N words of the longest, W of all, D width, K of the four views, L relations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peftlab.errors import UserError
from peftlab.layers.addition import States
from peftlab.layers.biaffine import ArcScores, LabelScores
from peftlab.layers.dropout import dropout
from peftlab.models.heads import Labels, TokenHead, check_dropout
from peftlab.models.model import Model

WIDEST = 8_192
SLOPE = 0.1
"""below zero, of the views' activation, as in the authors' parser"""


@dataclass(frozen=True)
class Parser(Labels):
    """A head and a relation a word; `labels` are the relations."""

    kind = "parser"
    lr = 2e-3
    arc: int = 500
    """width of the two views for arcs"""
    label: int = 100
    """width of the two views for labels"""
    dropout: float = 0.33
    """on the views"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dropout(self.dropout)
        for name, width in (("arc", self.arc), ("label", self.label)):
            if type(width) is not int or not 1 <= width <= WIDEST:
                raise UserError(f"{name} is {width!r}: it must be a whole number from 1 to {WIDEST:,}")

    def build(self, model: Model) -> ParserHead:
        """The module for a model's head site."""
        return ParserHead(model.width, self.count, self.arc, self.label, self.dropout)


class ParserHead(TokenHead):
    """states → views → arcs, labels."""

    def __init__(self, dim: int, labels: int, arc: int, label: int, dropout: float) -> None:
        super().__init__()
        self.drop = dropout
        self.widths = (arc, arc, label, label)
        """of a dependent and a head for arcs, and of both for labels"""
        self.root = nn.Parameter(torch.empty(dim))
        self.views = nn.Linear(dim, sum(self.widths))
        self.arcs = ArcScores(arc)
        self.labels = LabelScores(label, labels)
        nn.init.normal_(self.root)
        nn.init.orthogonal_(self.views.weight)
        nn.init.zeros_(self.views.bias)

    def forward(self, states: States) -> Tensor:
        """[B, 1 + T, D]: the root, a vector that is learned, and each token."""
        root = self.root.expand(len(states.hidden), 1, -1).to(states.hidden.dtype)
        return torch.cat([root, states.hidden], 1)

    def view(self, states: Tensor) -> Tensor:
        """The views of some of these: [..., D] → [..., K]."""
        return dropout(F.leaky_relu(self.views(states), SLOPE), self.drop, self.training)

    def score_arcs(self, words: Tensor) -> Tensor:
        """The views of the root and of the words [B, 1 + N, K] → [B, N, 1 + N]: of each word with each head."""
        dependents, heads, _, _ = words.split(self.widths, -1)
        return self.arcs(dependents[:, 1:], heads)

    def score_labels(self, words: Tensor, chosen: Tensor, real: Tensor) -> Tensor:
        """The same views and the head of each word [B, N] → [W, L]: of each relation to that head, for the W words that
        are real [B, N]. A word's scores are L products of two vectors: those of padding are not worth it.
        """
        _, _, dependents, heads = words.split(self.widths, -1)
        return self.labels(dependents[:, 1:][real], torch.take_along_dim(heads, chosen[..., None], 1)[real])

    def probed(self, given: Tensor) -> Tensor:
        """The scores of all arcs between tokens, and of all relations to the root."""
        words = self.view(given)
        to_root = torch.zeros(given.shape[0], given.shape[1] - 1, dtype=torch.long, device=given.device)
        labels = self.score_labels(words, to_root, torch.ones_like(to_root, dtype=torch.bool))
        return torch.cat([self.score_arcs(words).flatten(1), labels.view(len(given), -1)], 1)


def parser_of(model: Model) -> ParserHead:
    """The parser that acts on a model."""
    address = model.head_address
    acting = [] if address is None else model.sites()[address].acting(None)
    if not acting or not isinstance(acting[-1], ParserHead):
        raise UserError("no parser acts on this model: attach an adapter with head=Parser(…)")
    return acting[-1]
