"""Training a Vision Transformer from scratch, in images a second, against `transformers`' ViT of the same size.

    python -m benchmarks.images                  # both shapes, fp32, and bf16 where the processor has it
    python -m benchmarks.images --shape small --threads 1

Ours is `peftlab train`'s own step, from pixels of 8 bits. The peer is `ViTForImageClassification` as it comes (torch's
fused attention), with the optimizer, clipping and collator of its Trainer, on pixels that are normalised already. Both
read the class token, and have as many parameters. Each side is a process of its own; they take turns, one batch of
steps at a time, so that whatever else the machine does meets both.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import peftlab
from benchmarks.race import race
from peftlab.data.images import ImageReader
from peftlab.data.pictures import Pictures
from peftlab.models.vit import ViT, ViTConfig
from peftlab.tasks.classify import Classify, Pictured
from peftlab.train.config import Train
from peftlab.train.loop import Training
from peftlab.train.memory import keep_freed
from peftlab.train.precision import bf16_pays

LABELS, ROWS, GOAL = 10, 256, 1.2


@dataclass(frozen=True)
class Shape:
    """What both sides build and are given."""

    about: str
    model: ViTConfig
    batch: int
    steps: int
    """in a turn"""


SHAPES = {
    "small": Shape(
        "configs/fashion-mnist.toml: 28×28 pixels, 50 tokens",
        ViTConfig(dim=96, layers=4, heads=4, inner=192, norm_eps=1e-6, image=28, patch=4, channels=1),
        batch=64,
        steps=4,
    ),
    "tiny": Shape(
        "ViT-Ti/16: 224×224 pixels, 197 tokens",
        ViTConfig(dim=192, layers=12, heads=3, inner=768, norm_eps=1e-12, image=224, patch=16, channels=3),
        batch=16,
        steps=1,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, help="one of them alone")
    parser.add_argument("--precision", choices=("fp32", "bf16"), help="one of them alone")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each shape and precision, at least 5 turns")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--side", choices=("ours", "peer"), help="be one side: a turn for each line that comes in")
    given = parser.parse_args()
    if given.side:
        serve(given)
        return
    precisions = [given.precision] if given.precision else ["fp32", "bf16"]
    if not bf16_pays(torch.device("cpu")) and "bf16" in precisions:
        slow = "on this processor bf16 is slower than fp32"
        print(f"{slow}{'' if given.precision else ': fp32 alone, unless --precision bf16'}", file=sys.stderr)
        precisions = precisions if given.precision else ["fp32"]
    found = [
        measure(shape, precision, given.threads, given.seconds)
        for shape in ([given.shape] if given.shape else SHAPES)
        for precision in precisions
    ]
    versions = {name: version(name) for name in ("torch", "transformers")}
    Console().print(table(found, given.threads))
    for name in dict.fromkeys(row["shape"] for row in found):
        print(f"{name}: {SHAPES[name].about}")
    print(", ".join(f"{name} {number}" for name, number in versions.items()))
    if given.json:
        content = {"threads": given.threads, "versions": versions, "goal": GOAL, "found": found}
        given.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def measure(name: str, precision: str, threads: int, seconds: float) -> dict[str, Any]:
    """Both sides of a shape, in turns."""
    asked = [f"--shape={name}", f"--precision={precision}", f"--threads={threads}"]
    mine, theirs = (Side([*asked, f"--side={side}"]) for side in ("ours", "peer"))
    assert mine.trainable == theirs.trainable, (mine.trainable, theirs.trainable)
    result = race(mine, theirs, seconds=seconds)
    for side in (mine, theirs):
        side.end()
    images = SHAPES[name].batch * SHAPES[name].steps
    return {
        "shape": name,
        "precision": precision,
        "trainable": mine.trainable,
        "ours": images / result.ours,
        "peer": images / result.peer,
        **{key: getattr(result, key) for key in ("ratio", "low", "high")},
    }


class Side:
    """A process that takes a turn when it is called."""

    def __init__(self, arguments: list[str]) -> None:
        command = [sys.executable, "-m", "benchmarks.images", *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.trainable = self.answer()

    def answer(self) -> int:
        """The next line that it says."""
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            sys.exit(f"one side ended: {' '.join(map(str, self.process.args))}")  # type: ignore[arg-type]
        return int(line)

    def __call__(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("turn\n")
        self.process.stdin.flush()
        self.answer()

    def end(self) -> None:
        """Let the process go."""
        self.process.communicate()


def serve(given: argparse.Namespace) -> None:
    """Say how many parameters train; then for each line that comes in take a turn, and say how many images it was."""
    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    shape = SHAPES[given.shape]
    model, step = (ours if given.side == "ours" else peer)(shape, given.precision)
    print(sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad), flush=True)
    for _ in sys.stdin:
        for _ in range(shape.steps):
            step()
        print(shape.batch * shape.steps, flush=True)


def data(shape: Shape) -> tuple[torch.Tensor, list[int]]:
    """Pixels of 8 bits, and a label each."""
    generator = torch.Generator().manual_seed(0)
    size = (ROWS, shape.model.channels, shape.model.image, shape.model.image)
    pixels = torch.randint(256, size, dtype=torch.uint8, generator=generator)
    return pixels, torch.randint(LABELS, (ROWS,), generator=generator).tolist()


def ours(shape: Shape, precision: Any) -> tuple[torch.nn.Module, Callable[[], None]]:
    """A `Training` as `peftlab train` makes it."""
    keep_freed()
    model, method = ViT(shape.model), peftlab.Full()
    peftlab.attach(model, "mine", method, head=peftlab.Classifier(labels=LABELS, pool="first", dropout=0.0))
    peftlab.freeze(model)
    pixels, labels = data(shape)
    part, c = Pictures(pixels, labels, [*range(ROWS)]), shape.model
    rows = Pictured(part, ImageReader.of(pixels), c.image, c.channels, c.tokens(c.image))
    settings = Train(steps=1_000_000, batch=shape.batch, lr=1e-4, pool="first", precision=precision)
    training = Training(model, method, Classify(), rows, rows, settings)
    model.train()
    return model, training.step


def peer(shape: Shape, precision: str) -> tuple[torch.nn.Module, Callable[[], None]]:
    """The same in a plain loop of `transformers`."""
    import transformers
    from torch.utils.data import DataLoader

    c = shape.model
    config = transformers.ViTConfig(
        hidden_size=c.dim,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        intermediate_size=c.inner,
        layer_norm_eps=c.norm_eps,
        image_size=c.image,
        patch_size=c.patch,
        num_channels=c.channels,
        num_labels=LABELS,
    )
    model = transformers.ViTForImageClassification(config).train()
    pixels, labels = data(shape)
    normalised = (pixels / 255 - 0.5) / 0.5
    rows: Any = [{"pixel_values": image, "labels": label} for image, label in zip(normalised, labels, strict=True)]
    loader = DataLoader(rows, shape.batch, shuffle=True, drop_last=True, collate_fn=transformers.default_data_collator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 60_000, 1_000_000)

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    given = batches()

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model(**next(given)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return model, step


def table(found: list[dict[str, Any]], threads: int) -> Table:
    """One line a shape and precision."""
    title = f"training a ViT from scratch, images a second, {threads} thread(s)"
    shown = Table("shape", "precision", "ours", "transformers", "ours is", "quartiles", "goal", title=title, box=None)
    for row in found:
        shown.add_row(
            row["shape"],
            row["precision"],
            f"{row['ours']:,.0f}",
            f"{row['peer']:,.0f}",
            f"{row['ratio']:.2f} times",
            f"{row['low']:.2f} … {row['high']:.2f}",
            f"{GOAL:g}, {'met' if row['ratio'] >= GOAL else 'not met'}",
        )
    return shown


if __name__ == "__main__":
    main()
