"""The race track: our time, memory and share of the machine's peak, beside `transformers` and `peft` in the same run.

    python -m benchmarks                                        # all rows: hours, not minutes
    python -m benchmarks --rows train-lora,predict --json
    python -m benchmarks --quick --check benchmarks/quick.json  # in CI: fails where a ratio lost more than a fifth

The peer races as it comes and at its best (`benchmarks/peer.py`); goals are ratios, above 1 ours is better. What each
row is stands in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.row import Row, Settings
from benchmarks.rows import chosen
from benchmarks.table import regressions, table
from benchmarks.track import measured_peaks, run

SHARED = Path(__file__).resolve().parents[2] / "shared/data/glue"
FOLDERS = {"sst2": "SST-2", "mnli": "MNLI"}
CHANCES = 2
"""how often a row that lost is raced again: a machine that others use has bad moments, slow code has no good ones"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help="their names with commas between them; `train` is all that begin so")
    parser.add_argument("--json", action="store_true", help="print a list of objects instead of the table")
    parser.add_argument("--quick", action="store_true", help="a few hundred rows and three rounds: no verdict")
    parser.add_argument("--rounds", type=int, help="at most so many turns of each side, where time is short")
    parser.add_argument("--check", type=Path, metavar="FILE", help="what --json printed before, of the same length")
    parser.add_argument("--data", type=Path, default=SHARED, help="a folder with SST-2 and MNLI [%(default)s]")
    parser.add_argument("--task", default="sst2", help="sst2, mnli, or as for peftlab train")
    parser.add_argument("--base", default="minilm")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of each side [%(default)s]")
    parser.add_argument(
        "--precision",
        choices=("auto", "fp32", "bf16", "int16"),
        default="auto",
        help="ours; the peer at its best has bf16 where it pays, unless this is fp32",
    )
    parser.add_argument("--compile", action="store_true", help="torch.compile for the peer at its best")
    given = parser.parse_args()
    rows, kept = read(parser, given)
    settings = Settings(
        base=str(Path(given.base).resolve()) if Path(given.base).is_dir() else given.base,
        task=place(given.task, given.data),
        threads=given.threads,
        precision=given.precision,
        compile=given.compile,
        quick=given.quick,
        rounds=given.rounds,
    )
    found: list[dict[str, Any]] = []
    told: list[str] = []
    ended = 0
    try:
        for row in rows:
            figures = raced(row, settings, kept)
            found.append(figures)
            told += regressions(figures, kept)
    except (KeyboardInterrupt, SystemExit) as why:  # a race takes hours: what it found is not lost
        ended = 130 if isinstance(why, KeyboardInterrupt) else 1
        print(f"{str(why) or 'stopped'}: {len(found)} of {len(rows)} rows are raced", file=sys.stderr)
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        show(found, settings)
    for sentence in told:
        print(sentence, file=sys.stderr)
    sys.exit(ended or (1 if told else 0))


def raced(row: Row, settings: Settings, kept: list[dict[str, Any]]) -> dict[str, Any]:
    """A row's figures, raced again where it lost against the table that was kept."""
    peaks = measured_peaks(settings)  # anew each time: what a machine can do changes within the hour
    figures = run(row, settings, peaks)
    for _ in range(CHANCES):
        if not (lost := regressions(figures, kept)):
            break
        print(f"once more: {'; '.join(lost)}", file=sys.stderr)
        figures = run(row, settings, peaks)
    return figures


def read(parser: argparse.ArgumentParser, given: argparse.Namespace) -> tuple[list[Row], list[dict[str, Any]]]:
    """The rows that are asked for, and the table to check against: mistakes are told before anything runs."""
    try:
        rows = chosen(given.rows)
    except ValueError as error:
        parser.error(str(error))
    if given.rounds is not None and given.rounds < 1:
        parser.error(f"--rounds {given.rounds}: there must be one at least")
    try:
        kept = json.loads(given.check.read_text(encoding="utf-8")) if given.check else []
    except (OSError, ValueError) as error:
        parser.error(f"--check {given.check}: {error}")
    return rows, kept


def place(task: str, data: Path) -> str:
    """A task's folder where it is among the data, a path as it is from anywhere, else its name."""
    folder = data / FOLDERS.get(task, task)
    return next((str(path.resolve()) for path in (folder, Path(task)) if path.exists()), task)


def show(found: list[dict[str, Any]], settings: Settings) -> None:
    """The table, and what it was measured with."""
    from importlib.metadata import version

    length = "a short run, no verdict" if settings.quick else "medians, and quartiles"
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table(found, f"{Path(settings.task).name}, {settings.threads} threads: {length}"))
    print(", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft")))


if __name__ == "__main__":
    main()
