"""The way of one text through a model: every step with its tensor's shape and the names of its dimensions.

    peftlab trace "a sentence"

Nothing of this is in the models: hooks watch the parts while the text passes, and the slow path of attention shows what
happens between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from peftlab.layers.attention import Attention, Look
from peftlab.layers.embedding import Embedding
from peftlab.layers.feedforward import FeedForward
from peftlab.layers.linear import Linear
from peftlab.layers.residual import Residual
from peftlab.layers.site import SUBLAYERS
from peftlab.models.base import Base
from peftlab.models.encoder import Pooler

TOKENS = ("batch", "token", "width")
HEADS = ("batch", "head", "query", "head width")
MAPS = ("batch", "head", "query", "key")


@dataclass(frozen=True)
class Step:
    """One tensor on the way."""

    where: str
    """the part of the model that made it"""
    what: str
    """what it is, as an equation where there is one"""
    dims: tuple[str, ...]
    """the names of its dimensions"""
    shape: tuple[int, ...]
    """their sizes"""
    layer: int | None = None
    """the block's number, None outside the blocks"""

    def __str__(self) -> str:
        return f"{self.place:<20} {self.what:<38} {self.named}"

    @property
    def place(self) -> str:
        """The part with its block's number."""
        return self.where if self.layer is None else f"{self.layer}.{self.where}"

    @property
    def named(self) -> str:
        """Each dimension's name with its size."""
        return " · ".join(f"{name} {size}" for name, size in zip(self.dims, self.shape, strict=True))


def trace(base: Base, text: str | tuple[str, str]) -> list[Step]:
    """The steps of a text (or a pair) through the model of a base.

    >>> print(trace(load("minilm"), "a sentence")[0])                        # doctest: +SKIP
    tokens               [CLS] a sentence [SEP]                 batch 1 · token 4
    """
    batch = base.encode([text])
    steps = [Step("tokens", " ".join(base.tokenizer.tokens(batch.ids[0])), ("batch", "token"), tuple(batch.ids.shape))]
    watched = [*watch(base.model, steps)]
    try:
        with torch.no_grad():
            out = base.model(batch, attention=True)
    finally:
        for handle in watched:
            handle.remove()
    return [*steps, Step("output.hidden", "each token's vector, in its context", TOKENS, tuple(out.hidden.shape))]


def watch(model: nn.Module, steps: list[Step]) -> Iterator[Any]:
    """Hooks that write a step whenever a part that has something to say is done."""
    for path, module in model.named_modules():
        pieces = path.split(".")
        layer = int(pieces[1]) if pieces[0] == "blocks" and len(pieces) > 1 else None
        say = partial(write, steps, layer)
        for name, (what, dims) in says(module).items():
            part = module.get_submodule(name)
            piece = pieces[0] if layer is None else SUBLAYERS.get(pieces[2], pieces[2])
            where = f"{piece}.{name}".rstrip(".")
            yield part.register_forward_hook(partial(after, say, where, what, dims))
        if isinstance(module, Attention):
            looks: list[list[Look]] = []
            yield module.register_forward_pre_hook(partial(remember, looks), with_kwargs=True)
            yield module.o.register_forward_pre_hook(partial(show_look, say, looks, module))


def says(module: nn.Module) -> dict[str, tuple[str, tuple[str, ...]]]:
    """For a part: its pieces in the order in which they act ("" is itself), what each makes, and its dimensions."""
    match module:
        case Embedding():
            narrow = isinstance(module.project, Linear)
            width = (*TOKENS[:2], "embedding width") if narrow else TOKENS
            lines: dict[str, tuple[str, tuple[str, ...]]] = {"words": ("a vector for each token id", width)}
            if module.segments is not None:
                lines["segments"] = ("first or second text, added", width)
            lines["positions"] = ("a vector for each position, added", width)
            lines["norm"] = ("their sum, normed", width)
            return lines | ({"project": ("to the model's width", TOKENS)} if narrow else {})
        case Attention():
            return {
                "q": ("queries Q = x·Wqᵀ + b", TOKENS),
                "k": ("keys K = x·Wkᵀ + b", TOKENS),
                "v": ("values V = x·Wvᵀ + b", TOKENS),
                "o": ("heads side by side, ·Woᵀ + b", TOKENS),
            }
        case FeedForward():
            return {
                "up": ("x·W₁ᵀ + b", ("batch", "token", "inner width")),
                "down": (f"{module.name}(…)·W₂ᵀ + b", TOKENS),
            }
        case Residual():
            return {"": (f"{(type(module).__doc__ or '').rstrip('.')}", TOKENS)}
        case Pooler():
            return {"": ("tanh(W·first token + b)", ("batch", "width"))}
    return {}


def write(steps: list[Step], layer: int | None, where: str, what: str, dims: tuple[str, ...], tensor: Tensor) -> None:
    """Add a step."""
    steps.append(Step(where, what, dims, tuple(tensor.shape), layer))


def after(say: Any, where: str, what: str, dims: tuple[str, ...], part: nn.Module, inputs: Any, output: Any) -> None:
    """A part is done: its output is a step."""
    if isinstance(output, Tensor) and output.ndim == len(dims):
        say(where, what, dims, output)


def remember(looks: list[list[Look]], part: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    """Attention begins: the list that its slow path will write to."""
    looks[:] = [kwargs["looks"]]


def show_look(say: Any, looks: list[list[Look]], attention: Attention, part: nn.Module, inputs: Any) -> None:
    """Attention has mixed its values: what it computed on the way, in order."""
    look = looks[0][-1]
    say("self", "Q, a slice of the width each", HEADS, look.q)
    say("self", "K, likewise", (*HEADS[:2], "key", "head width"), look.k)
    formula = {"Dot": "Q·Kᵀ", "Scaled": "Q·Kᵀ / √head width", "Weighted": "Q·W·Kᵀ"}[type(attention.score).__name__]
    say("self", f"scores = {formula}", MAPS, look.scores)
    say("self", "weights = softmax: rows sum to 1", MAPS, look.weights)
    say("self", "weights·V", HEADS, look.mixed)


def shorten(steps: list[Step]) -> list[Step]:
    """The steps with only the first block, followed by one line for the blocks that do the same."""
    layers = sorted({step.layer for step in steps if step.layer is not None})
    if len(layers) < 2:
        return steps
    last = [step for step in steps if step.layer == layers[-1]][-1]
    rest = replace(
        last, layer=None, where=f"blocks {layers[1]} … {layers[-1]}", what=f"the same, {len(layers) - 1} times"
    )
    after = steps.index(last)
    kept = [step for step in steps[:after] if step.layer in (None, layers[0])]
    return [*kept, rest, *steps[after + 1 :]]
