"""Attention over long sequences, forward and backward: hashed, exact (SDPA), and hashed by `reformer-pytorch`.

python -m benchmarks.long --longest 65536

One row, causal, fp32; the same vectors as queries and keys. The contestants take turns and the medians count; memory is
the peak of a process of its own less what it held before. `reformer-pytorch` takes part where it is installed.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from peftlab.layers.lsh import LSHAttention, attend_sorted
from peftlab.train.memory import keep_freed

HEADS, WIDTH, CHUNK = 8, 64, 64
PEER = "reformer_pytorch"


def contestants(length: int, rounds: int) -> dict[str, Callable[[], object]]:
    """A pass there and back of each, over the same vectors."""
    torch.manual_seed(0)
    q, v = (torch.randn(1, length, HEADS, WIDTH, requires_grad=True) for _ in range(2))
    heads = [t.detach().transpose(1, 2).contiguous().requires_grad_() for t in (q, v)]
    lsh = LSHAttention(HEADS * WIDTH, HEADS, chunk=CHUNK, rounds=rounds, causal=True)

    def ours() -> None:
        attend_sorted(q, v, lsh.order(q.detach(), None, 0), min(CHUNK, length), None, True, 0.0).sum().backward()

    def exact() -> None:
        F.scaled_dot_product_attention(heads[0], heads[0], heads[1], is_causal=True).sum().backward()

    found: dict[str, Callable[[], object]] = {"ours": ours, "exact": exact}
    if find_spec(PEER):
        attention: Any = import_module(PEER).LSHAttention(bucket_size=CHUNK, n_hashes=rounds, causal=True)
        flat = [t.detach()[0].clone().requires_grad_() for t in heads]
        found[PEER] = lambda: attention(*flat)[0].sum().backward()
    return found


def timed(sides: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """The median seconds of each, in turns: as many as there is time for, at least one after one that does not count
    where that is quick.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    end = time.perf_counter() + seconds
    while not all(times.values()) or time.perf_counter() < end:
        for name in list(sides)[:: 1 if len(times["ours"]) % 2 else -1]:
            start = time.perf_counter()
            sides[name]()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seen[1:] or seen) for name, seen in times.items()}


def memory(name: str, length: int, rounds: int) -> int:
    """Bytes at the peak of one pass, in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.long",
        "--alone",
        name,
        "--longest",
        str(length),
        "--rounds",
        str(rounds),
    ]
    return int(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def alone(name: str, length: int, rounds: int) -> int:
    run = contestants(length, rounds)[name]
    contestants(2 * CHUNK, rounds)[name]()  # what is loaded once
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is held
    before = held("VmRSS")
    run()
    return held("VmHWM") - before


def held(field: str) -> int:
    """Bytes, as Linux counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def growth(seconds: dict[int, float]) -> float:
    """The exponent a in time ~ (n·log n)^a, by least squares."""
    x, y = ([math.log(n * math.log(n)) for n in seconds], [math.log(s) for s in seconds.values()])
    return statistics.linear_regression(x, y).slope


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=int, default=65536)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="for each length; a pass that takes longer is run once"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.alone:
        print(json.dumps(alone(given.alone, given.longest, given.rounds)))
        return
    keep_freed()
    lengths = [1024 * 2**i for i in range(7) if 1024 * 2**i <= given.longest]
    names = list(contestants(CHUNK, given.rounds))
    if PEER not in names:
        print("reformer-pytorch is not installed and does not take part: pip install reformer-pytorch")
    title = f"forward + backward, causal, {HEADS} heads of {WIDTH}, {given.rounds} rounds, chunks of {CHUNK}"
    table = Table(
        "tokens",
        *(f"{name} {unit}" for name in names for unit in ("ms", "MB")),
        *(f"÷ {n}" for n in names[1:]),
        title=title,
    )
    took: dict[int, dict[str, float]] = {}
    for length in lengths:
        took[length] = timed(contestants(length, given.rounds), given.seconds)
        most = {name: memory(name, length, given.rounds) for name in names}
        cells = [f"{value:,.0f}" for name in names for value in (took[length][name] * 1e3, most[name] / 1e6)]
        ratios = [f"{took[length][name] / took[length]['ours']:.2f}" for name in names[1:]]
        table.add_row(f"{length:,}", *cells, *ratios)
    Console(width=140).print(table)
    faster = [length for length in lengths if took[length]["ours"] < took[length]["exact"]]
    print(
        f"faster than exact attention from {faster[0]:,} tokens on"
        if faster
        else "exact attention is faster throughout"
    )
    long = {length: took[length]["ours"] for length in lengths if length >= 8192}
    if len(long) > 1:
        print(f"from {min(long):,} to {max(long):,} tokens time grows as (n·log n)^{growth(long):.2f}")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
