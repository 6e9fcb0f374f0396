"""What pretraining buys, and what in ELECTRA does: replaced tokens, masked tokens or nothing, at equal compute.

    python -m experiments.electra pretraining                  # 25 minutes a run on 2 cores, then nine classifiers
    python -m experiments.electra variants --set replaced_tokens.name=path/to/text
    python -m experiments.electra pretraining --task path/to/SST-2 --out runs/electra

What the notes claim: a discriminator learns more from the same operations than a masked language model, because it is
asked of every token (Clark et al. 2020, arXiv 2003.10555). `pretraining` trains the two bases of configs/mlm-tiny.toml
and configs/electra-tiny.toml, which cost the same, fine-tunes each on 8,000 rows of SST-2 with three seeds, and beside
them a model of the same shape that starts from nothing. `variants` does the same at a quarter of the operations for the
ways to share weights, sizes of the generator, and a generator that is to fool the discriminator.

Leaves `table.json` beside the runs, and prints the table: the mean accuracy, its interval of 95 % over test rows and
seeds of fine-tuning, and whether it can be told from that of the first base (`compare/statistics.py`). Each base is
pretrained once: what another seed of that would change is not in it. A run that is done is not run again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from experiments.runs import run_all
from peftlab.compare.grid import Job
from peftlab.compare.scores import resample
from peftlab.compare.statistics import judge
from peftlab.data.files import make_folder, read_object, write_text
from peftlab.errors import told
from peftlab.models.flops import electra_training_flops
from peftlab.models.own import make
from peftlab.models.pretraining import Electra, ReplacedTokenHead, make_generator
from peftlab.train.config import Config, make_config, override_value, read_config_file
from peftlab.train.run import open_work
from peftlab.train.work import Comparable

SEEDS, ROWS = 3, 8000
SHORTER = 4
"""times fewer operations for a variant"""
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
        rows = judged(fine)
        for name in bases:
            rows[name] |= cost_of(out / slug(name))
        write_text(out / "table.json", json.dumps(rows, indent=1) + "\n")
    print(table(rows))


def slug(name: str) -> str:
    """A name as a folder's."""
    return "".join(c if c.isalnum() else "-" for c in name)


def pretraining(given: argparse.Namespace) -> dict[str, Config]:
    """The two tasks, whose configurations cost the same."""
    return {name: configured(given.configs / file, given.set) for name, file in CONFIGS.items()}


def variants(given: argparse.Namespace) -> dict[str, Config]:
    """ELECTRA as it is, and with one thing changed at a time; each has as many steps as the same operations allow."""
    path = given.configs / CONFIGS["replaced tokens"]
    steps = read_config_file(path).train.steps
    assert steps is not None
    fewer = [f"train.steps={steps // SHORTER}", "train.evaluations=2", *given.set]
    plain = configured(path, fewer)
    assert plain.train.steps is not None
    budget = plain.train.steps * row_cost(plain)
    found = {}
    for name, changes in VARIANTS.items():
        changed = [*fewer, *changes]
        affordable = max(2, round(budget / row_cost(configured(path, changed))))
        found[name] = configured(path, [*changed, f"train.steps={affordable}"])
    return found


def row_cost(config: Config) -> float:
    """The operations of training on a row."""
    asked = config.replaced_tokens
    assert asked is not None
    assert config.model is not None
    encoder: Any = make({"max_length": asked.length, **config.model}, {"vocab": asked.vocab})
    generator = make_generator(encoder, asked.generator, asked.sharing, "gelu")
    model = Electra(encoder, ReplacedTokenHead(encoder.config, "gelu"), generator)
    alone = 0.5 if asked.two_stage else 0.0
    return electra_training_flops(model, asked.length, round(asked.share * asked.length), alone)


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


def cost_of(folder: Path) -> dict[str, Any]:
    """What the table needs of a base."""
    result = read_object(folder / "result.json")
    keys = ("flops", "tokens", "seconds", "tokens_second", "perplexity", "rtd_accuracy")
    return {key: result[key] for key in keys if key in result}


def judged(fine: dict[str, list[Job]]) -> dict[str, dict[str, Any]]:
    """What the table needs of the classifiers that were made of each base."""
    jobs = next(iter(fine.values()))
    work = open_work(jobs[0].config)
    assert isinstance(work, Comparable)
    (name, part), *_ = work.data.tests.items()
    predictions = [
        [read_object(job.folder / "result.json")["predictions"][name] for job in jobs] for jobs in fine.values()
    ]
    names = list(fine)
    analysis = judge(resample(work.gold(part), predictions, len(work.labels)), names)
    rows: dict[str, dict[str, Any]] = {}
    for base in names:
        estimate, apart = analysis.estimates[base], analysis.between(base, names[0])
        rows[base] = {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}
        rows[base]["verdict"] = "" if apart is None else apart.verdict
    return rows


def table(rows: dict[str, dict[str, Any]]) -> str:
    """In Markdown."""
    heads = ["base", "TFLOP", "tokens", "minutes", "perplexity", "RTD accuracy", "accuracy on the task", "to the first"]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for name, row in rows.items():
        cells = [
            f"{row['flops'] / 1e12:.0f}" if "flops" in row else "0",
            f"{row['tokens'] / 1e6:.1f}M" if "tokens" in row else "0",
            f"{row['seconds'] / 60:.0f}" if "seconds" in row else "0",
            f"{row['perplexity']:.1f}" if "perplexity" in row else "",
            f"{row['rtd_accuracy']:.3f}" if "rtd_accuracy" in row else "",
            f"{100 * row['mean']:.1f} ({100 * row['low']:.1f} … {100 * row['high']:.1f})",
            row["verdict"],
        ]
        lines.append(f"| {' | '.join([name, *cells])} |")
    lines += ["", "The perplexity of an ELECTRA is its generator's, where every token to guess is masked."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
