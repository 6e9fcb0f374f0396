"""The position-wise feed-forward network, W₂ · activation(W₁x + b₁) + b₂: the same two matrices at every token.

Vaswani et al. 2017 (arXiv 1706.03762), section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from peftlab import native
from peftlab.errors import unknown
from peftlab.layers.dropout import Dropout
from peftlab.layers.gelu import gelu, gelu_, through_gelu
from peftlab.layers.linear import Linear, faster
from peftlab.layers.site import Route

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}

OVERWRITING: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "gelu": gelu_,
    "gelu_new": partial(torch.ops.aten.gelu_, approximate="tanh"),
    "gelu_pytorch_tanh": partial(torch.ops.aten.gelu_, approximate="tanh"),
    "silu": partial(F.silu, inplace=True),
    "swish": partial(F.silu, inplace=True),
    "tanh": torch.tanh_,
}
"""the same, but the result takes the place of what was given"""


def activation_named(name: str) -> Callable[[Tensor], Tensor]:
    """The activation function of a name, or an error with the nearest one."""
    if name not in ACTIVATIONS:
        raise unknown("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


class FeedForward(nn.Module):
    """x [..., D] → [..., inner] → [..., D]; `inner` may also be narrower than D."""

    def __init__(self, dim: int, inner: int, activation: str = "gelu", dropout: float = 0.0) -> None:
        super().__init__()
        self.activation = activation_named(activation)
        self.name = activation
        self.up = Linear(dim, inner)
        self.dropout = Dropout(dropout)
        self.down = Linear(inner, dim)

    def forward(self, x: Tensor, route: Route | None = None) -> Tensor:
        if self.name == "gelu" and native.TALL and faster(x, self.up.weight) and self.plain(route):
            return through_gelu(x, self.up, self.down)
        inner = self.up(x, route)
        # the widest values of a block: a second place for them costs more than to compute them
        activate = self.activation if inner.requires_grad else OVERWRITING[self.name]
        return self.down(self.dropout(activate(inner)), route)

    def plain(self, route: Route | None) -> bool:
        """Whether it is its two matrices as they are: nothing is added, dropped or learned."""
        up, down = self.up, self.down
        if self.drops or not up.site.idle(route) or not down.site.idle(route):
            return False
        return not torch.is_grad_enabled() or not (up.learns or down.learns)

    @property
    def drops(self) -> bool:
        """Whether values inside are dropped now."""
        return self.training and self.dropout.p > 0

    def extra_repr(self) -> str:
        return self.name


class ChunkedFeedForward(FeedForward):
    """The same, a chunk of tokens at a time, which the inner activations of no other wait for: the backward pass makes
    them again (Kitaev et al. 2020, arXiv 2001.04451, section 3).
    """

    def __init__(self, dim: int, inner: int, activation: str = "gelu", dropout: float = 0.0, chunk: int = 1024) -> None:
        super().__init__(dim, inner, activation, dropout)
        self.chunk = chunk

    def forward(self, x: Tensor, route: Route | None = None) -> Tensor:
        """x [B, T, D]."""
        whole = super().forward
        return torch.cat([checkpoint(whole, part, route, use_reentrant=False) for part in x.split(self.chunk, 1)], 1)
