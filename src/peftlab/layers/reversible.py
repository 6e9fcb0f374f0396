"""Reversible layers: a stack whose inputs are computed back from its outputs, so that no layer's wait in memory.

Gomez et al. 2017 (arXiv 1707.04585); for the Transformer Kitaev et al. 2020 (arXiv 2001.04451), section 3. A block has
two sublayers and two streams:

    y₁ = x₁ + f(x₂)         x₂ = y₂ − g(y₁)
    y₂ = x₂ + g(y₁)         x₁ = y₁ − f(x₂)

The backward pass goes down the stack, computes each block's inputs, and on the way the gradients through f and g: one
sublayer's activations at a time, for a third more work. Called twice, f and g must give the same. Dropout does, because
the random state is put back; a norm with running averages does not.

    y1, y2 = reversible(x1, x2, [(Call(f, {}), Call(g, {})) for f, g in blocks])
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from peftlab.layers.residual import PreNorm
from peftlab.layers.site import Route


class Branch(PreNorm):
    """f(norm(x)): a sublayer with its norm, dropout and site, whose output goes to the other stream."""

    def join(self, x: Tensor, y: Tensor, real: Tensor | None, route: Route | None) -> Tensor:
        return y


class Call(NamedTuple):
    """A sublayer, and what it is given besides x: nothing that carries a gradient."""

    sublayer: nn.Module
    inputs: Mapping[str, Any]

    def __call__(self, x: Tensor) -> Tensor:
        return self.sublayer(x, **self.inputs)

    @property
    def learns(self) -> list[nn.Parameter]:
        """The parameters that get a gradient."""
        return [parameter for parameter in self.sublayer.parameters() if parameter.requires_grad]


Blocks = Sequence[tuple[Call, Call]]
"""f and g of each"""


def irreversible(x1: Tensor, x2: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
    """The same numbers; in training every activation waits."""
    for f, g in blocks:
        x1 = x1 + f(x2)
        x2 = x2 + g(x1)
    return x1, x2


def reversible(x1: Tensor, x2: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
    """The outputs of the stack. Below the lowest block that learns nothing is kept, and nothing computed back."""
    learning = torch.is_grad_enabled()
    moved = x1.requires_grad or x2.requires_grad
    lowest = next((i for i, (f, g) in enumerate(blocks) if learning and (moved or f.learns or g.learns)), len(blocks))
    x1, x2 = irreversible(x1, x2, blocks[:lowest])
    above = blocks[lowest:]
    parameters = {id(p): p for block in above for call in block for p in call.learns}
    return Reversible.apply(above, x1, x2, *parameters.values()) if above else (x1, x2)


class Reversible(torch.autograd.Function):
    """The parameters are inputs, so that autograd knows that the outputs depend on them."""

    @staticmethod
    def forward(ctx: Any, blocks: Blocks, x1: Tensor, x2: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        ctx.blocks, ctx.moments = blocks, []
        for f, g in blocks:
            before_f = Moment(x1.device)
            x1 = x1 + f(x2)
            before_g = Moment(x1.device)
            x2 = x2 + g(x1)
            ctx.moments.append((before_f, before_g))
        ctx.save_for_backward(x1, x2, *parameters)
        return x1, x2

    @staticmethod
    def backward(ctx: Any, d1: Tensor, d2: Tensor) -> tuple[Tensor | None, ...]:
        y1, y2, *parameters = ctx.saved_tensors
        gradients: dict[int, Tensor] = {}
        for (f, g), (before_f, before_g) in zip(reversed(ctx.blocks), reversed(ctx.moments), strict=True):
            with before_g.again():
                y2, d1 = undo(g, y1, y2, d1, d2, gradients)
            with before_f.again():
                y1, d2 = undo(f, y2, y1, d2, d1, gradients)
        return None, d1, d2, *(gradients.get(id(parameter)) for parameter in parameters)


def undo(f: Call, x: Tensor, y: Tensor, dx: Tensor, dy: Tensor, gradients: dict[int, Tensor]) -> tuple[Tensor, Tensor]:
    """Of y = z + f(x): z, and the gradient of x with what comes through f; its parameters' is added to `gradients`."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        made = f(x)
    through, *found = torch.autograd.grad(made, [x, *f.learns], dy.to(made.dtype), allow_unused=True)
    for parameter, gradient in zip(f.learns, found, strict=True):
        if gradient is not None:
            before = gradients.get(id(parameter))
            gradients[id(parameter)] = gradient if before is None else before + gradient
    return y - made.detach(), dx if through is None else dx + through


class Moment:
    """What a sublayer's numbers depend on besides its inputs: the random state, and the precision of autocast."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.state = torch.get_rng_state()
        self.state_there = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        self.cast = device.type, torch.get_autocast_dtype(device.type), torch.is_autocast_enabled(device.type)

    @contextmanager
    def again(self) -> Iterator[None]:
        """As it was then; afterwards as it is now."""
        devices = [self.device] if self.state_there is not None else []
        with torch.random.fork_rng(devices), torch.autocast(*self.cast, cache_enabled=False):
            torch.set_rng_state(self.state)
            if self.state_there is not None:
                torch.cuda.set_rng_state(self.state_there, self.device)
            yield
