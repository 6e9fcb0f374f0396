"""One self-contained HTML page: the verdict first, then everything that it rests on.

It holds no script and asks for nothing: charts are inline SVG, switches are radio buttons and style, and a policy in
its head forbids both scripts and requests. All text goes through `markup.tag`, which escapes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from peftlab.data.files import make_folder, write_text, writing_to
from peftlab.errors import UserError
from peftlab.report.axes import Scale, padded, svg
from peftlab.report.cost_chart import COSTS, cost_chart
from peftlab.report.curve_chart import curve_charts
from peftlab.report.difference_chart import difference_chart, difference_table
from peftlab.report.disagreement import DisputedRow, disputed
from peftlab.report.markup import Markup, tag
from peftlab.report.numbers import duration, points
from peftlab.report.seeds_chart import seeds_chart
from peftlab.report.summary import MethodSummary, Summary
from peftlab.report.table import columns, markdown
from peftlab.report.verdict import RULE, Verdict, decide

WIDE, HALF, NARROW = 1110.0, 530.0, 332.0
"""pixels of a chart: across the page, in one of two columns, on a phone"""
METER = 84.0
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STATISTICS = (
    "± is half of a 95 % interval over test rows and seeds: rows are resampled (2,000 times); the seeds' part is a"
    " t-distribution, with the variance that the seeds show, steadied by that of the other methods. Differences are"
    " paired by row and seed. Two methods are called different where p < 0.05 after Holm's correction for all pairs:"
    " with methods that do not differ this happens in about one comparison of twenty, or fewer."
)


def write_page(text: str, path: Path) -> None:
    """Leave a page in a file."""
    if path.is_dir():
        raise UserError(f"{path} is a folder: give a file to write, such as {path / 'page.html'}")
    make_folder(path.parent)
    with writing_to(path.parent):
        write_text(path, text)


def page_head(title: str, *styles: str) -> Markup:
    """The head of a page that holds its styles, these files in turn, and may neither run nor ask for anything."""
    content = "".join(files("peftlab.report").joinpath(name).read_text(encoding="utf-8") for name in styles)
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Markup(content)),
    )


def page(summary: Summary) -> str:
    """The page as text."""
    verdict = decide(summary)
    comparison = summary.comparison
    head = page_head(f"{verdict.headline}: {comparison.title}", "page.css")
    body = tag(
        "main",
        _opening(summary, verdict),
        _table(summary, verdict),
        _costs(summary, verdict),
        _seeds(summary, verdict),
        _differences(summary, verdict),
        _curves(summary, verdict),
        _disputes(summary),
        _making(summary),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _opening(summary: Summary, verdict: Verdict) -> Markup:
    comparison = summary.comparison
    seeds = len(comparison.seeds)
    about = f"{comparison.title} · base {comparison.base} · {seeds} seed{'s' * (seeds != 1)}"
    return tag(
        "header",
        tag("p", about, tag("span", "quick look", class_="badge") if comparison.quick else "", class_="eyebrow"),
        tag("h1", verdict.headline),
        *(tag("p", _unbroken(reason), class_="lede") for reason in verdict.reasons),
        tag("ul", *(tag("li", caveat) for caveat in verdict.caveats), class_="caveats") if verdict.caveats else "",
    )


def _unbroken(text: str) -> str:
    """A number keeps its ± and its % on the same line."""
    return text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}").replace(" %", "\N{NO-BREAK SPACE}%")


def _section(title: str, about: str, *content: str) -> Markup:
    return tag("section", tag("h2", title), tag("p", about, class_="about") if about else "", *content)


def _both(wide: str, narrow: str) -> Markup:
    """A chart for a wide page and the same for a phone."""
    return tag("div", tag("div", wide, class_="wide"), tag("div", narrow, class_="narrow"), class_="chart")


def _switch(name: str, choices: Sequence[tuple[str, str, str]]) -> Markup:
    """One of several contents (key, label, content), switched without a script."""
    inputs, labels, contents, rules = [], [], [], []
    for i, (key, label, content) in enumerate(choices):
        id_ = f"{name}-{key}"
        inputs.append(tag("input", type="radio", name=name, id=id_, checked=i == 0))
        labels.append(tag("label", label, for_=id_))
        contents.append(tag("div", content, class_=f"of-{id_}"))
        on = "background:var(--accent-soft);color:var(--accent);border-color:var(--accent);font-weight:600"
        rules.append(f"#{id_}:not(:checked)~.of-{id_}{{display:none}}#{id_}:checked~.switch [for={id_}]{{{on}}}")
        rules.append(f"#{id_}:focus-visible~.switch [for={id_}]{{outline:2px solid var(--accent)}}")
    style = tag("style", Markup("".join(rules)))
    return tag("div", style, *inputs, tag("div", *labels, class_="switch"), *contents, class_="switched")


def _table(summary: Summary, verdict: Verdict) -> Markup:
    shown = columns(summary)
    ends = [end for m in summary.methods if m.score for end in (m.score.low, m.score.high)]
    meter = Scale(*padded(ends or [0, 1]), 2, METER - 2)
    headings = [tag("th", column.heading, scope="col", class_="number" if column.number else None) for column in shown]
    rows = []
    for method in summary.methods:
        cells = [tag("th", method.name, scope="row")]
        for i, column in enumerate(shown[1:]):
            state = "state" if column.heading == "status" and method.state() != "done" else ""
            kind = "number score" if i == 0 else "number" if column.number else state or None
            cells.append(tag("td", column.cell(method), _meter(method, meter) if i == 0 else "", class_=kind))
        rows.append(tag("tr", *cells, class_="chosen" if method.name == verdict.method else None))
    notes = [
        tag("li", f"{run.method} on {run.task}, seed {run.seed}, {run.status}: {run.note}")
        for run in summary.comparison.runs
        if run.status != "done"
    ]
    return _section(
        "Results",
        f"The score is {summary.score_name}{', in percent' * bool(summary.unit)}. Costs are means over runs.",
        tag(
            "div",
            tag("table", tag("thead", tag("tr", *headings)), tag("tbody", *rows), class_="results"),
            class_="card scroll",
        ),
        tag("ul", *notes, class_="notes") if notes else "",
    )


def _meter(method: MethodSummary, x: Scale) -> Markup | str:
    """The score and its interval as a small drawing, to be compared down the column."""
    if method.score is None:
        return ""
    low, mean, high = (x(value) for value in (method.score.low, method.score.mean, method.score.high))
    return svg(
        METER,
        10,
        f"{method.name}: score and interval",
        tag("line", x1=2, x2=METER - 2, y1=5, y2=5, class_="track"),
        tag("line", x1=low, x2=high, y1=5, y2=5, class_="band"),
        tag("line", x1=mean, x2=mean, y1=0, y2=10, class_="mean"),
        class_="meter",
    )


def _costs(summary: Summary, verdict: Verdict) -> Markup:
    choices = []
    for cost in COSTS:
        panels = []
        for i, (title, analysis, majority) in enumerate(summary.views()):
            wide, narrow = (
                cost_chart(summary, title, analysis, majority, cost, verdict.method, width)
                for width in (WIDE if i == 0 else HALF, NARROW)
            )
            heading = tag("h3", title)
            panels.append(tag("div", heading, _both(wide, narrow), class_="card first" if i == 0 else "card"))
        choices.append((cost.key, cost.name, tag("div", *panels, class_="panels")))
    return _section(
        "Score against cost",
        "Up is better, left is cheaper. Filled points are on the Pareto front (the line): no other method is both"
        " cheaper and better. Bars are 95 % intervals; the dashed line is training the whole base.",
        _switch("cost", choices),
    )


def _seeds(summary: Summary, verdict: Verdict) -> Markup:
    panels = []
    alone = not summary.several
    for task in summary.comparison.tasks:
        wide, narrow = (
            seeds_chart(summary, task.name, verdict.method, width) for width in (WIDE if alone else HALF, NARROW)
        )
        panels.append(tag("div", tag("h3", task.name), _both(wide, narrow), class_="card first" if alone else "card"))
    return _section(
        "Seeds",
        "Each run a dot, the mean a line, its 95 % interval the band behind. A cross is a collapsed run.",
        tag("div", *panels, class_="panels"),
    )


def _differences(summary: Summary, verdict: Verdict) -> Markup:
    if verdict.method is None or len(summary.overall.estimates) < 2:
        return Markup("")
    wide, narrow = (difference_chart(summary.overall, verdict.method, width) for width in (WIDE, NARROW))
    tables = [difference_table(analysis, title) for title, analysis, _ in summary.views()]
    return _section(
        "Differences between methods",
        "Paired by row and seed. Intervals are of a pair alone; the verdict is corrected for all pairs, so an interval"
        " may leave out 0 and the pair be indistinguishable all the same.",
        tag("div", tag("h3", f"against {verdict.method}"), _both(wide, narrow), class_="card"),
        tag("details", tag("summary", "All pairs"), tag("div", *tables, class_="panels")),
        tag("details", tag("summary", "How verdict and intervals are made"), tag("p", RULE), tag("p", STATISTICS)),
    )


def _curves(summary: Summary, verdict: Verdict) -> Markup:
    choices = []
    for of, label in (("score", "validation score"), ("loss", "training loss")):
        cards = []
        for task in summary.comparison.tasks:
            wide, narrow = (curve_charts(summary, task.name, of, verdict.method, width) for width in (258.0, 158.0))
            if wide:
                curves = _both(tag("div", *wide, class_="curves"), tag("div", *narrow, class_="curves"))
                cards.append(tag("div", tag("h3", task.name), curves, class_="card first"))
        if cards:
            choices.append((of, label, tag("div", *cards, class_="panels")))
    if not choices:
        return Markup("")
    about = "The mean over seeds by step; the band is from the lowest to the highest seed, grey are the other methods."
    return _section("Learning curves", about, _switch("curve", choices))


def _disputes(summary: Summary) -> Markup:
    parts = []
    for task in summary.comparison.tasks:
        rows = disputed(summary, task.name)
        if rows:
            parts.append(tag("h3", task.name))
            parts.append(tag("div", *(_dispute(row) for row in rows), class_="disputed"))
    if not parts:
        return Markup("")
    about = "Test rows that some methods get right and others wrong; in brackets, how many of its seeds are right."
    return _section("Where methods disagree", about, *parts)


def _dispute(row: DisputedRow) -> Markup:
    answers = [
        tag(
            "li",
            f"{given.method}: {given.label} ({given.right}/{given.seeds})",
            class_="right" if given.right == given.seeds else "wrong" if given.right == 0 else None,
        )
        for given in row.given
    ]
    return tag(
        "div",
        tag("p", row.text, class_="text") if row.text is not None else "",
        tag("ul", tag("li", f"row {row.number} is {row.gold}", class_="gold"), *answers, class_="answers"),
        class_="card",
    )


def _making(summary: Summary) -> Markup:
    """How it was made, and how to make it again."""
    comparison = summary.comparison
    runs = []
    for run in comparison.runs:
        score = points(summary.observed[run.task][run.method].get(run.seed))
        settings = ", ".join(f"{key} {value}" for key, value in run.settings.items())
        runs.append([run.method, run.task, str(run.seed), score, duration(run.seconds), run.status, run.run, settings])
    parts: list[str] = []
    if comparison.command:
        parts.append(tag("pre", comparison.command, class_="wrap"))
    facts = [*(("version of " + k, v) for k, v in comparison.versions.items())]
    facts += [("SHA-256 of " + k, v) for k, v in comparison.hashes.items()]
    if facts:
        parts.append(_plain([], [list(fact) for fact in facts]))
    if comparison.config:
        parts.append(tag("details", tag("summary", "Configuration"), tag("pre", comparison.config)))
    table = _plain(["method", "task", "seed", "score", "time", "status", "folder", "settings"], runs)
    parts.append(tag("details", tag("summary", f"All {len(runs)} runs and their settings"), table))
    parts.append(tag("details", tag("summary", "The table as Markdown"), tag("pre", markdown(summary))))
    return _section("To make it again", "", *parts)


def _plain(headings: list[str], rows: list[list[str]]) -> Markup:
    head = tag("thead", tag("tr", *(tag("th", heading, scope="col") for heading in headings))) if headings else ""
    body = tag("tbody", *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows))
    return tag("div", tag("table", head, body, class_="plain"), class_="scroll")
