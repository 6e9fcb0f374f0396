"""A race: all sides of a row are processes that take turns (ABC, CBA, …), and what their turns come to.

Ratios are peer over ours, found round by round; the median is the row's, the quartiles are its spread.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks.contestant import Turn
from benchmarks.row import Row, Settings
from benchmarks.side import Side

Turns = dict[str, list[Turn]]


def run(row: Row, settings: Settings, peaks: Mapping[str, float]) -> dict[str, Any]:
    """A row's figures: those of the point with the lowest ratio, and where there are several, all `points`."""
    found = []
    for point in row.points:
        name = ", ".join(f"{key} {value}" for key, value in point.items())
        figures = summary(row, race(row, point, settings), peaks)
        found.append({"point": name, **figures} if name else figures)
        print(f"{' '.join((row.name, name)).strip()}: {said(figures)}", file=sys.stderr)
    worst = min(found, key=lambda figures: figures["ratio_default"])
    return {**worst, "points": found} if len(found) > 1 else worst


def race(row: Row, point: Mapping[str, Any], settings: Settings) -> Turns:
    """The turns of each side."""
    turns: Turns = {side: [] for side in row.sides}
    rounds = row.turns(settings)
    for together in [1] * rounds if row.fresh else [rounds]:
        with ExitStack() as there:
            sides = {side: there.enter_context(Side(row, point, side, settings)) for side in row.sides}
            for built in sides.values():
                built.wait()
            for number in range(together):
                for side in row.sides if number % 2 == 0 else reversed(row.sides):
                    turns[side].append(sides[side].turn())
    digests = {turn.digest for side in turns.values() for turn in side}
    if len(digests) > 1:
        sys.exit(f"{row.name}: the sides give different answers")
    return turns


def summary(row: Row, turns: Turns, peaks: Mapping[str, float]) -> dict[str, Any]:
    """What `--json` has of a row."""
    amounts = {
        side: [float(turn.memory) if row.unit == "bytes" else turn.seconds for turn in seen]
        for side, seen in turns.items()
    }
    middle = {side: statistics.median(seen) for side, seen in amounts.items()}
    figures: dict[str, Any] = {
        "row": row.name,
        "ours": middle["ours"],
        "peer_default": middle["default"],
        "peer_best": middle.get("best"),
    }
    spread = {}
    for side in ("default", "best"):
        ratios = (
            [theirs / ours for ours, theirs in zip(amounts["ours"], amounts[side], strict=True)]
            if side in amounts
            else []
        )
        figures[f"ratio_{side}"] = statistics.median(ratios) if ratios else None
        spread[f"quartiles_{side}"] = quartiles(ratios) if ratios else None
    figures |= {"goal_default": row.goal_default, "goal_best": row.goal_best, "unit": row.unit, **spread}
    figures["processor"] = torch.backends.cpu.get_cpu_capability()
    for side in ("ours", "default", "best"):
        figures[f"memory_{side}"] = turns[side][0].memory if side in turns else None
    first = turns["ours"][0]
    figures["precision"] = first.precision
    figures["tokens_second"] = first.tokens / middle["ours"] if first.tokens and row.unit == "seconds" else None
    figures["roofline"] = share(first, middle["ours"], peaks) if row.unit == "seconds" else None
    figures["peak"] = peaks.get(first.precision)
    return figures


def quartiles(values: Sequence[float]) -> list[float]:
    """The first and the third; of a single value itself."""
    if len(values) == 1:
        return [values[0], values[0]]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return [low, high]


def share(turn: Turn, seconds: float, peaks: Mapping[str, float]) -> float | None:
    """Of the peak of the precision that it was computed in."""
    return None if turn.flops is None or turn.precision not in peaks else turn.flops / seconds / peaks[turn.precision]


def said(figures: Mapping[str, Any]) -> str:
    """The ratios in a few words, while the race goes on."""
    ratios = [
        f"{figures[f'ratio_{side}']:.2f} times {side}" for side in ("default", "best") if figures[f"ratio_{side}"]
    ]
    return ", ".join(ratios)


def measured_peaks(settings: Settings) -> dict[str, float]:
    """FLOP/s by precision, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.roofline", f"--threads={settings.threads}"]
    command += ["--seconds=0.2"] if settings.quick else []
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parent.parent)
    return dict(json.loads(done.stdout))
