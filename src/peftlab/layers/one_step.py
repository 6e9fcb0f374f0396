"""A sublayer whose own weights are frozen, with the norm behind it, as one step of autograd: norm(x + dropout(f(x))).
Attention is one without a norm, too.

A method that trains little beside frozen weights leaves little to learn in a step, but torch would keep a graph of all
its products and add up the gradients of whatever is used twice. Here a sublayer is one call of C each way
(native/sublayer.c), in which what leads back to x is added up by the products, and a block is two steps of autograd in
the place of ten. A thin network that a method puts behind f belongs to the step. `Residual.forward` is the way of all
others, and computes the same; hooks on the layers inside are called there alone.

    python -m pytest tests/layers/test_one_step.py

Shapes: B rows, T tokens, D model width, H heads, d = D / H.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from peftlab import native
from peftlab.layers.addition import Thin
from peftlab.layers.attention import Attention, Dot, Scaled
from peftlab.layers.dropout import draw_seeds, in_65536
from peftlab.layers.feedforward import FeedForward
from peftlab.layers.joined import affine_room
from peftlab.layers.linear import FrozenMap
from peftlab.layers.norm import Affine
from peftlab.layers.site import Route

Found = tuple[Tensor | None, ...]


class Joint(NamedTuple):
    """What becomes of f(x): a part `p` of its values is dropped, a thin network is added, then x, and it is normed."""

    norm: Affine
    p: float
    thin: Thin | None

    @property
    def learned(self) -> tuple[Tensor, ...]:
        """What may learn of it."""
        return *self.norm[:2], *(() if self.thin is None else self.thin[:4])

    def fits(self, D: int) -> bool:
        """Whether the kernels can compute it behind something of a width."""
        w = 0 if self.thin is None else len(self.thin.down)
        shapes = (D,), (D,), (w, D), (w,), (D, w), (D,)
        told = zip(self.learned, shapes, strict=False)
        return all(t.shape == shape and native.takes(t) and t.is_contiguous() for t, shape in told)

    def room(self, wanted: Sequence[bool]) -> tuple[tuple[Tensor | None, Tensor | None], Found]:
        """For the gradients of the norm, and for those of the network."""
        thin = () if self.thin is None else self.thin[:4]
        of_thin = tuple(torch.empty_like(t) if to else None for t, to in zip(thin, wanted[2:], strict=True))
        return affine_room(self.norm.scale, wanted[:2]), of_thin


def in_one_step(
    sublayer: nn.Module, x: Tensor, joint: Joint | None, route: Route | None, inputs: dict[str, Any]
) -> Tensor | None:
    """norm(x + f(x)), or where nothing is joined f(x); None where it is not to be one step."""
    if not native.TALL or x.ndim != 3 or not native.fits(x, x):
        return None
    if joint is not None and not joint.fits(x.shape[-1]):
        return None
    if type(sublayer) is Attention:
        return attended(sublayer, x, joint, route, **inputs)
    if type(sublayer) is FeedForward and joint is not None:
        return fed_forward(sublayer, x, joint, route)
    return None


def pays(x: Tensor, weight: Tensor) -> bool:
    """Whether it is worth to keep a weight as the kernels want it, which they do here."""
    return torch.is_grad_enabled() or (native.keeps(weight, x) and x.numel() > native.UNPACKED * x.shape[-1])


def attended(
    f: Attention, x: Tensor, joint: Joint | None, route: Route | None, mask: Tensor | None = None, **others: Any
) -> Tensor | None:
    """Self-attention that nobody looks at, with nothing before its keys."""
    if any(other is not None for other in others.values()) or type(f.score) not in (Dot, Scaled):
        return None
    if x.shape[-1] != f.q.in_features or not pays(x, f.q.weight):  # of another width torch tells
        return None
    maps = [part.frozen_map(route) for part in (f.q, f.k, f.v, f.o)]
    if not f.kv.idle(route) or any(part is None for part in maps):
        return None
    learned = [() if part is None else part.learned for part in maps]
    leads = any(t.requires_grad for part in ((x,), *learned[:3]) for t in part)
    if torch.is_grad_enabled() and not leads:  # through the attention
        return None
    asked = native.Asked(f.heads, f.score.scale, mask)
    cut = in_65536(f.dropout if f.training else 0.0)
    if not torch.is_grad_enabled():
        return through_attention(x, maps, joint, asked, cut, learning=False)[0]
    behind = () if joint is None else joint.learned
    return Attended.apply(x, maps, joint, asked, cut, *behind, *sum(learned, ()))


def through_attention(
    x: Tensor, maps: Sequence[Any], joint: Joint | None, asked: native.Asked, cut: int, learning: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """What leaves the sublayer, what its gradients need, o's input, and which weights and values stay."""
    B, T, _ = x.shape
    norm, p, thin = joint or (None, 0.0, None)
    weights, values = dropped(cut, B, asked.heads, T, T), dropped(in_65536(p), *x.shape)
    found = native.attended(x, maps, thin, asked, norm, weights, values, learning)
    return *found, weights.keep, values.keep


class Attended(torch.autograd.Function):
    """norm(x + dropout(o(attention of q(x), k(x), v(x)))), or where nothing is joined o's output; `learned` is what
    learns of the joint and of the maps.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        maps: list[FrozenMap],
        joint: Joint | None,
        asked: native.Asked,
        cut: int,
        *learned: Tensor,
    ) -> Tensor:
        out, kept, mixed, *keeps = through_attention(x, maps, joint, asked, cut, learning=True)
        *inputs, o = (part.change is not None for part in maps)
        again = x if any(inputs) else None, mixed if o else None
        watched = *learned, *(part.weight for part in maps)  # by torch: none may change before it is used again
        ctx.save_for_backward(kept, *again, *keeps, asked.mask, *watched)
        ctx.maps, ctx.joint, ctx.asked, ctx.cut = maps, joint, asked, cut
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Found:
        kept, x, mixed, *keeps = ctx.saved_tensors[:5]
        to_x, _, _, _, _, *wanted = ctx.needs_input_grad
        norm, p, thin = ctx.joint or (None, 0.0, None)
        affine, of_thin = ((None, None), ()) if ctx.joint is None else ctx.joint.room(wanted[: len(ctx.joint.learned)])
        rooms = [*(part.room() for part in ctx.maps), of_thin]
        weights, values = native.Dropped(ctx.cut, keeps[0]), native.Dropped(in_65536(p), keeps[1])
        dx = native.attended_back(
            gradient, x, ctx.maps, thin, ctx.asked, norm, weights, values, kept, mixed, to_x, affine, rooms
        )
        behind = () if ctx.joint is None else (*affine, *of_thin)
        return dx if to_x else None, *[None] * 4, *behind, *sum(rooms[:-1], ())


def dropped(cut: int, *shape: int) -> native.Dropped:
    """What is told of values of which some are dropped."""
    keep, seeds = (torch.empty(shape, dtype=torch.uint8), draw_seeds(3)) if cut else (None, None)
    return native.Dropped(cut, keep, seeds)


def fed_forward(f: FeedForward, x: Tensor, joint: Joint, route: Route | None) -> Tensor | None:
    """The feed-forward network with GELU."""
    up, down = f.up.frozen_map(route), f.down.frozen_map(route)
    if f.name != "gelu" or f.drops or up is None or down is None:
        return None
    if any(part.change or part.changes for part in (up, down)):
        return None
    if x.shape[-1] != f.up.in_features or not pays(x, f.up.weight):  # of another width torch tells
        return None
    leads = any(t.requires_grad for t in (x, *up.learned))
    if torch.is_grad_enabled() and not leads:  # through the network
        return None
    if not torch.is_grad_enabled():
        return through_network(x, (up, down), joint, learning=False)[0]
    return FedForward.apply(x, (up, down), joint, *joint.learned, *up.learned, *down.learned)


def through_network(
    x: Tensor, maps: Sequence[FrozenMap], joint: Joint, learning: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """What leaves the sublayer, what its gradients need, and which values stay."""
    values = dropped(in_65536(joint.p), *x.shape)
    return *native.fed_forward(x, maps, joint.thin, joint.norm, values, learning), values.keep


class FedForward(torch.autograd.Function):
    """norm(x + dropout(W₂ · gelu(W₁x + b₁) + b₂)), of which GELU's slope alone waits inside."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, maps: tuple[FrozenMap, FrozenMap], joint: Joint, *learned: Tensor) -> Tensor:
        out, *waiting = through_network(x, maps, joint, learning=True)
        ctx.save_for_backward(*waiting, *joint.learned, *(part.weight for part in maps))
        ctx.maps, ctx.joint = maps, joint
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Found:
        kept, keep, *_ = ctx.saved_tensors
        to_x, _, _, *wanted = ctx.needs_input_grad
        norm, p, thin = ctx.joint
        affine, of_thin = ctx.joint.room(wanted[: len(ctx.joint.learned)])
        rooms = [*(part.room() for part in ctx.maps), of_thin]
        values = native.Dropped(in_65536(p), keep)
        dx = native.fed_forward_back(gradient, ctx.maps, thin, norm, values, kept, to_x, affine, rooms)
        return dx if to_x else None, None, None, *affine, *of_thin, *sum(rooms[:-1], ())
