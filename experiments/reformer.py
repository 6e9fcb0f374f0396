"""What the Reformer's three ideas cost and save, in one page: hashing, its rounds, reversible layers, long texts.

    python -m experiments.reformer                                # 4 minutes on 2 cores
    python -m experiments.reformer --quick --out runs/quick       # seconds: all of it, and nothing learned

What the notes claim, after Kitaev et al. 2020 (arXiv 2001.04451):

duplication   more rounds are better, and enough of them as good as full attention (`experiments/duplication.py`)
error         how far attention by hashing is from full attention, by rounds. Tokens come in pairs of near directions,
              and look at their partners; one round finds a partner with the probability p, and R rounds miss it with
              (1 − p)^R, so the error should fall as the root of that. Beside it tokens that have no neighbour, of which
              any hash must miss much.
memory        the activations of a training step by depth, reversible and plain.
time          a pass there and back by length, against exact attention (`benchmarks/long.py`).

Leaves `reformer.json`, `reformer.html` and a chart of each as SVG in the folder, and prints the paper's table.

Shapes: B rows, T tokens, H heads, d width of a head, R rounds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.long import CHUNK, HEADS, WIDTH, contestants, timed
from benchmarks.memory import peak
from experiments import duplication
from experiments.duplication import FULL
from peftlab.data.files import make_folder, write_text
from peftlab.errors import told
from peftlab.layers.lsh import LSHAttention, attend_all, attend_sorted
from peftlab.layers.reversible import irreversible, reversible
from peftlab.models.reformer import ReformerConfig, ReformerDecoder, calls
from peftlab.report.axes import ALONE, Scale, padded, svg, y_axis
from peftlab.report.markup import Markup, tag
from peftlab.report.page import page_head, write_page
from peftlab.train.memory import keep_freed

Lines = dict[str, list[tuple[float, float]]]
"""name → points"""


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    task: duplication.Sizes = field(default_factory=duplication.Sizes)
    """of the duplication task"""
    tokens: int = 2048
    """of which the error is measured"""
    hashes: int = 32
    """the most rounds that it is measured of"""
    depths: tuple[int, ...] = (3, 6, 12, 24)
    longest: int = 16384
    seconds: float = 5.0
    """for the time of each length"""


QUICK = Sizes(
    duplication.Sizes(word=31, steps=4, tested=4, rotations=2, rounds=(1, 2)),
    tokens=256,
    hashes=4,
    depths=(1, 4),
    longest=2048,
)
NEAR, LENGTH = 0.75, 16.0
"""cosine of the angle between the directions of a pair, and the length of queries: most weight is then the partner's"""
PAIRS, FORMULA, SINGLE = "tokens in pairs", "√(1 − p)^R, as pairs should", "tokens without neighbours"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/reformer"), help="where the page and the charts go")
    parser.add_argument("--quick", action="store_true", help="everything so small that it takes seconds")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with told():
        found = measure(replace(QUICK, seconds=0.1) if given.quick else Sizes())
        write(found, given.out)
    print(table(found["duplication"]))


def measure(sizes: Sizes) -> dict[str, Lines]:
    """All that the page shows."""
    keep_freed()
    return {
        "duplication": duplication.duplication(sizes.task),
        "error": error(sizes),
        "memory": memory(sizes),
        "time": times(sizes),
    }


# What hashing misses, takes and saves


@torch.no_grad()
def error(sizes: Sizes) -> Lines:
    """‖LSH − full‖ / ‖full‖ by rounds, of tokens in pairs and of such without neighbours."""
    torch.manual_seed(0)
    T, rounds = sizes.tokens, [2**i for i in range(sizes.hashes.bit_length()) if 2**i <= sizes.hashes]
    v = torch.randn(1, T, HEADS, WIDTH)
    shared, own = directions(T // 2).repeat(1, 2, 1, 1), directions(T)
    paired = LENGTH * (NEAR**0.5 * shared + (1 - NEAR) ** 0.5 * own)
    found, share = errors(paired, v, rounds)
    return {
        PAIRS: found,
        FORMULA: [(R, (1 - share) ** (R / 2)) for R in rounds],
        SINGLE: errors(LENGTH * own, v, rounds)[0],
    }


def directions(count: int) -> Tensor:
    """[1, count, H, d] at random, of length one."""
    return torch.nn.functional.normalize(torch.randn(1, count, HEADS, WIDTH), dim=-1)


def errors(q: Tensor, v: Tensor, rounds: Sequence[int]) -> tuple[list[tuple[float, float]], float]:
    """By rounds, and the share of tokens T/2 apart that see each other in one."""
    full = attend_all(q, v)
    order = LSHAttention(HEADS * WIDTH, HEADS, chunk=CHUNK, rounds=max(rounds)).order(q, None, seed=0)
    found = []
    for R in rounds:
        mixed = attend_sorted(q, v, order[:, :, :R], CHUNK, None, causal=False, dropout=0.0)
        found.append((float(R), float((mixed - full).norm() / full.norm())))
    return found, float(seen(order).float().mean())


def seen(order: Tensor) -> Tensor:
    """[B, H, R, T] the tokens as sorted → whether each has the one T/2 further, counted round, in its chunk or in that
    before.
    """
    T = order.shape[-1]
    chunk = order.long().argsort(-1) // CHUNK
    return (chunk - chunk.roll(-T // 2, -1)) % (T // CHUNK) < 2


def memory(sizes: Sizes) -> Lines:
    """MB of a training step's activations by depth."""
    kinds = {"reversible": reversible, "plain": irreversible}
    return {name: [(depth, activations(run, depth) / 1e6) for depth in sizes.depths] for name, run in kinds.items()}


def activations(run: Any, depth: int) -> int:
    """Bytes at the peak, without weights, and without the gradients that the step leaves."""
    torch.manual_seed(0)
    config = ReformerConfig(vocab=2, dim=128, layers=depth, heads=2, inner=512, chunk=CHUNK, max_length=1024)
    blocks, x = ReformerDecoder(config).train().blocks, torch.randn(1, config.max_length, config.dim)

    def step() -> None:
        y1, y2 = run(x, x, [calls(block, None, None, seed) for seed, block in enumerate(blocks)])
        (y1 + y2).square().mean().backward()

    most = peak(step)
    return most - sum(parameter.grad.nbytes for parameter in blocks.parameters() if parameter.grad is not None)


def times(sizes: Sizes) -> Lines:
    """Milliseconds of a pass there and back by length."""
    names = {"ours": "by hashing, 4 rounds", "exact": "exact, by torch's own kernel"}
    found: Lines = {name: [] for name in names.values()}
    length = 1024
    while length <= sizes.longest:
        sides = contestants(length, rounds=4)
        took = timed({key: sides[key] for key in names}, sizes.seconds)
        for key, name in names.items():
            found[name].append((length, 1e3 * took[key]))
        length *= 2
    return found


# Table, charts, page


@dataclass(frozen=True)
class Panel:
    """A chart and what it is to show."""

    title: str
    claim: str
    across: str
    up: str
    log: bool = False
    """whether the upward axis is logarithmic; the other always is"""


PANELS = {
    "duplication": Panel(
        "The duplication task",
        "Of `0w0w` the second w is told from the first; a line for each way to train, tested with 1, 2, 4 … rounds and,"
        " at the right end, with full attention. In the paper a model is the better the more rounds it is tested with,"
        " and one round does not suffice.",
        "rounds when tested",
        "symbols that are right",
    ),
    "error": Panel(
        "What hashing misses",
        "The distance from full attention by rounds. Where tokens have near neighbours it falls as fast as the chance"
        " that all rounds miss them, p being what one finds; it stays above 0, perhaps as what several rounds find"
        " counts several times. Where no token is near, there is little that a hash could find.",
        "rounds",
        "‖LSH − full‖ / ‖full‖",
        log=True,
    ),
    "memory": Panel(
        "Memory by depth",
        "Activations at the peak of a training step, 1,024 tokens. Computed back from the outputs they do not grow with"
        " the number of layers.",
        "layers",
        "MB",
    ),
    "time": Panel(
        "Time by length",
        f"A pass there and back of {HEADS} heads of {WIDTH}, causal. Exact attention grows with n², hashing with"
        " n·log n.",
        "tokens",
        "ms",
        log=True,
    ),
}
LEFT, RIGHT, TOP, BOTTOM = 64.0, 500.0, 28.0, 312.0
WIDTH_ALL, HEIGHT = 700.0, 360.0
COLOURS = ("#2f81f7", "#bf8700", "#d1242f", "#2da44e", "#8957e5")
STYLE = ALONE + "path { fill: none; stroke-width: 2.5; }"


def write(found: dict[str, Lines], out: Path) -> None:
    """The page, its charts and the numbers."""
    make_folder(out)
    write_text(out / "reformer.json", json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    for name, lines in found.items():
        write_text(out / f"reformer-{name}.svg", chart(PANELS[name], lines, ends(name)) + "\n")
    write_page(page(found), out / "reformer.html")


def ends(name: str) -> str | None:
    """What the last place of an axis is called, where that is no number."""
    return FULL if name == "duplication" else None


def cells(lines: Lines) -> list[list[str]]:
    """The paper's table, trained by tested; its headings come first."""
    first = next(iter(lines.values()))
    heads = ["", *(f"tested with {rounds:g}" for rounds, _ in first[:-1]), f"tested with {FULL}"]
    return [heads, *([name, *(f"{share:.1%}" for _, share in points)] for name, points in lines.items())]


def table(lines: Lines) -> str:
    """In Markdown."""
    heads, *rows = cells(lines)
    ruler = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ruler, *rows))


def html_table(lines: Lines) -> Markup:
    """On the page."""
    heads, *rows = cells(lines)
    top = tag("tr", *(tag("th", text, scope="col", class_="number" if text else None) for text in heads))
    body = [
        tag("tr", tag("th", name, scope="row"), *(tag("td", text, class_="number") for text in shares))
        for name, *shares in rows
    ]
    return tag("table", tag("thead", top), tag("tbody", *body))


def chart(panel: Panel, lines: Lines, last: str | None = None) -> Markup:
    """A line for each name; across only the numbers that were measured stand."""
    places = sorted({a for points in lines.values() for a, _ in points})
    heights = [b for points in lines.values() for _, b in points]
    x = Scale(*padded(places, log=True), LEFT, RIGHT, log=True)
    y = Scale(*padded(heights if panel.log else [0.0, *heights], log=panel.log), BOTTOM, TOP, log=panel.log)
    drawn = [y_axis(y, LEFT, RIGHT, lambda value: f"{value:g}"), tag("text", panel.up, x=12, y=14, class_="tick")]
    for place in places:
        text = last if last and place == places[-1] else f"{place:,g}"
        drawn.append(tag("line", x1=x(place), x2=x(place), y1=TOP, y2=BOTTOM, class_="grid"))
        drawn.append(tag("text", text, x=x(place), y=BOTTOM + 16, class_="tick", text_anchor="middle"))
    drawn.append(tag("text", panel.across, x=(LEFT + RIGHT) / 2, y=BOTTOM + 34, text_anchor="middle"))
    for number, (name, points) in enumerate(lines.items()):
        colour, at = COLOURS[number], [(x(a), y(b)) for a, b in points]
        drawn.append(tag("path", d="M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in at), stroke=colour))
        drawn += [tag("circle", cx=a, cy=b, r=3.5, fill=colour) for a, b in at]
        drawn.append(tag("rect", x=RIGHT + 14, y=TOP + 22 * number, width=12, height=12, rx=2, fill=colour))
        drawn.append(tag("text", name, x=RIGHT + 32, y=TOP + 22 * number + 11))
    return svg(WIDTH_ALL, HEIGHT, f"{panel.title}: {panel.up} by {panel.across}", tag("style", Markup(STYLE)), *drawn)


def page(found: dict[str, Lines]) -> str:
    """All charts with what they are to show."""
    parts = []
    for name, lines in found.items():
        panel = PANELS[name]
        numbers = html_table(lines) if name == "duplication" else ""
        drawn = tag("div", chart(panel, lines, ends(name)), numbers, class_="card scroll")
        parts.append(tag("section", tag("h2", panel.title), tag("p", panel.claim, class_="about"), drawn))
    how = f"measured by experiments/reformer.py with torch {torch.__version__} on {torch.get_num_threads()} threads"
    opening = tag("p", f"Kitaev et al. 2020, arXiv 2001.04451 · {how}", class_="eyebrow")
    title = "The Reformer: long sequences in little memory"
    body = tag("body", tag("main", tag("header", opening, tag("h1", title)), *parts))
    return f"<!doctype html>\n{tag('html', page_head(title, 'page.css'), body, lang='en')}\n"


if __name__ == "__main__":
    main()
