"""A sublayer whose own weights are frozen, with the norm behind it, as one step of autograd: norm(x + dropout(f(x))).

A method that trains little beside frozen weights leaves little to learn in a step, but torch would keep a graph of all
its products and add up the gradients of whatever is used twice. Here a sublayer is one call of C each way
(native/sublayer.c), in which what leads back to x is added up by the products, and a block is two steps of autograd in
the place of ten. `Residual.forward` is the way of all others, and computes the same; hooks on the layers inside are
called there alone.

    python -m pytest tests/layers/test_fused.py

Shapes: B rows, T tokens, D model width, H heads, d = D / H.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from peftlab import native
from peftlab.layers.attention import Attention, Dot, Scaled
from peftlab.layers.dropout import draw_seeds, in_65536
from peftlab.layers.feedforward import FeedForward
from peftlab.layers.joined import affine_room
from peftlab.layers.linear import FrozenMap
from peftlab.layers.norm import Affine
from peftlab.layers.site import Route


def in_one_step(
    sublayer: nn.Module, x: Tensor, norm: Affine | None, p: float, route: Route | None, inputs: dict[str, Any]
) -> Tensor | None:
    """norm(x + f(x)), where a part `p` of f's values is dropped, or without a norm f(x); None where it is not to be
    one step.
    """
    if not native.TALL or x.ndim != 3 or not torch.is_grad_enabled() or not native.fits(x, x):
        return None
    if type(sublayer) is Attention:
        return attended(sublayer, x, norm, p, route, **inputs)
    if type(sublayer) is FeedForward and norm is not None:
        return fed_forward(sublayer, x, norm, p, route)
    return None


def attended(
    f: Attention,
    x: Tensor,
    norm: Affine | None,
    p: float,
    route: Route | None,
    mask: Tensor | None = None,
    **others: Any,
) -> Tensor | None:
    """Self-attention that nobody looks at, with nothing before its keys."""
    if any(other is not None for other in others.values()) or type(f.score) not in (Dot, Scaled):
        return None
    if x.shape[-1] != f.q.in_features:  # of another width torch tells
        return None
    maps = [part.frozen_map(route) for part in (f.q, f.k, f.v, f.o)]
    if not f.kv.idle(route) or any(part is None for part in maps):
        return None
    learned = [() if part is None else part.learned for part in maps]
    if not any(t.requires_grad for part in ((x,), *learned[:3]) for t in part):  # nothing leads through the attention
        return None
    cuts = in_65536(f.dropout if f.training else 0.0), in_65536(p)
    asked = native.Asked(f.heads, f.score.scale, mask)
    return Attended.apply(x, *(norm or (None, None, 0.0)), maps, asked, cuts, *sum(learned, ()))


class Attended(torch.autograd.Function):
    """norm(x + dropout(o(attention of q(x), k(x), v(x)))), or without a norm o's output; `learned` is what learns of
    the maps.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor | None,
        shift: Tensor | None,
        eps: float,
        maps: list[FrozenMap],
        asked: native.Asked,
        cuts: tuple[int, int],
        *learned: Tensor,
    ) -> Tensor:
        norm = None if scale is None or shift is None else Affine(scale, shift, eps)
        B, T, _ = x.shape
        weights, values = dropped(cuts[0], B, asked.heads, T, T), dropped(cuts[1], *x.shape)
        out, kept, mixed = native.attended(x, maps, asked, norm, weights, values)
        *inputs, o = (part.change is not None for part in maps)
        again = x if any(inputs) else None, mixed if o else None
        watched = *learned, *(part.weight for part in maps)  # by torch: none may change before it is used again
        ctx.save_for_backward(kept, *again, weights.keep, values.keep, asked.mask, scale, *watched)
        ctx.maps, ctx.asked, ctx.cuts, ctx.norm = maps, asked, cuts, norm
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        kept, x, mixed, *keeps = ctx.saved_tensors[:5]
        to_x, *to_norm = ctx.needs_input_grad[:3]
        weights, values = (native.Dropped(cut, keep) for cut, keep in zip(ctx.cuts, keeps, strict=True))
        rooms = [part.room() for part in ctx.maps]
        affine = (None, None) if ctx.norm is None else affine_room(ctx.norm.scale, to_norm)
        dx = native.attended_back(
            gradient, x, ctx.maps, ctx.asked, ctx.norm, weights, values, kept, mixed, to_x, affine, rooms
        )
        return dx if to_x else None, *affine, *[None] * 4, *sum(rooms, ())


def dropped(cut: int, *shape: int) -> native.Dropped:
    """What is told of values of which some are dropped."""
    keep, seeds = (torch.empty(shape, dtype=torch.uint8), draw_seeds(3)) if cut else (None, None)
    return native.Dropped(cut, keep, seeds)


def fed_forward(f: FeedForward, x: Tensor, norm: Affine, p: float, route: Route | None) -> Tensor | None:
    """The feed-forward network with GELU."""
    up, down = f.up.frozen_map(route), f.down.frozen_map(route)
    if f.name != "gelu" or f.drops or up is None or down is None or up.change is not None or down.change is not None:
        return None
    if x.shape[-1] != f.up.in_features:  # of another width torch tells
        return None
    if not any(t.requires_grad for t in (x, *up.learned)):  # nothing leads through the network
        return None
    return FedForward.apply(x, *norm, up, down, in_65536(p), *up.learned, *down.learned)


class FedForward(torch.autograd.Function):
    """norm(x + dropout(W₂ · gelu(W₁x + b₁) + b₂)), of which GELU's slope alone waits inside."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor,
        shift: Tensor,
        eps: float,
        up: FrozenMap,
        down: FrozenMap,
        cut: int,
        *learned: Tensor,
    ) -> Tensor:
        norm = Affine(scale, shift, eps)
        values = dropped(cut, *x.shape)
        out, kept = native.fed_forward(x, (up, down), norm, values)
        ctx.save_for_backward(kept, values.keep, scale, up.weight, down.weight)
        ctx.maps, ctx.cut, ctx.norm = (up, down), cut, norm
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        kept, keep, *_ = ctx.saved_tensors
        to_x, *to_norm = ctx.needs_input_grad[:3]
        rooms = [part.room() for part in ctx.maps]
        affine = affine_room(ctx.norm.scale, to_norm)
        values = native.Dropped(ctx.cut, keep)
        dx = native.fed_forward_back(gradient, ctx.maps, ctx.norm, values, kept, to_x, affine, rooms)
        return dx if to_x else None, *affine, *[None] * 4, *sum(rooms, ())
