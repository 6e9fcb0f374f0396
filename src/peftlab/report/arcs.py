"""One self-contained HTML page of what a tagger or a parser said: words coloured by their tags, or trees as arcs.

    peftlab predict RUN "The dog barks ." --html page.html

As on the report's page there is no script, and a policy forbids scripts and requests; all text goes through
`markup.tag`. An arc goes from a head to its dependent, where it has its arrow; a longer one passes above those that it
spans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from peftlab.report.axes import svg
from peftlab.report.markup import Markup, tag
from peftlab.report.page import page_head, write_page
from peftlab.tasks.tag import entities, is_bio
from peftlab.train.predict import Answer

CHARACTER, SMALL = 8.0, 6.8
"""pixels of a character of a word, and of a relation"""
GAP, LEVEL, ROUND = 20.0, 26.0, 8.0
"""pixels between words, between an arc and the one above it, and of an arc's corners"""
ASIDE = 6.0
"""pixels by which an arc leaves its head beside the middle, where that has its own arrow"""
GOLDEN = 137.5
"""degrees between the colours of two tags: any number of them stay apart"""


def write(answers: Sequence[Answer], title: str, path: Path) -> None:
    """Leave the page in a file."""
    write_page(page(answers, title), path)


def page(answers: Sequence[Answer], title: str) -> str:
    """The page as text."""
    tagged = [answer for answer in answers if "tags" in answer]
    counts = Counter(name for answer in tagged for _, _, name in spans(answer["tags"]) if name)
    hues = {name: GOLDEN * i % 360 for i, name in enumerate(sorted(counts))}
    heading = "What each word is" if tagged else "What each word hangs on"
    legend = [tag("span", tag("mark", name, style=_hue(hues[name])), f"{counts[name]:,}") for name in hues]
    sections = [_tagged(answer, hues) if "tags" in answer else _tree(answer) for answer in answers]
    opening = tag(
        "header",
        tag("p", title, class_="eyebrow"),
        tag("h1", heading),
        tag("p", *legend, class_="legend") if legend else "",
    )
    body = tag("body", tag("main", opening, *sections))
    head = page_head(f"{heading}: {title}", "page.css", "arcs.css")
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def spans(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """What is coloured as one: its first word, the one behind its last, and its name, "" where it has none.

    >>> spans(["B-person", "I-person", "O"])
    [(0, 2, 'person'), (2, 3, '')]
    """
    if not is_bio(tags) and set(tags) != {"O"}:
        return [(i, i + 1, name) for i, name in enumerate(tags)]
    found = {first: (last + 1, name) for name, first, last in entities(tags)}
    starts = [i for i in range(len(tags)) if i in found or tags[i] == "O"]
    return [(start, *found.get(start, (start + 1, ""))) for start in starts]


def _hue(hue: float) -> str:
    return f"--hue:{hue:g}"


def _tagged(answer: Answer, hues: dict[str, float]) -> Markup:
    pieces: list[str] = []
    for start, end, name in spans(answer["tags"]):
        text = " ".join(answer["words"][start:end])
        pieces += [tag("mark", text, tag("b", name), style=_hue(hues[name])) if name else tag("span", text), " "]
    return tag("section", tag("p", *pieces, class_="tagged card"))


def _tree(answer: Answer) -> Markup:
    words, heads, relations = answer["words"], answer["heads"], answer["relations"]
    x = places(words, heads, relations)
    levels = arc_levels(heads)
    base = 14 + LEVEL * max(levels)
    width = x[-1] + CHARACTER * len(words[-1]) / 2 + GAP
    drawn = [
        tag("text", word, x=x[i], y=base + 20, text_anchor="middle", class_="word") for i, word in enumerate(words)
    ]
    for i, (head, relation, level) in enumerate(zip(heads, relations, levels, strict=True)):
        drawn.append(_arc(x[i], None if head == 0 else x[head - 1], base, base - LEVEL * level, relation))
    title = f"the tree of: {' '.join(words)}"
    picture = svg(width, base + 34, title, *drawn, class_="tree")
    return tag("section", tag("div", picture, class_="card scroll"))


def places(words: Sequence[str], heads: Sequence[int], relations: Sequence[str]) -> list[float]:
    """The middle of each word: far enough from the one before for both, and for the relation of an arc between them."""
    sizes = [CHARACTER * max(len(word), 2) for word in words]
    x = [GAP + sizes[0] / 2]
    for i, (left, right) in enumerate(pairwise(sizes), 1):
        between = [relations[a - 1] for a, b in ((i, i + 1), (i + 1, i)) if heads[a - 1] == b]
        label = max((SMALL * len(name) + 2 * ROUND + ASIDE for name in between), default=0.0)
        x.append(x[-1] + max((left + right) / 2 + GAP, label))
    return x


def arc_levels(heads: Sequence[int]) -> list[int]:
    """How high the arc of each word is: above all shorter ones that it shares a stretch with; the root's, above all.

    >>> arc_levels([2, 0, 2, 3])
    [1, 2, 1, 1]
    """
    ends = [(min(word, head), max(word, head)) for word, head in enumerate(heads, 1)]
    levels = [0] * len(heads)
    for i in sorted(range(len(heads)), key=lambda i: ends[i][1] - ends[i][0]):
        if heads[i]:
            low, high = ends[i]
            under = [levels[j] for j, (a, b) in enumerate(ends) if levels[j] and a < high and b > low]
            levels[i] = 1 + max(under, default=0)
    return [level or 1 + max(levels) for level in levels]


def _arc(x: float, head: float | None, base: float, top: float, relation: str) -> Markup:
    """From a head to the word at x, or straight down to it from above."""
    arrow = tag("path", d=f"M{x - 4:.1f} {base - 7:.1f}L{x:.1f} {base:.1f}L{x + 4:.1f} {base - 7:.1f}Z", class_="arrow")
    if head is None:
        line, middle = f"M{x:.1f} {top:.1f}V{base - 4:.1f}", x
    else:
        way = 1 if x > head else -1
        start, turn = head + ASIDE * way, ROUND * way
        line = (
            f"M{start:.1f} {base:.1f}V{top + ROUND:.1f}Q{start:.1f} {top:.1f} {start + turn:.1f} {top:.1f}"
            f"H{x - turn:.1f}Q{x:.1f} {top:.1f} {x:.1f} {top + ROUND:.1f}V{base - 4:.1f}"
        )
        middle = (start + x) / 2
    name = tag("text", relation, x=middle, y=top + 4, text_anchor="middle", class_="label relation")
    return tag("g", tag("path", d=line, class_="arc"), arrow, name)
