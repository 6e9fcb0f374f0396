"""AdamW with a warm-up and a decay; weight decay acts on matrices only, not on biases, norms and vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import torch
from torch import nn

SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "linear": lambda done, rises: 1.0 - done,
    "cosine": lambda done, rises: 0.5 * (1.0 + math.cos(math.pi * done)),
    "constant": lambda done, rises: 1.0,
    "inverse_sqrt": lambda done, rises: rises**-0.5,  # Vaswani et al. 2017 (arXiv 1706.03762), section 5.3
}
"""the factor after the rise: by the share that is done of what follows it, or by the steps so far, counted in rises"""


def adamw(
    parameters: Iterable[nn.Parameter],
    lr: float,
    weight_decay: float,
    others: Mapping[nn.Parameter, float] = MappingProxyType({}),
) -> torch.optim.AdamW:
    """AdamW over groups of the same decay and `peak` rate, which is `lr` for all but the `others`."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in parameters:
        decay = weight_decay if parameter.ndim > 1 else 0.0
        groups.setdefault((others.get(parameter, lr), decay), []).append(parameter)
    settings = [{"params": found, "peak": peak, "weight_decay": decay} for (peak, decay), found in groups.items()]
    # fused: one pass over the memory instead of ten, a tenth of the time where every weight trains
    return torch.optim.AdamW(settings, lr=lr, fused=True)


def rate(step: int, steps: int, warmup: float, schedule: str) -> float:
    """The factor of the peak rate at a step, from 0: it rises over `warmup · steps` steps, then falls."""
    rise = max(1, round(warmup * steps))
    if step < rise:
        return (step + 1) / rise
    return SCHEDULES[schedule]((step - rise) / max(1, steps - rise), (step + 1) / rise)
