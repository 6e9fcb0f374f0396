"""The linear map y = xWᵀ + b with a site: torch's own, so its keys are `weight` and `bias` and nothing else."""

import torch.nn.functional as F
from torch import Tensor, nn

from peftlab.layers.site import LinearSite, Route, hide_empty_sites


class Linear(nn.Linear):
    """x [..., in] → y [..., out]."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias)
        self.site = LinearSite()

    def forward(self, x: Tensor, route: Route | None = None) -> Tensor:
        y = F.linear(x, self.weight, self.bias)
        return y if self.site.idle(route) else self.site(x, y, self.weight, self.bias, route)

    def reset_parameters(self) -> None:
        """Torch's own, but not on the meta device: nothing is to be filled there, and torch would load its compiler."""
        if not self.weight.is_meta:
            super().reset_parameters()

    __repr__ = hide_empty_sites
