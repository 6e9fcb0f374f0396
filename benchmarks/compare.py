"""One epoch of LoRA on SST-2 with MiniLM, against stock `transformers` and `peft` (`benchmarks/peer.py`).

python -m benchmarks.compare --task path/to/SST-2

Rows, batch size, optimizer, schedule and head are the same on all sides: the head reads the first token through the
base's own pooler. Each side runs in its own process, in turns. Only training is timed: texts are tokenised before.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.table import Table

import peftlab
from benchmarks.contestant import loaded_memory, memory
from peftlab.data.examples import Examples, limit
from peftlab.data.glue import load_task
from peftlab.tasks import classify
from peftlab.train.config import Train
from peftlab.train.loop import backward
from peftlab.train.memory import keep_freed, settled
from peftlab.train.optim import adamw, rate
from peftlab.train.order import epoch
from peftlab.train.precision import bf16_pays

LORA = peftlab.LoRA(rank=8, alpha=16, targets=("q", "v"))
LR, LENGTH, WARM_UP = 1e-3, 128, 3
SETTINGS = Train(batch=32, weight_decay=0.01, warmup=0.06, schedule="linear", clip=1.0, pool="first")
SIDES = {
    "ours": ["benchmarks.compare", "--ours"],
    "dynamic padding": ["benchmarks.peer"],
    "length-grouped": ["benchmarks.peer", "--grouped"],
}
GOALS = {"dynamic padding": 4.0, "length-grouped": 1.3}
"""how many times the peer's real tokens a second ours are to be"""

Runs = dict[str, list[dict[str, Any]]]
Batch = TypeVar("Batch")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="rounds; in each every side trains once")
    parser.add_argument("--quick", action="store_true", help="640 rows, one round: too few for a verdict")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--ours", action="store_true", help="train our side alone, in this process")
    given = parser.parse_args()
    if given.ours:
        print(json.dumps(ours(given)))
        return
    if given.bf16 and not bf16_pays(torch.device("cpu")):
        parser.error("--bf16: on this processor it is slower than fp32")
    if given.quick:
        given.rows, given.repeats = 640, 1
    shared = [f"--task={given.task}", f"--rows={given.rows}", f"--threads={given.threads}"]
    shared += ["--bf16"] if given.bf16 else []
    runs: Runs = {side: [] for side in SIDES}
    for turn in range(given.repeats):
        for i in range(len(SIDES)):
            side = list(SIDES)[(turn + i) % len(SIDES)]
            child = subprocess.run([sys.executable, "-m", *SIDES[side], *shared], stdout=subprocess.PIPE, check=True)
            run = json.loads(child.stdout)
            runs[side].append(run)
            print(f"round {turn + 1}, {side}: {run['seconds']:.1f} s, mean loss {run['loss']:.3f}", file=sys.stderr)
    rows = summary(runs)
    goals = verdicts(rows)
    versions = {name: version(name) for name in ("torch", "transformers", "peft")}
    precision = "bf16" if given.bf16 else "fp32"
    Console().print(table(rows, f"one epoch of LoRA, {given.rows:,} rows, {precision}, {given.threads} threads"))
    first = runs["ours"][0]
    print(f"all sides: {first['tokens']:,} real tokens, {first['trainable']:,} trainable parameters, the same head")
    print("peak MB: above the loaded model")
    print(", ".join(f"{name} {number}" for name, number in versions.items()))
    if given.rows < 200 * SETTINGS.batch:
        print(f"below {200 * SETTINGS.batch:,} rows transformers' sampler groups less than ours, which flatters ours")
    for goal, met in goals.items():
        print(f"{goal}: {'met' if met else 'not met'}")
    if given.json:
        settings = {key: getattr(given, key) for key in ("task", "rows", "threads", "bf16", "repeats")}
        content = {"settings": settings, "versions": versions, "sides": rows, "goals": goals, "runs": runs}
        given.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def arguments(about: str | None) -> argparse.ArgumentParser:
    """What every side is told."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="sst2", help="as for peftlab compare")
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="under bf16 autocast, where the processor has it")
    return parser


def training_rows(given: argparse.Namespace) -> Examples:
    """The rows that every side trains on."""
    return limit(load_task(given.task).train, given.rows, seed=0)


def ours(given: argparse.Namespace) -> dict[str, Any]:
    """The pieces of `peftlab.train.loop.train`, without its evaluations."""
    keep_freed()
    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    base = peftlab.load("minilm")
    model = base.model
    peftlab.attach(model, "mine", LORA, head=peftlab.Classifier(labels=2, pool=SETTINGS.pool))
    peftlab.freeze(model)
    model.train()
    data = classify.encode(base.tokenizer, training_rows(given), LENGTH)
    lengths = data.lengths()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = adamw(trainable, LR, SETTINGS.weight_decay)
    steps = WARM_UP + -(-len(data) // SETTINGS.batch)
    done = 0

    def step(rows: list[int]) -> tuple[int, float]:
        nonlocal done
        for group in optimizer.param_groups:
            group["lr"] = LR * rate(done, steps, SETTINGS.warmup, SETTINGS.schedule)
        loss = backward(model, classify.Classify(), data, rows, SETTINGS.accumulate, "bf16" if given.bf16 else "fp32")
        torch.nn.utils.clip_grad_norm_(trainable, SETTINGS.clip)
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        return len(rows) * max(lengths[row] for row in rows), loss

    with settled():
        return measure(model, lambda: epoch(lengths, SETTINGS.batch, 0, 0), step, sum(lengths))


def measure(
    model: torch.nn.Module,
    batches: Callable[[], Iterable[Batch]],
    step: Callable[[Batch], tuple[int, float]],
    tokens: int,
) -> dict[str, Any]:
    """Some steps to warm up, then all batches; a step gives its tokens with padding, and its loss."""
    loaded = loaded_memory(model)
    for batch in islice(batches(), WARM_UP):
        step(batch)
    start = time.perf_counter()
    padded, losses = zip(*(step(batch) for batch in batches()), strict=True)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "tokens": tokens,
        "padded": sum(padded),
        "tokens_second": tokens / seconds,
        "memory": memory("VmHWM") - loaded,
        "loss": statistics.mean(losses),
        "trainable": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
    }


def summary(runs: Runs) -> dict[str, dict[str, float]]:
    """The medians of each side; how many times as fast ours was is found round by round."""
    assert len({(run["tokens"], run["trainable"]) for side in runs.values() for run in side}) == 1, runs
    rows = {}
    for side, seen in runs.items():
        ratios = [mine["tokens_second"] / run["tokens_second"] for mine, run in zip(runs["ours"], seen, strict=True)]
        rows[side] = {
            "tokens_second": statistics.median(run["tokens_second"] for run in seen),
            "padded": statistics.median(run["padded"] / run["tokens"] for run in seen),
            "memory": statistics.median(run["memory"] for run in seen),
            "ratio": statistics.median(ratios),
            "low": min(ratios),
            "high": max(ratios),
        }
    return rows


def verdicts(rows: dict[str, dict[str, float]]) -> dict[str, bool]:
    """Each goal with whether it is met; memory is compared with the peer's better side."""
    goals = {f"at least {goal:g}x {side}": rows[side]["ratio"] >= goal for side, goal in GOALS.items()}
    return goals | {"memory no higher": rows["ours"]["memory"] <= min(rows[side]["memory"] for side in GOALS)}


def table(rows: dict[str, dict[str, float]], title: str) -> Table:
    """One line a side."""
    shown = Table("side", "real tokens/s", "padded/real", "peak MB", "ours is", "range", title=title, box=None)
    for side, row in rows.items():
        shown.add_row(
            side,
            f"{row['tokens_second']:,.0f}",
            f"{row['padded']:.2f}",
            f"{row['memory'] / 1e6:,.0f}",
            f"{row['ratio']:.2f} times",
            f"{row['low']:.2f} … {row['high']:.2f}",
        )
    return shown


if __name__ == "__main__":
    main()
