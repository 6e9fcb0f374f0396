"""The same layer by our own kernels and by torch, and a change of low rank to put into it."""

import torch
from torch import nn

from peftlab import native
from peftlab.layers.addition import Addition, LowRank


def learn(
    module: nn.Module, kernels: bool, *given: torch.Tensor, lowest: bool = False, integers: bool = False, **choices
) -> list[torch.Tensor | None]:
    """The output, and the gradients of the inputs, unless it is the lowest module, and of all weights."""
    inputs = [t.clone().requires_grad_(not lowest) for t in given]
    module.zero_grad()
    torch.manual_seed(1)  # dropout draws the same
    with native.computing(kernels, integers=integers):
        y = module(*inputs, **choices)
        (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    return [y.detach(), *(t.grad for t in inputs), *(p.grad for p in module.parameters())]


def same(module: nn.Module, *given: torch.Tensor, **choices) -> None:
    ours, theirs = (learn(module, kernels, *given, **choices) for kernels in (True, False))
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()) + 1e-6)


def near(module: nn.Module, *given: torch.Tensor, within: float, **choices) -> None:
    """In integers, all by the norms of the differences; the output is rounded as the kernels for numbers never do."""
    ours, theirs = (learn(module, kernels, *given, integers=kernels, **choices) for kernels in (True, False))
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert float((one - other).norm()) <= within * float(other.norm())
    assert float((ours[0] - theirs[0]).norm()) > 1e-6 * float(theirs[0].norm())


class Change(Addition):
    """Of low rank; alone it is one step with the map that it changes."""

    def __init__(self, inputs: int, rank: int, outputs: int) -> None:
        super().__init__()
        self.A, self.B = nn.Parameter(torch.randn(rank, inputs)), nn.Parameter(torch.randn(outputs, rank))

    def forward(self, x, y, weight, bias):
        return 0.7 * x @ self.A.mT @ self.B.mT

    def low_rank(self):
        return LowRank(self.A, self.B, 0.7)
