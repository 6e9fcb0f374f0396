"""The training loop: rows in a fixed order, a step, now and then an evaluation; the best weights by validation win.

It knows models, tasks and methods only by what they share: logits, a loss, parameters that train. Whatever a training
depends on is in its `State`, so that one that was interrupted anywhere ends with the bits of one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from peftlab.errors import Stopped, UserError
from peftlab.models.model import Model
from peftlab.peft.method import Method
from peftlab.tasks.task import Rows, Task
from peftlab.train.asking import ask
from peftlab.train.checkpoint import Checkpoints, State
from peftlab.train.config import Train
from peftlab.train.frozen import Frozen, room_for
from peftlab.train.memory import out_of_memory, return_freed, settled
from peftlab.train.metrics import Tell
from peftlab.train.optim import adamw, rate
from peftlab.train.order import Order
from peftlab.train.precision import computing_in, pick_precision, with_kernels
from peftlab.train.stop import Interrupted, Stop


@dataclass
class Progress:
    """How far a training is."""

    parts: int
    """that a step's rows are computed in: `accumulate`, or more where memory ran out"""
    cache: int = 0
    """bytes of the states that are kept of what is frozen, as there was room for them when the training began"""
    step: int = 0
    """optimizer steps done"""
    evaluated: int = 0
    """the step of the last evaluation"""
    waited: int = 0
    """evaluations since the best one"""
    best_step: int = 0
    best_score: float = -1.0
    seconds: float = 0.0
    """spent in steps, without evaluations"""
    wall: float = 0.0
    """seconds that the training took so far, evaluations, tests and saves included"""
    tokens: int = 0
    """real tokens seen in training"""
    losses: list[float] = field(default_factory=list)
    """of the steps since the last evaluation"""
    curve: list[dict[str, float]] = field(default_factory=list)
    """at each evaluation: step, loss since the last one, score, and what else the task tells"""
    skipped: list[int] = field(default_factory=list)
    """steps without an update, because their gradient was not finite"""


class Training:
    """A model in training: its optimizer, its progress, the best weights so far."""

    def __init__(self, model: Model, method: Method, task: Task, data: Rows, validation: Rows, settings: Train) -> None:
        self.model, self.method, self.task, self.settings = model, method, task, settings
        self.data, self.validation, self.lengths = data, validation, data.lengths()
        self.lr = settings.lr or method.lr
        self.steps = settings.steps or math.ceil(settings.epochs * len(data) / settings.batch)
        self.every = max(1, math.ceil(self.steps / settings.evaluations))
        self.order = Order(self.lengths, settings.batch, settings.seed)
        self.trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        heads = dict.fromkeys(model.head_parameters(), settings.head_lr or model.head_lr or self.lr)
        self.optimizer = adamw(self.trainable.values(), self.lr, settings.weight_decay, heads)
        self.device = next(iter(self.trainable.values())).device
        self.precision = pick_precision(settings.precision, self.device)
        self.best = {name: p.detach().clone() for name, p in self.trainable.items()}
        self.progress = Progress(parts=settings.accumulate)
        self.keep(room_for(settings.cache))  # now: what a schedule freezes later is frozen for a while only
        self.clock = time.monotonic()

    def keep(self, room: int) -> None:
        """Let what is frozen read both parts once, as far as there is room."""
        frozen = Frozen(self.model, self.precision, room)
        self.held = frozen.read_once(self.validation, self.settings.evaluations)
        self.given = frozen.read_once(self.data, self.steps * self.settings.batch / len(self.data))
        self.progress.cache = room - frozen.room

    def tick(self) -> float:
        """Take the time since the last look; gives that of the whole training."""
        now = time.monotonic()
        self.progress.wall += now - self.clock
        self.clock = now
        return self.progress.wall

    @property
    def due(self) -> bool:
        """Whether an evaluation is."""
        step = self.progress.step
        return step > self.progress.evaluated and (step % self.every == 0 or step == self.steps)

    @property
    def done(self) -> bool:
        """Whether training has come to its end."""
        patience = self.settings.patience
        tired = patience is not None and self.progress.waited >= patience
        return not self.due and (tired or self.progress.step >= self.steps)

    def step(self) -> None:
        """One optimizer step."""
        start, done = time.perf_counter(), self.progress
        self.method.thaw(self.model, done.step)
        factor = rate(done.step, self.steps, self.settings.warmup, self.settings.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        rows = self.order.rows(done.step)
        loss = self.gradient(rows)
        norm = nn.utils.clip_grad_norm_(self.trainable.values(), self.settings.clip)
        done.step += 1
        if math.isfinite(loss) and bool(norm.isfinite()):
            self.optimizer.step()
            increment_version(self.trainable.values())  # which a fused optimizer does not
            done.losses.append(loss)
        else:
            self.refuse(rows)
        self.optimizer.zero_grad()
        done.seconds += time.perf_counter() - start
        done.tokens += sum(self.lengths[row] for row in rows)

    def gradient(self, rows: Sequence[int]) -> float:
        """The loss, with its gradient in the parameters; in smaller parts from now on where memory runs out."""
        while True:
            random = random_state(self.device)
            try:
                return backward(self.model, self.task, self.given, rows, self.progress.parts, self.precision)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
            if self.progress.parts >= len(rows):
                raise UserError("memory does not suffice for a single row: try shorter rows, or a smaller model")
            self.optimizer.zero_grad()
            return_freed()
            set_random_state(random, self.device)
            self.progress.parts *= 2

    def refuse(self, rows: Sequence[int]) -> None:
        """A loss or gradient that is not finite never reaches the weights."""
        if self.settings.nonfinite == "stop":
            numbers = ", ".join(str(self.data.rows[row]) for row in rows)
            where = f"step {self.progress.step} (training rows {numbers})"
            raise UserError(
                f"the loss or its gradient is not finite at {where}: try a smaller train.lr, or"
                ' train.nonfinite = "skip" to leave such steps out'
            )
        self.progress.skipped.append(self.progress.step)

    def evaluate(self, stop: Stop) -> None:
        """Score the validation part, and keep the weights if they are the best."""
        done = self.progress
        if len(done.skipped) == done.step:
            raise UserError(f"no step up to {done.step} had a finite loss: try a smaller train.lr")
        judged = ask(self.model, self.held, self.task.judge, self.precision, stop)
        score = self.task.score(judged, self.validation)
        # where all steps since the last evaluation were skipped, the loss is as it was
        loss = sum(done.losses) / len(done.losses) if done.losses else done.curve[-1]["loss"]
        done.curve.append({"step": done.step, "loss": loss, "score": score, **self.task.measures(judged)})
        done.losses, done.evaluated, done.waited = [], done.step, done.waited + 1
        if score > done.best_score:
            done.best_score, done.best_step, done.waited = score, done.step, 0
            self.best = {name: p.detach().clone() for name, p in self.trainable.items()}

    def finish(self) -> Progress:
        """Put the best weights into the model."""
        with torch.no_grad():
            for name, parameter in self.trainable.items():
                parameter.copy_(self.best[name])
        self.model.eval()
        return self.progress

    def state(self) -> State:
        """All that the rest of the training depends on."""
        self.tick()
        tensors: dict[str, Tensor] = {}
        counts: dict[str, float] = {}
        for name, parameter in self.trainable.items():
            tensors |= {f"now.{name}": parameter.detach(), f"best.{name}": self.best[name]}
            if parameter in self.optimizer.state:
                seen = self.optimizer.state[parameter]
                tensors |= {f"{key}.{name}": seen[key] for key in ("exp_avg", "exp_avg_sq")}
                counts[name] = float(seen["step"])
        return State(tensors, {"progress": asdict(self.progress), "adam": counts, "random": random_state(self.device)})

    def restore(self, state: State) -> None:
        """Go on from a state."""
        self.progress = Progress(**state.facts["progress"])
        self.keep(self.progress.cache)
        with torch.no_grad():
            for name, parameter in self.trainable.items():
                parameter.copy_(state.tensors[f"now.{name}"])
                self.best[name].copy_(state.tensors[f"best.{name}"])
                if name in state.facts["adam"]:
                    self.optimizer.state[parameter] = {
                        "step": torch.tensor(state.facts["adam"][name], dtype=torch.float32, device=self.device),
                        **{key: state.tensors[f"{key}.{name}"].to(self.device) for key in ("exp_avg", "exp_avg_sq")},
                    }
        set_random_state(state.facts["random"], self.device)
        if self.progress.step:
            self.method.thaw(self.model, self.progress.step - 1)


@settled()
def train(training: Training, checkpoints: Checkpoints, stop: Stop, tell: Tell) -> Progress:
    """Train until it is done; asked to stop, save between two steps."""
    done, settings = training.progress, training.settings
    saved = time.monotonic()
    training.model.train()
    while not training.done:
        if training.due:
            try:
                training.evaluate(stop)
                tell({"steps": training.steps, **done.curve[-1]})
            except Interrupted:  # it is due again after the next start
                pass
        else:
            training.step()
            if not training.due:
                loss = {"skipped": True} if done.step in done.skipped[-1:] else {"loss": done.losses[-1]}
                tell({"steps": training.steps, "step": done.step, "tokens": done.tokens, **loss})
        if stop.number is not None:
            checkpoints.save(done.step, training.state())
            raise Stopped(stop.number, f"step {done.step} of {training.steps} is saved in {checkpoints.folder}")
        if time.monotonic() - saved >= settings.checkpoint:
            checkpoints.save(done.step, training.state())
            saved = time.monotonic()
    return training.finish()


def backward(model: Model, task: Task, data: Rows, rows: Sequence[int], parts: int, precision: str) -> float:
    """The gradient of the mean loss over the rows, computed in parts; gives that loss."""
    total, whole = 0.0, data.weight(rows)
    size = math.ceil(len(rows) / parts)
    device = next(model.parameters()).device
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        inputs, labels = data.batch(part)
        with computing_in(precision, device):
            loss = task.loss(model, inputs.to(device), labels.to(device))
        loss = loss * (data.weight(part) / whole)
        with with_kernels(precision):  # as forward: a part of it may be computed again
            loss.backward()
        total += float(loss.detach())
    return total


def random_state(device: torch.device) -> dict[str, str]:
    """The state of the generators that dropout draws from, as text."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states[device.type] = torch.get_device_module(device).get_rng_state()
    return {kind: bytes(state.tolist()).hex() for kind, state in states.items()}


def set_random_state(states: dict[str, str], device: torch.device) -> None:
    """Draw on from a state."""
    tensors = {kind: torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8) for kind, text in states.items()}
    torch.set_rng_state(tensors["cpu"])
    if device.type not in tensors:
        there = " and ".join(kind for kind in tensors if kind != "cpu") or "cpu"
        raise UserError(f"the run began on {there} and can't go on exactly on {device.type}: choose another --out")
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(tensors[device.type])
