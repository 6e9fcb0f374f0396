"""Writing a text token by token: what all ways of it share, and the two that never look back.

A model says how likely each token is to come next. The likeliest whole text is out of reach, because there are Vⁿ of n
tokens; a search looks at a few of them. `Greedy` takes the likeliest token each time; `Sample` draws one, from what
temperature, top-k (Fan et al. 2018, arXiv 1805.04833) and top-p (Holtzman et al. 2020, arXiv 1904.09751) leave of the
distribution; `beam.py` follows several texts at once.

    [[best]] = write(model, batch, Greedy(), max_new=40)
    best.tokens, best.score
    for token in stream(model, batch, Sample(temperature=0.8, top_p=0.9), max_new=40): ...

Shapes: N sources at first, B of them that still go on, R rows (here R = B, in a beam B·g), V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from peftlab import native
from peftlab.data.batch import Batch
from peftlab.errors import UserError
from peftlab.models.writer import Marks, Memory, Writer


@dataclass(frozen=True)
class Written:
    """A text that a model wrote."""

    tokens: list[int]
    """without the start mark or the text that was given, and without the end mark"""
    score: float
    """Σ log p of its tokens, the end mark's included; a beam divides it by a power of their number"""
    ended: bool
    """whether the model wrote its end mark; if not, `max_new` cut it off"""


class Search(ABC):
    """A way to find a text that the model thinks likely. Its fields are its choices."""

    @abstractmethod
    def run(self, model: Writer, memory: Memory, scores: Tensor, max_new: int) -> list[list[Written]]:
        """Go on from what `model.begin` gave; for each source what was found, the best first."""


@torch.inference_mode()
def write(
    model: Writer, batch: Batch, how: Search, max_new: int, adapters: Sequence[str | None] | None = None
) -> list[list[Written]]:
    """What the model writes for each source of a batch, at most `max_new` tokens; the best first."""
    check(model, batch, max_new)
    with native.computing():
        memory, scores = model.begin(batch, adapters, room=max_new)
        return how.run(model, memory, scores, max_new)


def stream(
    model: Writer, batch: Batch, how: Search, max_new: int, adapters: Sequence[str | None] | None = None
) -> Iterator[int]:
    """The same for one source, each token as soon as it is written."""
    check(model, batch, max_new)
    if not isinstance(how, Onward):
        raise UserError(f"{type(how).__name__} knows its text only at the end: stream with Greedy or Sample")
    if len(batch) != 1:
        raise UserError(f"the batch has {len(batch)} sources: a stream is of one")
    with torch.inference_mode(), native.computing():
        memory, scores = model.begin(batch, adapters, room=max_new)
    steps = how.steps(model, memory, scores, max_new)
    return takewhile(lambda token: token != model.marks.end, (int(tokens) for _, tokens, _ in steps))


class Onward(Search):
    """One text a source, and what is written stays."""

    @abstractmethod
    def chooser(self, marks: Marks, device: torch.device) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """From scores [R, V], which may be written over then and later, to the tokens [R] and log p [R] of them."""

    @torch.inference_mode()
    def steps(
        self, model: Writer, memory: Memory, scores: Tensor, max_new: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Each step's sources [B], their tokens [B] and log p of them [B]. Who has ended costs nothing any more."""
        choose = self.chooser(model.marks, scores.device)
        sources = torch.arange(len(scores), device=scores.device)
        for n in range(1, max_new + 1):
            with native.computing():
                tokens, log_p = choose(scores)
            memory.spend(scores)
            yield sources, tokens, log_p
            going = (tokens != model.marks.end).nonzero()[:, 0]
            if n == max_new or len(going) == 0:
                return
            if len(going) < len(sources):
                memory.keep(going)
                sources, tokens = sources[going], tokens[going]
            with native.computing():  # who reads a stream computes otherwise in between
                scores = model.next(tokens, memory)

    def run(self, model: Writer, memory: Memory, scores: Tensor, max_new: int) -> list[list[Written]]:
        N, end = len(scores), model.marks.end
        sources, tokens, gains = map(torch.cat, zip(*self.steps(model, memory, scores, max_new), strict=True))
        totals = gains.new_zeros(N).index_add(0, sources, gains).tolist()
        texts: list[list[int]] = [[] for _ in range(N)]
        for source, token in zip(sources.tolist(), tokens.tolist(), strict=True):
            texts[source].append(token)
        return [[finish(text, total, end)] for text, total in zip(texts, totals, strict=True)]


@dataclass(frozen=True)
class Greedy(Onward):
    """The likeliest token each time."""

    def chooser(self, marks: Marks, device: torch.device) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        def choose(scores: Tensor) -> tuple[Tensor, Tensor]:
            if native.fits(scores, scores):
                return native.likeliest(scores, marks.never)
            log_p = log_probabilities(scores, marks)
            # on a processor torch goes through a vocabulary number by number
            tokens = torch.from_numpy(log_p.numpy().argmax(1)) if log_p.is_cpu else log_p.argmax(1)
            return tokens, log_p.gather(1, tokens[:, None])[:, 0]

        return choose


@dataclass(frozen=True)
class Sample(Onward):
    """A token drawn each time; temperature first, then top-k, then top-p, as `transformers` has them."""

    temperature: float = 1.0
    """p^(1/temperature): below 1 the likely becomes likelier, above 1 less so"""
    top_k: int | None = None
    """only the k likeliest tokens; None: all"""
    top_p: float | None = None
    """only the likeliest tokens that together have this probability; None: all"""
    seed: int = 0
    """the same seed draws the same; torch's own generator is left alone"""

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise UserError(f"temperature is {self.temperature!r}: it must be above 0, and Greedy() is its limit there")
        if self.top_k is not None:
            at_least_one("top_k", self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p!r}: it must be above 0 and at most 1")

    def chooser(self, marks: Marks, device: torch.device) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        generator = torch.Generator(device).manual_seed(self.seed)

        def choose(scores: Tensor) -> tuple[Tensor, Tensor]:
            log_p = log_probabilities(scores, marks)
            tokens = torch.multinomial(self.probabilities(log_p), 1, generator=generator)
            return tokens[:, 0], log_p.gather(1, tokens)[:, 0]

        return choose

    def probabilities(self, log_p: Tensor) -> Tensor:
        """The distribution [R, V] that is drawn from."""
        scores = log_p / self.temperature
        if self.top_k is not None:
            least = scores.topk(min(self.top_k, scores.shape[1])).values[:, -1:]
            scores = scores.masked_fill(scores < least, -math.inf)
        if self.top_p is not None:
            p, order = scores.softmax(1).sort(descending=True)
            beyond = p.cumsum(1) - p >= self.top_p  # those before a token have it all; before the first there is none
            scores = scores.masked_fill(beyond.scatter(1, order, beyond), -math.inf)
        return scores.softmax(1)


def log_probabilities(scores: Tensor, marks: Marks) -> Tensor:
    """log p [R, V] of the next token, written over its scores; −∞ for padding, which is no token of a text.

    As in `transformers` what padding would have had is not shared among the others.
    """
    scores = scores.float()
    if native.fits(scores, scores):
        return native.log_softmax(scores, marks.never)
    torch.log_softmax(scores, 1, out=scores)  # a beam's scores take tens of megabytes, slow to ask for at each step
    if marks.never is not None:
        scores[:, marks.never] = -math.inf
    return scores


def finish(tokens: list[int], score: float, end: int) -> Written:
    """A text of tokens that may end in the end mark."""
    ended = tokens[-1] == end
    return Written(tokens[:-1] if ended else tokens, score, ended)


def check(model: Writer, batch: Batch, max_new: int) -> None:
    """The user's mistakes that would else be told late or not at all."""
    at_least_one("max_new", max_new)
    if model.training:
        raise UserError("the model is in training mode, where dropout blurs what it writes: call model.eval() before")
    if model.max_length is not None:
        given = int(batch.mask.sum(1).max()) if model.marks.start is None else 1
        room = model.max_length - given
        if room < 1:
            raise UserError(
                f"the longest text has {given} tokens of the model's {model.max_length}: give a shorter one"
            )
        if max_new > room:
            raise UserError(f"max_new is {max_new}: the model has {model.max_length} positions, ask for {room} at most")


def at_least_one(name: str, value: int) -> None:
    """A count must be one."""
    if type(value) is not int or value < 1:
        raise UserError(f"{name} is {value!r}: it must be a whole number of at least 1")
