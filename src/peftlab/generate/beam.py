"""Beam search: follow the g likeliest texts at once.

Greedy search can't take a token back that led to a poor text. A beam keeps g beginnings of each source, the hypotheses.
At each step every hypothesis is continued by every token, and of these g·V candidates the g likeliest go on:

    log p(hypothesis + token) = log p(hypothesis) + log p(token | hypothesis)

A candidate that ends in the end mark is complete; it leaves the beam and the next best takes its place, wherefore 2g
candidates are looked at. Graves 2012 (arXiv 1211.3711) and Sutskever et al. 2014 (arXiv 1409.3215).

Each token makes a text less likely, so that complete ones are compared by

    score = log p / length^length_penalty

with all written tokens as the length, the end mark too. That is the form of `transformers`; Wu et al. 2016 (arXiv
1609.08144), whose idea it is, have ((5 + length) / 6)^α. A source is done when it has g complete hypotheses and its
best open one would score no better than the worst of them if it ended now. With a penalty above 0 it might yet become
better: that is a heuristic, and `transformers`' default.

No text is copied while it grows. A step leaves, for each place of the beam, which hypothesis was continued by which
token, as one number `which · V + token`; the texts are read backwards along these at the end.

    write(model, batch, Beam(width=5), max_new=100)

Shapes: N sources at first, B of them that still go on, g hypotheses, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from peftlab import native
from peftlab.errors import UserError
from peftlab.generate.search import Search, Written, at_least_one, finish, log_probabilities
from peftlab.models.writer import Memory, Writer


@dataclass(frozen=True)
class Beam(Search):
    """The likeliest texts that a beam finds."""

    width: int = 5
    """hypotheses a source"""
    length_penalty: float = 1.0
    """the power of the length that log p is divided by: 0 prefers the short, 1 is the mean of the tokens"""
    best: int = 1
    """how many texts are given for each source, at most the width"""

    def __post_init__(self) -> None:
        at_least_one("width", self.width)
        at_least_one("best", self.best)
        if self.best > self.width:
            raise UserError(f"best is {self.best}: a beam of width {self.width} finds {self.width} texts at most")
        if not math.isfinite(self.length_penalty):
            raise UserError(f"length_penalty is {self.length_penalty!r}: it must be a finite number, such as 1")

    def run(self, model: Writer, memory: Memory, scores: Tensor, max_new: int) -> list[list[Written]]:
        (N, V), g, end = scores.shape, self.width, model.marks.end
        complete = Complete(N, g, scores.device)
        sources = torch.arange(N, device=scores.device)
        rows = torch.arange(N * g, device=scores.device).view(N, g)
        history: list[tuple[Tensor, Tensor]] = []

        memory.widen(g)
        scores = scores.repeat_interleave(g, 0)
        totals = scores.new_full((N, g), -math.inf, dtype=torch.float)  # log p of each hypothesis, the best first
        totals[:, 0] = 0  # they are all the same now: only one counts
        for n in range(1, max_new):
            top, index = candidates(scores, totals, model)
            memory.spend(scores)
            ended = index % V == end
            if ended[:, :g].any():
                complete.add(sources, top.masked_fill(~ended, -math.inf) / n**self.length_penalty, index + n * g * V)
            totals, places = top.masked_fill(ended, -math.inf).topk(g)
            index = index.gather(1, places)

            going = (totals[:, 0] / n**self.length_penalty > complete.worst(sources)).nonzero()[:, 0]
            if len(going) == 0:
                break
            if len(going) < len(sources):
                memory.keep(going)
                sources, totals, index = sources[going], totals[going], index[going]
            history.append((sources, index))
            before = index // V + rows[: len(index), :1]
            if not torch.equal(before, rows[: len(index)]):
                memory.reorder(before.flatten())
            scores = model.next((index % V).flatten(), memory)
        else:  # what is still open at the last step is taken as it is
            top, index = candidates(scores, totals, model)
            complete.add(sources, top / max_new**self.length_penalty, index + max_new * g * V)
        return self.read(complete, history, V, end)

    def read(self, complete: Complete, history: list[tuple[Tensor, Tensor]], V: int, end: int) -> list[list[Written]]:
        """The texts of the best complete hypotheses."""
        g = self.width
        steps = complete.codes.new_zeros(len(history), len(complete.codes), g)
        for step, (sources, index) in zip(steps, history, strict=True):
            step[sources] = index
        links = steps.tolist()

        def text(source: int, code: int) -> list[int]:
            length, index = divmod(code, g * V)
            tokens = [index % V]
            for n in range(length - 2, -1, -1):
                index = links[n][source][index // V]
                tokens.append(index % V)
            return tokens[::-1]

        found = zip(complete.scores[:, : self.best].tolist(), complete.codes.tolist(), strict=True)
        return [
            [finish(text(i, code), score, end) for score, code in zip(*both, strict=False) if score > -math.inf]
            for i, both in enumerate(found)
        ]


def candidates(scores: Tensor, totals: Tensor, model: Writer) -> tuple[Tensor, Tensor]:
    """log p [B, 2g] of the likeliest continuations, the best first, and `which · V + token` of each."""
    B, g = totals.shape
    if native.fits(scores, totals):
        return native.continuations(scores, totals, model.marks.never, 2 * g)
    log_p = log_probabilities(scores, model.marks).view(B, g, -1)
    return log_p.add_(totals[:, :, None]).flatten(1).topk(2 * g)


class Complete:
    """The g best complete hypotheses of each of N sources, the best first; −∞ where there are fewer."""

    def __init__(self, N: int, g: int, device: torch.device) -> None:
        self.scores = torch.full((N, g), -math.inf, device=device)
        self.codes = torch.zeros((N, g), dtype=torch.long, device=device)
        """length · g · V + which · V + token: the last token, and what it was written after"""

    def add(self, sources: Tensor, scores: Tensor, codes: Tensor) -> None:
        """Candidates [B, 2g] of these sources [B]; only a source's g first may count, the others are reserves."""
        g = self.scores.shape[1]
        scores = torch.cat([self.scores[sources], scores[:, :g]], 1)
        codes = torch.cat([self.codes[sources], codes[:, :g]], 1)
        self.scores[sources], places = scores.topk(g)
        self.codes[sources] = codes.gather(1, places)

    def worst(self, sources: Tensor) -> Tensor:
        """The score [B] that a hypothesis of these sources must exceed."""
        return self.scores[sources, -1]
