"""The way of one text through a model: every step with its tensor's shape and the names of its dimensions.

    peftlab trace "a sentence"

Nothing of this is in the models: hooks watch the parts while the text passes, and the slow path of attention shows what
happens between them. x is what enters a sublayer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from peftlab.data.batch import Batch
from peftlab.errors import UserError
from peftlab.layers.attention import Attention, Look, Weighted
from peftlab.layers.embedding import Embedding
from peftlab.layers.feedforward import FeedForward
from peftlab.layers.linear import Linear
from peftlab.layers.norm import NoNorm
from peftlab.layers.residual import Absent, NoResidual, PreNorm, Residual
from peftlab.layers.site import SUBLAYERS
from peftlab.models.base import Base
from peftlab.models.decoder import Decoder
from peftlab.models.encoder import Encoder

Dims = tuple[str, ...]
Say = Callable[[str, str, Dims, Tensor], None]

TOKENS = ("batch", "token", "width")
QUERIES = ("batch", "head", "query", "head width")
KEYS = ("batch", "head", "key", "head width")
MAPS = ("batch", "head", "query", "key")


@dataclass(frozen=True)
class Step:
    """One tensor on the way."""

    where: str
    """the part of the model that made it"""
    what: str
    """what it is, as an equation where there is one"""
    dims: Dims
    """the names of its dimensions"""
    shape: tuple[int, ...]
    """their sizes"""
    layer: int | None = None
    """the block's number, None outside the blocks"""

    def __str__(self) -> str:
        return f"{self.place:<20} {self.what:<34} {self.named}"

    @property
    def place(self) -> str:
        """The part with its block's number."""
        return self.where if self.layer is None else f"{self.layer}.{self.where}"

    @property
    def named(self) -> str:
        """Each dimension's name with its size."""
        return " · ".join(f"{name} {size}" for name, size in zip(self.dims, self.shape, strict=True))


class Line(NamedTuple):
    """A part of the model, and what is said when it is done."""

    part: nn.Module
    where: str
    what: str
    dims: Dims = TOKENS


def trace(base: Base, text: str | tuple[str, str]) -> list[Step]:
    """The steps of a text (or a pair) through the model of a base, an encoder or a decoder.

    >>> print(trace(load("minilm"), "a sentence")[0])                        # doctest: +SKIP
    tokens               [CLS] a sentence [SEP]             batch 1 · token 4
    """
    model = base.model
    if not isinstance(model, Encoder | Decoder):
        raise UserError(
            f"{base.name} is a {type(model).__name__}, which can't be traced: give an encoder or a decoder of texts, "
            "such as a BERT or a GPT-2"
        )
    batch = read(base, text)
    steps = [Step("tokens", " ".join(base.tokenizer.tokens(batch.ids[0])), TOKENS[:2], tuple(batch.ids.shape))]
    watched = [*watch(model, steps)]
    try:
        with torch.no_grad():
            out = model(batch, attention=True)
    finally:
        for handle in watched:
            handle.remove()
    write(steps, None, "output.hidden", "each token's vector, in context", TOKENS, out.hidden)
    if isinstance(model, Decoder):
        assert out.scores is not None
        write(steps, None, "output.scores", "of each token that may follow", (*TOKENS[:2], "vocabulary"), out.scores)
    return steps


def read(base: Base, text: str | tuple[str, str]) -> Batch:
    """The text as a batch that also says its segments, so that their table is asked, and watched, for a single text."""
    count = base.tokenizer.encode([text]).ids.shape[1]
    if count > base.room:
        given = "text" if isinstance(text, str) else "pair"
        raise UserError(
            f"the {given} has {count} tokens with its marks: shorten it to {base.room}, the most that {base.name} reads"
        )
    batch = base.encode([text])
    return batch if batch.segments is not None else replace(batch, segments=torch.zeros_like(batch.ids))


def watch(model: Encoder | Decoder, steps: list[Step]) -> Iterator[RemovableHandle]:
    """Hooks that write a step whenever a part that has something to say is done."""
    for line in (*embedding_lines(model.embedding), *last_lines(model)):
        yield hook(line, partial(write, steps, None))
    for layer, block in enumerate(model.blocks):
        say: Say = partial(write, steps, layer)
        for name, residual in block.named_children():
            if isinstance(residual, Residual):
                where = SUBLAYERS[name]
                for line in sublayer_lines(residual, where):
                    yield hook(line, say)
                if isinstance(residual.sublayer, Attention):
                    yield from watch_heads(residual.sublayer, where, say)


def embedding_lines(embedding: Embedding) -> Iterator[Line]:
    """Of the embedding's parts."""
    e, narrow = embedding, isinstance(embedding.project, Linear)
    width = (*TOKENS[:2], "embedding width") if narrow else TOKENS
    scaled = "" if e.scale == 1.0 else ", times √width"
    yield Line(e.words, "embedding.words", f"a vector for each token id{scaled}", width)
    if e.segments is not None:
        yield Line(e.segments, "embedding.segments", "first or second text, added", width)
    yield Line(e.positions, "embedding.positions", "a vector for each position, added", width)
    if norms(e.norm):
        yield Line(e.norm, "embedding.norm", "their sum, normed", width)
    else:
        yield Line(e.norm, "embedding", "their sum", width)
    if narrow:
        yield Line(e.project, "embedding.project", "to the model's width")


def sublayer_lines(residual: Residual, where: str) -> Iterator[Line]:
    """Of a sublayer's linear maps, what enters them, and how their output is joined."""
    x = "norm(x)" if norms(residual.norm) and isinstance(residual, PreNorm) else "x"
    if x != "x":
        yield Line(residual.norm, f"{where}.norm", x)
    match residual.sublayer:
        case Attention() as a:
            yield Line(a.q, f"{where}.q", f"queries Q = {x}·Wqᵀ + b")
            yield Line(a.k, f"{where}.k", f"keys K = {x}·Wkᵀ + b")
            yield Line(a.v, f"{where}.v", f"values V = {x}·Wvᵀ + b")
            yield Line(a.o, f"{where}.o", "heads side by side, ·Woᵀ + b")
        case FeedForward() as f:
            yield Line(f.up, f"{where}.up", f"{x}·W₁ᵀ + b", (*TOKENS[:2], "inner width"))
            yield Line(f.down, f"{where}.down", f"{f.name}(…)·W₂ᵀ + b")
    bare = "f(x)" if isinstance(residual, NoResidual) else "x + f(x)"
    yield Line(residual, where, (type(residual).__doc__ or "").rstrip(".") if norms(residual.norm) else bare)


def last_lines(model: Encoder | Decoder) -> Iterator[Line]:
    """Of what stands behind the blocks."""
    if norms(model.norm):
        yield Line(model.norm, "norm", "norm(x) behind the last block")
    if isinstance(model, Encoder) and model.pooler is not None:
        yield Line(model.pooler, "pooler", "tanh(W·first token + b)", ("batch", "width"))


def norms(part: nn.Module) -> bool:
    """Whether what stands in the place of a norm is one."""
    return not isinstance(part, Absent | NoNorm)


def hook(line: Line, say: Say) -> RemovableHandle:
    """When the part is done, its output is a step; that of positions which are none is no tensor."""

    def after(part: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            say(line.where, line.what, line.dims, output)

    return line.part.register_forward_hook(after)


def watch_heads(attention: Attention, where: str, say: Say) -> Iterator[RemovableHandle]:
    """Hooks that write what attention computes between its linear maps, in order."""
    given: dict[str, Any] = {}

    def before(part: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        given.update(kwargs)

    def mixed(part: nn.Module, inputs: Any) -> None:
        look: Look = given["looks"][-1]
        weighted = isinstance(attention.score, Weighted)
        q = "Q·W in heads, each with its own W" if weighted else "Q in heads, slices of the width"
        say(where, q, QUERIES, look.q)
        say(where, "K in heads", KEYS, look.k)
        say(where, "V in heads", KEYS, look.v)
        formula = {"Dot": "Q·Kᵀ", "Scaled": "Q·Kᵀ/√head width", "Weighted": "Q·W·Kᵀ"}[type(attention.score).__name__]
        masked = "" if given["mask"] is None else ", masked"
        say(where, f"scores = {formula}{masked}", MAPS, look.scores)
        say(where, "weights = softmax: rows sum to 1", MAPS, look.weights)
        say(where, "weights·V", QUERIES, look.mixed)

    yield attention.register_forward_pre_hook(before, with_kwargs=True)
    yield attention.o.register_forward_pre_hook(mixed)


def write(steps: list[Step], layer: int | None, where: str, what: str, dims: Dims, tensor: Tensor) -> None:
    """Add a step."""
    steps.append(Step(where, what, dims, tuple(tensor.shape), layer))


def shorten(steps: list[Step]) -> list[Step]:
    """The steps with only the first block, followed by one line for the blocks that do the same."""
    layers = sorted({step.layer for step in steps if step.layer is not None})
    if len(layers) < 2:
        return steps
    end = max(i for i, step in enumerate(steps) if step.layer is not None)
    where, what = f"blocks {layers[1]} … {layers[-1]}", f"the same, {len(layers) - 1} times"
    if len(layers) == 2:
        where, what = f"block {layers[1]}", "the same again"
    kept = [step for step in steps[:end] if step.layer in (None, layers[0])]
    return [*kept, replace(steps[end], layer=None, where=where, what=what), *steps[end + 1 :]]
