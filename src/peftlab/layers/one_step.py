"""A sublayer whose own weights are frozen, with the norm behind it, as one step of autograd: norm(x + dropout(f(x))).

A method that trains little beside frozen weights leaves little to learn in a step, but torch would keep a graph of all
its products and add up the gradients of whatever is used twice. Here the kernels follow each other, what leads back to
x is added up inside them, and a block is two steps of autograd in the place of ten. `Residual.forward` is the way of
all others, and computes the same; hooks on the layers inside are called there alone.

    python -m pytest tests/layers/test_fused.py

Shapes: B rows, T tokens, D model width, H heads, d = D / H.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from peftlab import native
from peftlab.layers.attention import Attention, Dot, Scaled, side_by_side, split
from peftlab.layers.dropout import draw_kept, growth, in_65536
from peftlab.layers.feedforward import FeedForward
from peftlab.layers.gelu import network
from peftlab.layers.joined import join, join_back
from peftlab.layers.linear import FrozenMap, bias_gradient
from peftlab.layers.norm import Affine
from peftlab.layers.site import Route


def in_one_step(
    sublayer: nn.Module, x: Tensor, norm: Affine, p: float, route: Route | None, inputs: dict[str, Any]
) -> Tensor | None:
    """norm(x + f(x)) of x that the kernels are to compute with, where a part `p` of f's values is dropped; None where
    it is not to be one step.
    """
    fits = native.TALL and x.ndim == 3 and x.shape[-1:] == norm.scale.shape  # of another width torch tells
    if not fits or not torch.is_grad_enabled():
        return None
    if type(sublayer) is Attention:
        return attended(sublayer, x, norm, p, route, **inputs)
    if type(sublayer) is FeedForward:
        return fed_forward(sublayer, x, norm, p, route)
    return None


def attended(
    f: Attention, x: Tensor, norm: Affine, p: float, route: Route | None, mask: Tensor | None = None, **others: Any
) -> Tensor | None:
    """Self-attention that nobody looks at, with nothing before its keys."""
    if any(other is not None for other in others.values()) or type(f.score) not in (Dot, Scaled):
        return None
    maps = [part.frozen_map(route) for part in (f.q, f.k, f.v, f.o)]
    if not f.kv.idle(route) or any(part is None for part in maps):
        return None
    learned = [() if part is None else part.learned for part in maps]
    if not any(t.requires_grad for part in ((x,), *learned[:3]) for t in part):  # nothing leads through the attention
        return None
    cuts = in_65536(f.dropout if f.training else 0.0), in_65536(p)
    return Attended.apply(x, norm.shift, maps, f.heads, f.score.scale, mask, cuts, norm, *sum(learned, ()))


class Attended(torch.autograd.Function):
    """norm(x + dropout(o(attention of q(x), k(x), v(x)))); `learned` is what learns of the maps."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shift: Tensor,
        maps: list[FrozenMap],
        heads: int,
        scale: float,
        mask: Tensor | None,
        cuts: tuple[int, int],
        norm: Affine,
        *learned: Tensor,
    ) -> Tensor:
        cut, norm_cut = cuts
        (q, uq), (k, uk), (v, uv) = (part.product(x) for part in maps[:3])
        B, T, _ = x.shape
        keep = draw_kept(torch.Size([B, heads, T, T]), cut) if cut else None
        parts = split(q, heads), split(k, heads), split(v, heads)
        mixed = side_by_side(native.attend(*parts, scale, mask, keep, growth(cut)))
        y, uo = maps[3].product(mixed)
        out, waiting = join(x, y, norm, norm_cut)
        x_again = None if uq is uk is uv is None else x
        mixed_again = None if uo is None else mixed
        watched = *learned, *(part.weight for part in maps)  # by torch: none may change before it is used again
        ctx.save_for_backward(x_again, q, k, v, mask, keep, mixed_again, uq, uk, uv, uo, *waiting, *watched)
        ctx.maps, ctx.heads, ctx.scale, ctx.cuts = maps, heads, scale, cuts
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, q, k, v, mask, keep, mixed, uq, uk, uv, uo, *waiting = ctx.saved_tensors
        cut, norm_cut = ctx.cuts
        to_x, to_shift, *_ = ctx.needs_input_grad
        dx, dy = join_back(gradient, waiting[:4], norm_cut)
        dmixed, of_o = ctx.maps[3].gradients(dy, mixed, uo)  # dy may be dx, to which is added only after this
        q, k, v, dmixed = (split(t, ctx.heads) for t in (q, k, v, dmixed))
        found = native.attend_back(q, k, v, dmixed, ctx.scale, mask, keep, growth(cut))
        learned: list[Tensor | None] = []
        for part, d, u in zip(ctx.maps, found, (uq, uk, uv), strict=False):
            learned += part.gradients(side_by_side(d), x, u, to_x, onto=dx)[1]
        dshift = bias_gradient(gradient) if to_shift else None
        return dx if to_x else None, dshift, *[None] * 6, *learned, *of_o


def fed_forward(f: FeedForward, x: Tensor, norm: Affine, p: float, route: Route | None) -> Tensor | None:
    """The feed-forward network with GELU."""
    up, down = f.up.frozen_map(route), f.down.frozen_map(route)
    if f.name != "gelu" or f.drops or up is None or down is None or up.change is not None or down.change is not None:
        return None
    if not any(t.requires_grad for t in (x, *up.learned)):  # nothing leads through the network
        return None
    return FedForward.apply(x, up.bias, down.bias, norm.shift, up.weight, down.weight, norm, in_65536(p))


class FedForward(torch.autograd.Function):
    """norm(x + dropout(W₂ · gelu(W₁x + b₁) + b₂)), of which GELU's slope alone waits inside."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        up_bias: Tensor,
        down_bias: Tensor,
        shift: Tensor,
        up: Tensor,
        down: Tensor,
        norm: Affine,
        cut: int,
    ) -> Tensor:
        y, slope = network(x, up, up_bias, down, down_bias)
        out, waiting = join(x, y, norm, cut)
        ctx.save_for_backward(slope, up, down, *waiting)
        ctx.cut = cut
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        slope, up, down, *waiting = ctx.saved_tensors
        to_x, *to_biases, to_shift = ctx.needs_input_grad[:4]
        dx, dy = join_back(gradient, waiting, ctx.cut)
        of_down = bias_gradient(dy) if to_biases[1] else None  # dy may be dx, to which is added only after this
        dinner = native.linear_input(dy, down, slope, frozen=True)
        if to_x:
            native.add_linear_input(dx, dinner, up, frozen=True)
        of_up = bias_gradient(dinner) if to_biases[0] else None
        return dx if to_x else None, of_up, of_down, bias_gradient(gradient) if to_shift else None, *[None] * 4
