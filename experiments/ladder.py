"""The ladder: a source in one vector, then attention to all its states, then attention alone.

    python -m experiments.ladder                                  # some 2 hours on 2 cores; goes on where it was
    python -m experiments.ladder --set translate.name=path/to/multi30k

What the notes claim: one vector can't hold a long sentence, attention lifts that limit (Bahdanau et al. 2015, arXiv
1409.0473), and the Transformer does without recurrence (Vaswani et al. 2017, arXiv 1706.03762). The three models of
`configs/multi30k` have as many parameters, see the same pairs as often, and are scored by BLEU on captions, on two and
on three of them joined. Leaves `ladder.json` and `ladder.svg` in the folder, and prints the table.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from experiments.runs import run_all
from peftlab.compare.grid import Job
from peftlab.data.files import make_folder, read_object, write_text
from peftlab.errors import told
from peftlab.report.axes import ALONE, Scale, apart, svg, x_axis, y_axis
from peftlab.report.markup import Markup, tag
from peftlab.train.config import read_config_file

RUNGS = {"rnn": "GRU, one vector", "rnn_attention": "GRU with attention", "transformer": "Transformer"}
PARTS = {
    "test_2016_flickr": "test 2016",
    "test_2016_flickr, 2 joined": "two joined",
    "test_2016_flickr, 3 joined": "three joined",
    "test_2017_flickr": "test 2017",
}
WIDTH, HEIGHT = 640.0, 360.0
COLOURS = """
path { fill: none; stroke-width: 2.5; }
.rung0 { stroke: #d1242f; } .rung1 { stroke: #bf8700; } .rung2 { stroke: #2f81f7; }
circle { stroke: none; } circle.rung0 { fill: #d1242f; } circle.rung1 { fill: #bf8700; } circle.rung2 { fill: #2f81f7; }
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=Path, default=Path("configs/multi30k"))
    parser.add_argument("--out", type=Path, default=Path("runs/ladder"), help="where runs, table and chart go")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, each on one thread")
    parser.add_argument("--set", action="append", default=[], help="override a key: translate.name=path/to/multi30k …")
    given = parser.parse_args()
    with told():
        climb(given.configs, given.out, given.workers, given.set)
        rungs = {name: summary(read_object(given.out / name / "result.json")) for name in RUNGS}
        write_text(given.out / "ladder.json", json.dumps(rungs, indent=1) + "\n")
        write_text(given.out / "ladder.svg", chart(rungs) + "\n")
    print(table(rungs))


def climb(configs: Path, out: Path, workers: int, overrides: list[str]) -> None:
    """Train what is not trained yet, the longest run first."""
    make_folder(out)
    jobs = [
        Job(read_config_file(configs / f"{name}.toml", overrides), out / name, title)
        for name, title in reversed(RUNGS.items())
    ]
    run_all(jobs, workers, out)


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """What the table and the chart need of a run's result."""
    return {
        "parameters": result["trainable"],
        "steps": result["steps"],
        "ms_step": result["ms_step"],
        "minutes": result["seconds"] / 60,
        "perplexity": 1 / result["validation"],
        "bleu": {part: result["tests"][part]["bleu"] for part in PARTS},
        "chrf": {part: result["tests"][part]["chrf"] for part in PARTS},
        "signature": result["tests"][next(iter(PARTS))]["bleu_signature"],
        "by_length": result["by_length"],
    }


def table(rungs: dict[str, dict[str, Any]]) -> str:
    """In Markdown."""
    heads = ["model", "parameters", "perplexity", *(f"BLEU, {name}" for name in PARTS.values())]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for name, rung in rungs.items():
        cells = [RUNGS[name], f"{rung['parameters'] / 1e6:.1f}M", f"{rung['perplexity']:.1f}"]
        lines.append(f"| {' | '.join([*cells, *(f'{bleu:.1f}' for bleu in rung['bleu'].values())])} |")
    return "\n".join(lines)


def chart(rungs: dict[str, dict[str, Any]]) -> Markup:
    """BLEU by the number of words of the source."""
    bins = [bin_ for rung in rungs.values() for bin_ in rung["by_length"]]
    x = Scale(0, max(map(middle, bins)) * 1.05, 48, WIDTH - 150)
    y = Scale(0, max(bin_["bleu"] for bin_ in bins) * 1.1, HEIGHT - 48, 16)
    lines = []
    for number, rung in enumerate(rungs.values()):
        points = [(x(middle(bin_)), y(bin_["bleu"])) for bin_ in rung["by_length"]]
        lines.append(tag("path", d="M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points), class_=f"rung{number}"))
        lines += [tag("circle", cx=a, cy=b, r=4, class_=f"rung{number}") for a, b in points]
    last = [rung["by_length"][-1] for rung in rungs.values()]
    for name, bin_, beside in zip(rungs, last, apart([y(bin_["bleu"]) for bin_ in last]), strict=True):
        lines.append(tag("text", RUNGS[name], x=x(middle(bin_)) + 10, y=beside + 4))
    title = "BLEU by the length of the source: one vector, attention, attention alone"
    axes = [
        x_axis(x, HEIGHT - 48, 16, "words of the source", lambda value: f"{value:g}"),
        y_axis(y, 48, WIDTH - 150, lambda value: f"{value:g}"),
        tag("text", "BLEU", x=48, y=12, class_="tick", text_anchor="end"),
    ]
    return svg(WIDTH, HEIGHT, title, tag("style", Markup(ALONE + COLOURS)), *axes, *lines)


def middle(bin_: dict[str, Any]) -> float:
    """Where a bin stands on the axis: in its middle, and the last, which has no end, as far behind its beginning as the
    others.
    """
    return (bin_["shortest"] + (bin_["longest"] or bin_["shortest"] + 9)) / 2


if __name__ == "__main__":
    main()
