"""The page, the tables and the files: complete, small, self-contained, and text stays text."""

import dataclasses
import io
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from made_up import HOSTILE, METHODS, made_up
from rich.console import Console

from peftlab.compare.results import RunResult, load
from peftlab.report import markdown, render, terminal, write
from peftlab.report.axes import Box, Scale, padded, place
from peftlab.report.disagreement import disputed
from peftlab.report.markup import join, tag
from peftlab.report.page import POLICY
from peftlab.report.summary import summarise


class Elements(HTMLParser):
    """The names and attributes of all elements, and the page's text."""

    def __init__(self, text):
        super().__init__()
        self.names, self.attributes, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, name, attributes):
        self.names.append(name)
        self.attributes += [(name, *attribute) for attribute in attributes]

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def page():
    return render(made_up())


def everything_hostile():
    """A comparison in which every text is an attack."""
    comparison = made_up(seeds=2, rows=100, methods=("lora", "head"))
    tasks = [
        dataclasses.replace(
            task,
            name=f"{task.name}{HOSTILE}",
            labels=[f"{label}'\"{HOSTILE}" for label in task.labels],
            texts=[HOSTILE] * len(task.gold),
        )
        for task in comparison.tasks
    ]
    runs = [
        dataclasses.replace(
            run,
            method=f'{run.method}"{HOSTILE}',
            task=f"{run.task}{HOSTILE}",
            run=HOSTILE,
            note=HOSTILE,
            status="collapsed" if run.seed == 1 else "done",
            settings={HOSTILE: HOSTILE},
        )
        for run in comparison.runs
    ]
    texts = {"title": HOSTILE, "base": HOSTILE, "command": HOSTILE, "config": HOSTILE}
    return dataclasses.replace(
        comparison, tasks=tasks, runs=runs, versions={HOSTILE: HOSTILE}, hashes={HOSTILE: HOSTILE}, **texts
    )


def test_the_page_opens_with_the_verdict_and_holds_every_part(page):
    text = " ".join(Elements(page).text)
    assert text.index("Use lora") < text.index("Results") < text.index("Score against cost") < text.index("Seeds")
    for part in ("Differences between methods", "Learning curves", "Where methods disagree", "To make it again"):
        assert part in text
    for said in ("Pareto front", "majority class", "validation score", "peftlab compare --tasks", "53aa51172d142c89"):
        assert said in text
    for name in METHODS:
        assert name in text
    assert "1 of 6 collapsed" in text
    assert "it ran out of memory at step 41" in text


def test_the_page_is_light_and_needs_nothing(page):
    assert len(page.encode()) < 600_000
    elements = Elements(page)
    assert not {"script", "img", "iframe", "object", "embed"} & set(elements.names)
    for name, key, value in elements.attributes:
        assert not key.startswith("on"), (name, key)
        if key in ("href", "src"):
            assert value == "data:,"
    assert "url(" not in page
    assert "@import" not in page
    assert ("meta", "content", POLICY) in elements.attributes


def test_the_same_results_give_the_same_page(page):
    assert render(made_up()) == page


def test_no_text_from_data_becomes_markup():
    page = render(everything_hostile())
    elements = Elements(page)
    assert not {"script", "img"} & set(elements.names)
    assert not [attribute for attribute in elements.attributes if attribute[1].startswith("on")]
    assert HOSTILE in "".join(elements.text)
    assert HOSTILE in "".join(value or "" for _, _, value in elements.attributes)
    assert "<img" not in everything_hostile()._repr_html_()
    assert "<img" not in markdown(everything_hostile())


def test_elements_are_closed_and_attributes_escaped():
    assert tag("p", "a<b", [tag("b", "c"), "&"], title='"x"') == '<p title="&quot;x&quot;">a&lt;b<b>c</b>&amp;</p>'
    assert tag("line", x1=1.0, x2=2.345, y1=None) == '<line x1="1" x2="2.35"/>'
    assert join(["<", tag("i", ">")], between="&") == "&lt;&amp;<i>&gt;</i>"


@pytest.mark.parametrize(
    "change",
    [
        {"seeds": 1, "quick": True, "rows": 60},
        {"methods": ("lora",)},
        {"methods": ("lora", "head"), "seeds": 2},
    ],
)
def test_small_comparisons_have_a_page_too(change):
    assert "<h1>" in render(made_up(**change))


def test_a_comparison_of_failures_has_a_page_that_says_so():
    comparison = made_up(methods=("lora", "head"), seeds=2, rows=20)
    runs = [RunResult(run.method, run.task, run.seed, "failed", "no memory") for run in comparison.runs]
    page = render(dataclasses.replace(comparison, runs=runs))
    assert "No verdict" in page
    assert "no memory" in page


def test_no_texts_no_curves_and_no_costs_leave_out_what_needs_them():
    comparison = made_up(methods=("lora", "head"), seeds=2, rows=50)
    tasks = [dataclasses.replace(task, texts=None) for task in comparison.tasks]
    runs = [RunResult(r.method, r.task, r.seed, scores=r.scores, predictions=r.predictions) for r in comparison.runs]
    page = render(dataclasses.replace(comparison, tasks=tasks, runs=runs, command="", config=""))
    assert "Learning curves" not in page
    assert "No method has both a score and this cost." in page


def test_the_markdown_table_has_a_line_a_method():
    lines = markdown(made_up()).splitlines()
    assert lines[0].startswith("Use lora. ")
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(METHODS)
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert "p\\_tuning" in "".join(table)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_terminal_shows_table_and_verdict(width):
    out = io.StringIO()
    comparison = made_up()
    runs = [
        dataclasses.replace(run, method="[bold]x" if run.method == "head" else run.method) for run in comparison.runs
    ]
    Console(file=out, width=width).print(terminal(dataclasses.replace(comparison, runs=runs), width))
    text = out.getvalue()
    assert "Use lora." in text
    assert "[bold]x" in text
    assert max(map(len, text.splitlines())) <= width


def test_write_leaves_all_files(tmp_path):
    comparison = made_up(methods=("lora", "head"), seeds=2, rows=50)
    path = write(comparison, tmp_path / "out")
    names = {"comparison.json", "results.json", "results.csv", "results.md", "report.html"}
    assert {file.name for file in path.parent.iterdir()} == names
    assert path.read_text(encoding="utf-8") == render(load(path.parent))


def test_rows_that_are_disputed_are_those_where_methods_differ():
    comparison = made_up(methods=("lora", "head"), seeds=2, rows=50)
    predictions = {"lora": [1] * 50, "head": [1] * 49 + [0]}
    runs = [dataclasses.replace(run, predictions=predictions[run.method]) for run in comparison.runs]
    [row] = disputed(summarise(dataclasses.replace(comparison, runs=runs)), "reviews")
    gold = comparison.task("reviews").gold[49]
    assert (row.number, row.gold) == (50, ["rotten", "fresh"][gold])
    assert {given.method: given.right for given in row.given} == {"lora": 2 * gold, "head": 2 * (1 - gold)}


def test_scales_and_labels():
    scale = Scale(1, 1000, 0, 300, log=True)
    assert [round(scale(value)) for value in (1, 10, 1000)] == [0, 100, 300]
    low, high = padded([5.0])
    assert low < 5 < high
    taken = [Box(0, 0, 60, 20)]
    x, y, anchor = place("name", 5, 10, taken, Box(0, 0, 200, 200))
    assert len(taken) == 2
    assert taken[0].overlap(taken[1]) == 0 or (x, y, anchor) != (14, 14, "start")


def test_neither_part_needs_torch():
    code = "import sys, peftlab.report, peftlab.compare.results; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
