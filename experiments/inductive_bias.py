"""What is built in need not be learned: a Vision Transformer and a residual network on ever more images.

    python -m experiments.inductive_bias                          # about an hour on 2 cores; goes on where it was
    python -m experiments.inductive_bias --set images.name=path/to/fashion-mnist
    python -m experiments.inductive_bias --seeds 1 --set train.steps=50 --out runs/quick

What the notes claim: a ViT lacks the locality and translation of convolutions, and so needs more data (Dosovitskiy et
al. 2020, arXiv 2010.11929, section 4.3). `configs/fashion-mnist.toml` and `configs/fashion-cnn.toml` have as many
parameters, and see the same images of Fashion-MNIST, in the same batches: 1 %, 10 % and all of them. A seed is that of
weights and order; which images are the 1 % is the same for all. Leaves `inductive_bias.json`, `.md` and `.svg` in the
folder, and prints the table.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.runs import run_all
from peftlab.compare.grid import Job
from peftlab.data.files import make_folder, read_object, write_text
from peftlab.errors import UserError, told
from peftlab.report.axes import ALONE, Scale, apart, padded, svg, x_axis, y_axis
from peftlab.report.markup import Markup, tag
from peftlab.train.config import read_config_file

MODELS = {"fashion-cnn": "residual network", "fashion-mnist": "Vision Transformer"}
SIZES = {60_000: 2400, 6000: 900, 600: 450}
"""images to train on → steps: 2.7, 10 and 50 epochs, the longest run first"""
LEFT, RIGHT, TOP, BOTTOM = 56.0, 490.0, 24.0, 312.0
WIDTH, HEIGHT = 640.0, 360.0
COLOURS = """
svg { --m0: #bf8700; --m1: #2f81f7; }
path { fill: none; stroke-width: 2.5; } path.m0 { stroke: var(--m0); } path.m1 { stroke: var(--m1); }
circle.m0 { fill: var(--m0); } circle.m1 { fill: var(--m1); } circle { fill-opacity: 0.6; }
"""

Learned = dict[str, dict[str, Any]]
"""model → its parameters, and by the number of images its accuracies, one a seed"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=Path, default=Path("configs"))
    parser.add_argument("--out", type=Path, default=Path("runs/inductive_bias"), help="where runs, table and chart go")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each model on each number of images")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, each on one thread")
    parser.add_argument("--set", action="append", default=[], help="override a key: images.name=path …")
    given = parser.parse_args()
    with told():
        if given.seeds < 1:
            raise UserError(f"--seeds is {given.seeds}: ask for one at least")
        learned = learn(given.configs, given.out, given.seeds, given.workers, given.set)
        write_text(given.out / "inductive_bias.json", json.dumps(learned, indent=1) + "\n")
        write_text(given.out / "inductive_bias.md", table(learned) + "\n")
        write_text(given.out / "inductive_bias.svg", chart(learned) + "\n")
    print(table(learned))


def learn(configs: Path, out: Path, seeds: int, workers: int, overrides: list[str]) -> Learned:
    """Train what is not trained yet."""
    make_folder(out)
    jobs = []
    for images, steps in SIZES.items():
        for name, title in MODELS.items():
            for seed in range(seeds):
                # a rate that ends at 0 leaves the best weights last; a part of 30 images could not choose them
                own = [f"images.limit={images}", f"train.steps={steps}", "train.evaluations=1", "train.threads=1"]
                config = read_config_file(configs / f"{name}.toml", [*own, *overrides, f"train.seed={seed}"])
                jobs.append(Job(config, folder(out, name, images, seed), f"{title} · {images:,} images · seed {seed}"))
    run_all(jobs, workers, out)
    return {name: summary(out, name, seeds) for name in MODELS}


def folder(out: Path, name: str, images: int, seed: int) -> Path:
    """Of a run."""
    return out / f"{name}-{images}-{seed}"


def summary(out: Path, name: str, seeds: int) -> dict[str, Any]:
    """What the table and the chart need of a model's results."""
    results = {n: [read_object(folder(out, name, n, seed) / "result.json") for seed in range(seeds)] for n in SIZES}
    every = [result for found in results.values() for result in found]
    return {
        "parameters": every[0]["trainable"],
        "minutes": sum(result["seconds"] for result in every) / 60,
        "steps": {str(images): found[0]["steps"] for images, found in sorted(results.items())},
        "accuracy": {str(images): [run["accuracy"] for run in found] for images, found in sorted(results.items())},
    }


def table(learned: Learned) -> str:
    """In Markdown: the mean of the seeds, the lowest and the highest."""
    heads = ["model", "parameters", *(f"{images:,} images" for images in sorted(SIZES))]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for name, model in learned.items():
        found = [f"{mean(runs):.1%} ({min(runs):.1%} … {max(runs):.1%})" for runs in model["accuracy"].values()]
        cells = [MODELS[name], f"{model['parameters']:,}", *found]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def chart(learned: Learned) -> Markup:
    """Accuracy by the number of images: each seed a point, a line through their means."""
    every = [value for model in learned.values() for runs in model["accuracy"].values() for value in runs]
    x = Scale(*padded([*SIZES], log=True), LEFT, RIGHT, log=True)
    y = Scale(*padded(every), BOTTOM, TOP)
    drawn = []
    for number, model in enumerate(learned.values()):
        runs = {int(images): found for images, found in model["accuracy"].items()}
        means = [(x(images), y(mean(found))) for images, found in runs.items()]
        drawn.append(tag("path", d="M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in means), class_=f"m{number}"))
        points = [(x(images), y(value)) for images, found in runs.items() for value in found]
        drawn += [tag("circle", cx=a, cy=b, r=4, class_=f"m{number}") for a, b in points]
    last = [y(mean(model["accuracy"][str(max(SIZES))])) for model in learned.values()]
    for name, beside in zip(learned, apart(last), strict=True):
        drawn.append(tag("text", MODELS[name], x=RIGHT + 6, y=beside + 4))
    axes = [
        x_axis(x, BOTTOM, TOP, "images to train on", lambda value: f"{value:,.0f}"),
        y_axis(y, LEFT, RIGHT, lambda value: f"{value:.0%}"),
        tag("text", "accuracy on the test", x=LEFT, y=14, class_="tick"),
    ]
    title = "Accuracy on Fashion-MNIST by the number of images, of a residual network and a Vision Transformer"
    return svg(WIDTH, HEIGHT, title, tag("style", Markup(ALONE + COLOURS)), *axes, *drawn)


if __name__ == "__main__":
    main()
