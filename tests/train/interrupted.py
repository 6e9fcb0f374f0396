"""Kill a training at many moments and let it go on: does it end with the bits of one that was not killed?

    PYTHONPATH=tests python tests/train/interrupted.py --count 200

A process is forked for each attempt, so that it starts in milliseconds. Attempts are killed (SIGKILL) at a time
drawn uniformly from a run's duration, and so that a third strike there, inside a save drawn from its saves; histograms
say where the kills struck, and when those by the clock did. Then the run is started again and left alone.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from small import bits, films, write_base, write_films

from peftlab.data.sources import fetch_base
from peftlab.train.checkpoint import Checkpoints
from peftlab.train.run import run

TIMED = 20
"""attempts after which a whole run is timed again"""
WHERE = ("before the first save", "between saves", "inside a save")


class Shared:
    """Two numbers that a child writes and its parent reads: saves begun, saves ended."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 16)

    def __getitem__(self, place: int) -> int:
        return int(struct.unpack_from("q", self.memory, 8 * place)[0])

    def __setitem__(self, place: int, value: int) -> None:
        struct.pack_into("q", self.memory, 8 * place, value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--base", help="a base to train, such as minilm; without it one that takes milliseconds a step")
    given = parser.parse_args()
    torch.set_num_threads(1)
    draw, seen, histogram = random.Random(given.seed), Shared(), Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = Path(given.base) if given.base else write_base(folder / "base", fetch_base("minilm"))
        config = films(base, write_films(folder / "films.csv"), checkpoint=0)
        attempt(config, folder / "whole", seen, None)
        saves, expected = seen[1], bits(folder / "whole")
        tenths, late = Counter(), 0
        number = 0
        while sum(histogram.values()) < given.count:
            if number % TIMED == 0:  # a machine grows faster and slower while this goes on
                duration = timed(config, folder / "timed", seen)
            out = folder / "killed"
            inside = 3 * histogram["inside a save"] < sum(histogram.values())
            moment = draw.randrange(saves) if inside else draw.uniform(0, duration)
            where = attempt(config, out, seen, (inside, moment, draw.random()))
            if (out / "result.json").is_file():  # it had ended: no kill
                late += 1
            else:
                histogram[where] += 1
                tenths[int(10 * moment / duration)] += not inside
                attempt(config, out, seen, None)
            assert bits(out) == expected, f"attempt {number}, killed {where}, ended with other bits"
            shutil.rmtree(out)
            number += 1
    for where in WHERE:
        print(f"{where:<24}{histogram[where]:>5}  {'#' * histogram[where]}")
    print(f"of those by the clock, by the share of a run's time ({late} more came after its end and do not count):")
    for tenth in range(10):
        print(f"{10 * tenth:>3} … {10 * tenth + 10:>3} % of the time{tenths[tenth]:>5}  {'#' * tenths[tenth]}")
    assert histogram["inside a save"] >= given.count / 5, "too few kills struck inside a save"
    print(f"{given.count} kills, each run went on and ended with the same bits")


def timed(config, out: Path, seen: Shared) -> float:
    """Run without a kill; gives the seconds that it took."""
    start = time.monotonic()
    attempt(config, out, seen, None)
    duration = time.monotonic() - start
    shutil.rmtree(out)
    return duration


def attempt(config, out: Path, seen: Shared, kill) -> str:
    """Run in a child; with `kill` (inside a save?, moment, delay) end it there. Gives where that was."""
    seen[0] = seen[1] = 0
    child = os.fork()
    if child == 0:
        count_saves(seen)
        try:
            run(config, out)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    start, ended = time.monotonic(), False
    if kill is not None:
        inside, moment, delay = kill
        while not ended and (seen[0] <= moment if inside else time.monotonic() - start < moment):
            time.sleep(0.0002)
            ended = os.waitpid(child, os.WNOHANG)[0] != 0
        if inside and not ended:
            time.sleep(delay * 0.004)  # a save of this size takes some milliseconds
        if not ended:
            os.kill(child, signal.SIGKILL)
    if not ended:
        _, status = os.waitpid(child, 0)
        assert kill is not None or status == 0, "a run that was left alone failed"
    place = 2 if seen[0] > seen[1] else int(seen[1] > 0)
    return WHERE[place]


def count_saves(seen: Shared) -> None:
    """Let the parent know when a save begins and ends."""
    save = Checkpoints.save

    def counted(self, step, state) -> None:
        seen[0] += 1
        save(self, step, state)
        seen[1] += 1

    Checkpoints.save = counted  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
