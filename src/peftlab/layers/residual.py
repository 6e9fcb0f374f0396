"""Residual connections: the one place where pre-norm, post-norm or no residual at all is decided.

    post   norm(x + f(x))     Vaswani et al. 2017 (arXiv 1706.03762): BERT
    pre    x + f(norm(x))     Xiong et al. 2020 (arXiv 2002.04745): GPT-2, ViT
    none   norm(f(x))         the ablation

Each wraps one sublayer f. What the block does with f's output y is `join`; the site lies just before it.

A self-attention may be asked for a few queries only: then x holds these, and `among` the sequence that they are from.

Shapes: B rows, T tokens, D width.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from peftlab import native
from peftlab.layers.dropout import Dropout
from peftlab.layers.joined import fused_join
from peftlab.layers.norm import Affine, LayerNorm
from peftlab.layers.one_step import Joint, in_one_step
from peftlab.layers.site import Route, SublayerSite, hide_empty_sites


class Residual(nn.Module):
    """A sublayer with its norm, dropout and site; a subclass says what f receives and how its output is joined."""

    def __init__(self, dim: int, sublayer: nn.Module, norm: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.dim = dim
        self.sublayer = sublayer
        self.dropout = Dropout(dropout)
        self.out = SublayerSite()
        self.norm = norm

    def forward(
        self,
        x: Tensor,
        real: Tensor | None = None,
        route: Route | None = None,
        among: Tensor | None = None,
        **inputs: Any,
    ) -> Tensor:
        """x [B, T, D]; `real` [B, T] is True at real tokens; `inputs` are the sublayer's own."""

        if among is None and (joined := self.in_one_step(x, route, inputs)) is not None:
            return joined

        def join(y: Tensor) -> Tensor:
            return self.join(x, y, real, route)

        received = self.receive(x, real, route)
        if among is not None:
            inputs["memory"] = self.receive(among, real, route)
        y = in_one_step(self.sublayer, received, None, route, inputs)
        if y is None:
            y = self.sublayer(received, route=route, **inputs)
        if self.out.idle(route) and (norm := self.fusing(x, y, route)) is not None:
            return fused_join(x, y, norm, self.dropped)
        if self.training:
            y = self.dropout(y)
        return join(y if self.out.idle(route) else self.out(y, received, join, route))

    @property
    def dropped(self) -> float:
        """Which part of f's values is dropped now."""
        return self.dropout.p if self.training else 0.0

    def in_one_step(self, x: Tensor, route: Route | None, inputs: dict[str, Any]) -> Tensor | None:
        """All of it as one step of autograd; None where it can't be."""
        return None

    def fusing(self, x: Tensor, y: Tensor, route: Route | None) -> Affine | None:
        """What one of our own kernels, which drops, joins and norms, is told of the norm; None: it does not."""
        return None

    def receive(self, x: Tensor, real: Tensor | None, route: Route | None) -> Tensor:
        """What f is given."""
        return x

    def join(self, x: Tensor, y: Tensor, real: Tensor | None, route: Route | None) -> Tensor:
        """norm(x + y)."""
        return self.norm(x + y, real, route)

    __repr__ = hide_empty_sites


class PostNorm(Residual):
    """norm(x + f(x))."""

    def in_one_step(self, x: Tensor, route: Route | None, inputs: dict[str, Any]) -> Tensor | None:
        added = None if self.out.idle(route) else self.out.alone(route)
        thin = None if added is None else added.thin()
        if (thin is None and not self.out.idle(route)) or (norm := self.fusing(x, x, route)) is None:
            return None
        return in_one_step(self.sublayer, x, Joint(norm, self.dropped, thin), route, inputs)

    def fusing(self, x: Tensor, y: Tensor, route: Route | None) -> Affine | None:
        if not native.fits(x, y) or x.shape != y.shape or not isinstance(self.norm, LayerNorm):
            return None
        norm = self.norm.affine(route)
        return norm if Joint(norm, 0.0, None).fits(x.shape[-1]) else None

    def join(self, x: Tensor, y: Tensor, real: Tensor | None, route: Route | None) -> Tensor:
        norm = self.fusing(x, y, route)
        return super().join(x, y, real, route) if norm is None else fused_join(x, y, norm, 0.0)


class PreNorm(Residual):
    """x + f(norm(x))."""

    def receive(self, x: Tensor, real: Tensor | None, route: Route | None) -> Tensor:
        return self.norm(x, real, route)

    def join(self, x: Tensor, y: Tensor, real: Tensor | None, route: Route | None) -> Tensor:
        return x + y


class NoResidual(Residual):
    """norm(f(x))."""

    def join(self, x: Tensor, y: Tensor, real: Tensor | None, route: Route | None) -> Tensor:
        return self.norm(y, real, route)


class Absent(nn.Module):
    """In the place of a sublayer that a model does without: passes x on."""

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        return x


RESIDUALS: dict[str, Callable[[int, nn.Module, nn.Module, float], Residual]] = {
    "post": PostNorm,
    "pre": PreNorm,
    "none": NoResidual,
}
