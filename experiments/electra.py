"""What pretraining buys, and what in ELECTRA does: replaced tokens, masked tokens or nothing, at equal compute.

    python -m experiments.electra pretraining                  # 25 minutes a run on 2 cores, then nine classifiers
    python -m experiments.electra variants --set replaced_tokens.name=path/to/text
    python -m experiments.electra pretraining --task path/to/SST-2 --out runs/electra

What the notes claim: a discriminator learns more from the same operations than a masked language model, because it is
asked of every token (Clark et al. 2020, arXiv 2003.10555). `pretraining` trains the two bases of configs/mlm-tiny.toml
and configs/electra-tiny.toml, which cost the same, fine-tunes each on 8,000 rows of SST-2 with three seeds, and beside
them a model of the same shape that starts from nothing. `variants` does the same at a quarter of the steps for the ways
to share weights, sizes of the generator, and a generator that is to fool the discriminator.

Leaves `table.json` beside the runs, and prints the table: the mean accuracy with its interval of 95 % over the seeds. A
run that is done is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

from scipy.stats import t

from experiments.runs import run_all
from peftlab.compare.grid import Job
from peftlab.data.files import make_folder, read_object, write_text
from peftlab.errors import told
from peftlab.train.config import Config, make_config, override_value, read_config_file

SEEDS, ROWS = 3, 8000
SHORTER = 4
"""times fewer steps for a variant"""
CONFIGS = {"masked tokens": "mlm-tiny.toml", "replaced tokens": "electra-tiny.toml"}
VARIANTS: dict[str, list[str]] = {
    "generator 1/4, embeddings shared": [],
    "generator 1/2": ["replaced_tokens.generator=0.5"],
    "generator 1": ["replaced_tokens.generator=1.0"],
    "nothing shared": ['replaced_tokens.sharing="none"'],
    "all shared": ['replaced_tokens.sharing="all"', "replaced_tokens.generator=1.0"],
    "adversarial": ["replaced_tokens.adversarial=true"],
    "two stages": [
        "replaced_tokens.two_stage=true",
        "replaced_tokens.generator=1.0",
        'replaced_tokens.sharing="none"',
    ],
}
NOTHING = "from nothing"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("pretraining", "variants"))
    parser.add_argument("--configs", type=Path, default=Path("configs"))
    parser.add_argument("--out", type=Path, default=Path("runs/electra"), help="where runs and table go")
    parser.add_argument("--task", default="sst2", help="what the bases are fine-tuned on")
    parser.add_argument(
        "--set", action="append", default=[], help="override a key of the pretraining: train.steps=50 …"
    )
    parser.add_argument(
        "--fine", action="append", default=[], help="override a key of the fine-tuning: train.steps=50 …"
    )
    given = parser.parse_args()
    with told():
        out = given.out / given.table
        make_folder(out)
        bases = pretraining(given) if given.table == "pretraining" else variants(given)
        fine = fine_tunings(given, bases, out)
        # a base at a time, with all threads: what it costs is told in minutes, too
        run_all([Job(config, out / slug(name), name) for name, config in bases.items()], 1, out)
        run_all([job for jobs in fine.values() for job in jobs], 2, out)
        rows = {name: summary(None if name == NOTHING else out / slug(name), jobs) for name, jobs in fine.items()}
        write_text(out / "table.json", json.dumps(rows, indent=1) + "\n")
    print(table(rows))


def slug(name: str) -> str:
    """A name as a folder's."""
    return "".join(c if c.isalnum() else "-" for c in name)


def pretraining(given: argparse.Namespace) -> dict[str, Config]:
    """The two tasks, whose configurations cost the same."""
    return {name: configured(given.configs / file, given.set) for name, file in CONFIGS.items()}


def variants(given: argparse.Namespace) -> dict[str, Config]:
    """ELECTRA as it is, and with one thing changed at a time; all with as many steps."""
    path = given.configs / CONFIGS["replaced tokens"]
    steps = read_config_file(path).train.steps
    assert steps is not None
    fewer = [f"train.steps={steps // SHORTER}", "train.evaluations=2", *given.set]
    return {name: configured(path, [*fewer, *changes]) for name, changes in VARIANTS.items()}


def configured(path: Path, overrides: list[str]) -> Config:
    """A configuration; what is set for the other task is left aside."""
    first = "masked_tokens" if path.name == CONFIGS["masked tokens"] else "replaced_tokens"
    other = {"masked_tokens", "replaced_tokens"} - {first}
    return read_config_file(path, [each for each in overrides if each.partition(".")[0] not in other])


def fine_tunings(given: argparse.Namespace, bases: dict[str, Config], out: Path) -> dict[str, list[Job]]:
    """Each base on the task with some seeds; from nothing is any of them, drawn anew."""
    found: dict[str, list[Job]] = {}
    for name in [*bases, NOTHING]:
        base = out / slug(next(iter(bases)) if name == NOTHING else name)
        found[name] = []
        for seed in range(SEEDS):
            content: dict[str, Any] = {
                "base": str(base),
                "task": {"name": given.task, "limit": ROWS},
                "method": {"name": "scratch" if name == NOTHING else "full"},
                "train": {"epochs": 3, "batch": 32, "lr": 3e-4, "evaluations": 3, "seed": seed},
            }
            for override in given.fine:
                override_value(content, override)
            config = make_config(content, "the experiment")
            found[name].append(Job(config, out / "fine" / f"{slug(name)}-{seed}", f"{name} · seed {seed}"))
    return found


def summary(folder: Path | None, jobs: list[Job]) -> dict[str, Any]:
    """What the table needs of a base and of the classifiers that were made of it."""
    accuracies = [read_object(job.folder / "result.json")["accuracy"] for job in jobs]
    result = {} if folder is None else read_object(folder / "result.json")
    keys = ("flops", "tokens", "seconds", "tokens_second", "perplexity", "rtd_accuracy")
    return {key: result[key] for key in keys if key in result} | {
        "accuracies": accuracies,
        "mean": statistics.mean(accuracies),
        "interval": half_width(accuracies),
    }


def half_width(values: list[float]) -> float:
    """Of the interval of 95 % around the mean, by Student's t.

    >>> round(half_width([0.70, 0.72, 0.71]), 4)
    0.0248
    """
    if len(values) < 2:
        return math.inf
    return float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))


def table(rows: dict[str, dict[str, Any]]) -> str:
    """In Markdown."""
    heads = ["base", "TFLOP", "tokens", "minutes", "perplexity", "RTD accuracy", "accuracy on the task"]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for name, row in rows.items():
        cells = [
            f"{row['flops'] / 1e12:.0f}" if "flops" in row else "0",
            f"{row['tokens'] / 1e6:.1f}M" if "tokens" in row else "0",
            f"{row['seconds'] / 60:.0f}" if "seconds" in row else "0",
            f"{row['perplexity']:.1f}" if "perplexity" in row else "",
            f"{row['rtd_accuracy']:.3f}" if "rtd_accuracy" in row else "",
            f"{100 * row['mean']:.1f} ± {100 * row['interval']:.1f}",
        ]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
