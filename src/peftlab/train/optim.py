"""AdamW with a warm-up and a decay; weight decay acts on matrices only, not on biases, norms and vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw as update

SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "linear": lambda done, rises: 1.0 - done,
    "cosine": lambda done, rises: 0.5 * (1.0 + math.cos(math.pi * done)),
    "constant": lambda done, rises: 1.0,
    "inverse_sqrt": lambda done, rises: rises**-0.5,  # Vaswani et al. 2017 (arXiv 1706.03762), section 5.3
}
"""the factor after the rise: by the share that is done of what follows it, or by the steps so far, counted in rises"""


class AdamW:
    """Adam with a decay of its own (Loshchilov & Hutter 2019, arXiv 1711.05101), by torch's fused kernel: one pass over
    the memory instead of ten, a tenth of the time where every weight trains.

    `torch.optim.AdamW` calls the same, and is not used: the first one that is made imports torch's compiler, some 2 s
    before a first step.
    """

    def __init__(self, groups: Sequence[dict[str, Any]]) -> None:
        self.param_groups = groups
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}
        """of each parameter that has had a gradient: `step`, `exp_avg` and `exp_avg_sq`"""

    @torch.no_grad()
    def step(self) -> None:
        """Update what has a gradient; each group at its own rate `lr`."""
        for group in self.param_groups:
            learning = [parameter for parameter in group["params"] if parameter.grad is not None]
            states = [self.state_of(parameter) for parameter in learning]
            averages, squares, steps = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step"))
            update(
                learning,
                [parameter.grad for parameter in learning],
                averages,
                squares,
                [],
                steps,
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=1e-8,
                maximize=False,
            )

    def state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """What is known of a parameter's gradients; of a new one nothing."""
        if parameter not in self.state:
            averages = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
            self.state[parameter] = {"step": torch.zeros((), dtype=torch.float32, device=parameter.device), **averages}
        return self.state[parameter]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def adamw(
    parameters: Iterable[nn.Parameter],
    lr: float,
    weight_decay: float,
    others: Mapping[nn.Parameter, float] = MappingProxyType({}),
) -> AdamW:
    """AdamW over groups of the same decay and `peak` rate, which is `lr` for all but the `others`."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in parameters:
        decay = weight_decay if parameter.ndim > 1 else 0.0
        groups.setdefault((others.get(parameter, lr), decay), []).append(parameter)
    return AdamW(
        [{"params": found, "peak": peak, "lr": peak, "weight_decay": decay} for (peak, decay), found in groups.items()]
    )


def rate(step: int, steps: int, warmup: float, schedule: str) -> float:
    """The factor of the peak rate at a step, from 0: it rises over `warmup · steps` steps, then falls."""
    rise = max(1, round(warmup * steps))
    if step < rise:
        return (step + 1) / rise
    return SCHEDULES[schedule]((step - rise) / max(1, steps - rise), (step + 1) / rise)
