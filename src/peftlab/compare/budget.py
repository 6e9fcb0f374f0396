"""Fair budgets: the same time for every method, or the same number of trainable parameters.

Without a budget every method has the same number of optimizer steps.

    --budget seconds=60      as many steps as a method does in 60 seconds, measured by a few steps before the runs
    --budget params=50000    each method in the size (rank, width, tokens …) that trains nearest to 50,000 parameters

What was found is written down, so that a comparison that goes on keeps it.
"""

from __future__ import annotations

import json
import math
import time
from bisect import bisect_left
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peftlab.data.files import read_object, write_text
from peftlab.errors import UserError, unknown
from peftlab.models.base import load
from peftlab.models.model import Model
from peftlab.peft.attach import build
from peftlab.peft.method import Method
from peftlab.train.config import Config
from peftlab.train.run import open_work

FILE = "budget.json"
WARM_UP, TIMED = 2, 6
"""steps before and while the time is taken"""
LARGEST = 4096
"""that a size may get"""


def parse(budget: str) -> tuple[str, float]:
    """`seconds=60` → its kind and its amount."""
    kind, equals, amount = budget.partition("=")
    if kind not in BUDGETS:
        raise unknown("budget", kind, BUDGETS)
    try:
        number = float(amount)
    except ValueError:
        number = 0.0
    if not equals or not number > 0:
        raise UserError(f"--budget {budget!r} has no amount: write {kind}=60")
    return kind, number


def spend(budget: str, config: Config, folder: Path) -> list[str]:
    """The settings, as `section.key=value`, by which a method stays within a budget; measured once for a folder."""
    kind, amount = parse(budget)
    key = f"{budget} {config.method['name']} {config.fingerprint()}"
    known: dict[str, Any] = read_object(folder / FILE) if (folder / FILE).is_file() else {}
    if key not in known:
        known[key] = BUDGETS[kind](config, amount)
        write_text(folder / FILE, json.dumps(known, indent=1) + "\n")
    found: list[str] = known[key]
    return found


def within_seconds(config: Config, seconds: float) -> list[str]:
    """As many steps as the time allows."""
    training = open_work(config).prepare()
    training.model.train()
    for _ in range(WARM_UP):
        training.step()
    start = time.perf_counter()
    for _ in range(TIMED):
        training.step()
    each = (time.perf_counter() - start) / TIMED
    return [f"train.steps={max(1, round(seconds / each))}"]


def within_parameters(config: Config, parameters: float) -> list[str]:
    """The size at which a method trains nearest to so many parameters; none where a method has no size."""
    model, method = load(config.base).model, config.build_method()
    if method.size_field is None:
        return []

    def count(size: int) -> float:
        return trained(model, method.resized(size))

    sizes = range(1, LARGEST + 1)
    reached = min(bisect_left(sizes, parameters, key=count), len(sizes) - 1)
    best = min(sizes[max(reached - 1, 0) : reached + 1], key=lambda size: abs(count(size) - parameters))
    before, after = asdict(method), asdict(method.resized(best))
    return [f"method.{key}={value}" for key, value in after.items() if value != before[key]]


def trained(model: Model, method: Method) -> float:
    """The parameters that a method has, without a head; infinitely many where it does not fit the model."""
    try:
        built = build(model, method, None)
    except UserError:
        return math.inf
    return sum(p.numel() for p in {id(p): p for addition in built.values() for p in addition.parameters()}.values())


BUDGETS = {"seconds": within_seconds, "params": within_parameters}
