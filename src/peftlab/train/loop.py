"""The training loop: rows in a fixed order, a step, now and then an evaluation; the best weights by validation win.

It knows models, tasks and methods only by what they share: logits, a loss, parameters that train.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from peftlab.errors import UserError
from peftlab.models.model import Model
from peftlab.peft.method import Method
from peftlab.tasks import classify
from peftlab.tasks.classify import Encoded
from peftlab.train.config import Train
from peftlab.train.optim import adamw, rate
from peftlab.train.order import endless, sorted_batches
from peftlab.train.precision import computing_in, pick_precision

Tell = Callable[[dict[str, Any]], None]


@dataclass
class Trained:
    """What a loop leaves behind; the model holds the best weights."""

    steps: int
    best_step: int
    best_score: float
    seconds: float
    """spent in steps, without evaluations"""
    tokens: int
    """real tokens seen in training"""
    curve: list[dict[str, float]] = field(default_factory=list)
    """at each evaluation: step, loss since the last one, score"""


def train(model: Model, method: Method, data: Encoded, validation: Encoded, settings: Train, tell: Tell) -> Trained:
    """Train what `freeze` left trainable on `data`, choosing the weights that do best on `validation`."""
    lr = settings.lr or method.lr
    steps = settings.steps or math.ceil(settings.epochs * len(data) / settings.batch)
    every = max(1, math.ceil(steps / settings.evaluations))
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = adamw(trainable, lr, settings.weight_decay)
    device = trainable[0].device
    precision = pick_precision(settings.precision, device)
    best, kept, waited = Trained(0, 0, -math.inf, 0.0, 0), [p.detach().clone() for p in trainable], 0
    losses: list[float] = []
    model.train()
    rows = endless(data.lengths(), settings.batch, settings.seed)
    for step in range(steps):
        start = time.perf_counter()
        method.thaw(model, step)
        for group in optimizer.param_groups:
            group["lr"] = lr * rate(step, steps, settings.warmup, settings.schedule)
        chosen = next(rows)
        losses.append(backward(model, data, chosen, settings.accumulate, precision))
        norm = torch.nn.utils.clip_grad_norm_(trainable, settings.clip)
        if not math.isfinite(losses[-1]) or not bool(norm.isfinite()):
            where = f"step {step + 1} (rows {', '.join(map(str, chosen[:8]))} …)"
            raise UserError(f"the loss or its gradient is not finite at {where}: try a smaller train.lr")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        best.seconds += time.perf_counter() - start
        best.tokens += sum(len(data.ids[row]) for row in chosen)
        best.steps = step + 1
        if best.steps % every and best.steps < steps:
            tell({"step": best.steps, "steps": steps, "loss": losses[-1]})
            continue
        score = classify.scores(predict(model, validation, precision)[0], validation.labels)["accuracy"]
        best.curve.append({"step": best.steps, "loss": sum(losses) / len(losses), "score": score})
        tell({"step": best.steps, "steps": steps, "loss": losses[-1], "score": score})
        losses, waited = [], waited + 1
        if score > best.best_score:
            best.best_score, best.best_step, waited = score, best.steps, 0
            kept = [parameter.detach().clone() for parameter in trainable]
        if settings.patience is not None and waited >= settings.patience:
            break
    with torch.no_grad():
        for parameter, value in zip(trainable, kept, strict=True):
            parameter.copy_(value)
    model.eval()
    return best


def backward(model: Model, data: Encoded, rows: Sequence[int], parts: int, precision: str) -> float:
    """The gradient of the mean loss over the rows, computed in parts; gives that loss."""
    total = 0.0
    size = math.ceil(len(rows) / parts)
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        batch, labels = data.batch(part)
        device = next(model.parameters()).device
        with computing_in(precision, device):
            logits = model(batch.to(device), logits_only=True).logits
        loss = classify.loss(logits, labels.to(device)) * (len(part) / len(rows))
        loss.backward()
        total += float(loss.detach())
    return total


@torch.no_grad()
def predict(model: Model, data: Encoded, precision: str) -> tuple[list[int], Tensor]:
    """The predicted label of each row in its order, and the logits [rows, L]."""
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    found: dict[int, Tensor] = {}
    for rows in sorted_batches(data.lengths()):
        batch, _ = data.batch(rows)
        with computing_in(precision, device):
            logits = model(batch.to(device), logits_only=True).logits
        found |= dict(zip(rows, logits.float().cpu(), strict=True))
    model.train(training)
    logits = torch.stack([found[row] for row in range(len(data))])
    return logits.argmax(1).tolist(), logits
