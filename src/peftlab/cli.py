"""The command line: parses, calls, prints.

Commands import what they need when they run, so that `--help` answers at once. A user's mistake is one sentence on
standard error and exit code 2; anything else is a bug and keeps its traceback.
"""

import atexit
import gc
import json
import shlex
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peftlab.errors import UserError, told

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="peftlab",
    help="A laboratory for the Transformer and its parameter-efficient fine-tuning.",
    epilog='Start with: peftlab ls · peftlab trace "a sentence"',
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("ls")
def ls() -> None:
    """List what there is: bases, data sets, methods and tasks, a line each."""
    from rich.table import Table

    from peftlab.data.sources import BASES, DATASETS
    from peftlab.peft import METHODS
    from peftlab.tasks import TASKS

    about = {
        "bases": {name: source.about for name, source in BASES.items()},
        "data sets": {name: source.about for name, source in DATASETS.items()},
        "methods": {name: method.about for name, method in METHODS.items()},
        "tasks": TASKS,
    }
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for title, entries in about.items():
        table.add_row(f"[dim]{title}[/dim]", "")
        for name, line in entries.items():
            table.add_row(f"  {name}", line)
    console().print(table)


@app.command("trace")
def trace(
    text: Annotated[str, typer.Argument(help="the text; - reads it from standard input")],
    pair: Annotated[str | None, typer.Option(help="a second text, for models that read pairs")] = None,
    base: Annotated[str, typer.Option(help="short name, folder or hub id of an encoder or a decoder")] = "minilm",
    full: Annotated[bool, typer.Option("--full", help="every block, not only the first")] = False,
) -> None:
    """Follow a text through the model: every step with its tensor's shape and what each dimension is."""
    from rich.table import Table
    from rich.text import Text

    from peftlab.models.base import load
    from peftlab.tracing import shorten
    from peftlab.tracing import trace as follow

    text = sys.stdin.read().strip() if text == "-" else text
    if not text:
        raise UserError("the text is empty: give a sentence, or - and one on standard input")
    loaded = load(base)
    steps = follow(loaded, text if pair is None else (text, pair))
    screen = console()
    # in a terminal the tokens of a long text wrap, so that the dimensions need not
    widest = max(len(step.what) for step in steps[1:]) if screen.is_terminal else None
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(max_width=widest)
    table.add_column(style="cyan")
    for step in steps if full else shorten(steps):
        table.add_row(step.place, Text(step.what), step.named)
    print(loaded)
    screen.print(table)


@app.command("train")
def train(
    config: Annotated[
        str, typer.Argument(help="a TOML file (peftlab/train/config.py has every key); - reads it from standard input")
    ],
    out: Annotated[Path, typer.Option(help="the run's folder")] = Path("runs/mine"),
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="override a key: train.lr=1e-3, method.rank=4 …")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
) -> None:
    """Train one method on one task, as a configuration says; a finished run is not run again."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from peftlab.train.config import read_config, read_config_file
    from peftlab.train.run import run

    overrides = set_ or []
    settings = read_config(sys.stdin.read(), overrides) if config == "-" else read_config_file(Path(config), overrides)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[pace]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=quiet or not sys.stderr.isatty(), console=console(stderr=True)) as bar:
        task = bar.add_task("loading", total=None, pace="")
        first: list[tuple[float, int]] = []
        validated: list[str] = []

        def tell(line: dict[str, Any]) -> None:
            bar.update(task, completed=line["step"], total=line["steps"])
            if "tokens" in line:
                now, tokens = time.monotonic(), line["tokens"]
                if first:
                    start, before = first[0]
                    bar.update(task, pace=f"{(tokens - before) / (now - start):,.0f} tokens/s")
                else:
                    first.append((now, tokens))
            if "score" in line:
                told = {name: value for name, value in line.items() if name not in ("step", "steps", "loss", "score")}
                others = "".join(f", {name.replace('_', ' ')} {value:.4g}" for name, value in told.items())
                validated[:] = [f", validation {line['score']:.3f}{others}"]
            if "loss" in line:
                bar.update(task, description=f"loss {line['loss']:.3f}{''.join(validated)}")

        result = run(settings, out, tell)
    if not quiet:
        print(f"{out}: {result['said']}, {result['trainable']:,} parameters trained")


@app.command("compare")
def compare(
    task: Annotated[str | None, typer.Option(help="names (sst2,mnli), a folder, or a file [default: reviews]")] = None,
    tag: Annotated[str | None, typer.Option(help="words to tag instead: ud-english-ewt, a folder, a file")] = None,
    parse: Annotated[
        str | None, typer.Option(help="sentences to parse instead: ud-english-ewt, a folder, a file")
    ] = None,
    images: Annotated[
        str | None, typer.Option(help="images to label instead: digits, fashion-mnist, a folder; with --base a ViT")
    ] = None,
    methods: Annotated[str | None, typer.Option(help="names with commas between them; see peftlab ls")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="runs of each method")] = 2,
    base: Annotated[str, typer.Option(help="short name, folder or hub id of the model")] = "minilm",
    limit: Annotated[int | None, typer.Option(min=8, help="train on at most so many rows")] = None,
    test_limit: Annotated[
        int | None, typer.Option(min=8, help="test on at most so many rows [default: 1500; with --epochs all]")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="optimizer steps of each run [default: 300]")] = None,
    epochs: Annotated[float | None, typer.Option(help="passes over the training rows, instead of steps")] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="instead of equal steps: seconds=60 (of training) or params=50000 (that are trained)"),
    ] = None,
    text: Annotated[str | None, typer.Option(help="of a file: the column of the text")] = None,
    pair: Annotated[str | None, typer.Option(help="of a file: the column of a second text")] = None,
    label: Annotated[str | None, typer.Option(help="of a file: the column of the label")] = None,
    test: Annotated[str | None, typer.Option(help="of a file: another one with the rows to test on")] = None,
    out: Annotated[
        Path | None, typer.Option(help="where runs and report go [default: comparison, or comparison-quick]")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="one seed, few steps and rows: a first look")] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", help="override a key: train.batch=32")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="runs at once [default: as many as cores]")] = None,
) -> None:
    """Train every method on the same base, data and seeds, and say which to use, with its uncertainty.

    Called again after an interruption, it goes on where it was.
    """
    from peftlab.compare.compare import Question
    from peftlab.compare.compare import compare as run_comparison
    from peftlab.report import terminal, write

    lengths = {"--steps": steps, "--epochs": epochs, "--budget seconds": (budget or "").startswith("seconds")}
    given = [name for name, value in lengths.items() if value] + ["--quick"] * quick
    if len(given) > 1 and given != ["--steps", "--quick"]:
        raise UserError(f"{' and '.join(given)} both say how long to train: give one of them")
    out = out or Path("comparison-quick" if quick else "comparison")
    given_kinds = {"task": task, "tag": tag, "parse": parse, "images": images}
    kinds = {name: names for name, names in given_kinds.items() if names is not None}
    if len(kinds) > 1:
        raise UserError(f"{' and '.join(f'--{name}' for name in kinds)} both say what to learn: give one of them")
    ((kind, names),) = kinds.items() or [("task", "reviews")]
    given_columns = {"text": text, "pair": pair, "label": label, "test": test}
    columns = {name: column for name, column in given_columns.items() if column is not None}
    if columns and kind != "task":
        raise UserError(f"--{next(iter(columns))} is of a file of texts with labels: leave it out with --{kind}")
    question = Question(
        tasks=[{"name": name, **columns} for name in names.split(",")],
        kind=kind,
        methods=None if methods is None else methods.split(","),
        seeds=seeds,
        base=base,
        steps=steps or 300,
        epochs=epochs,
        limit=limit,
        test_limit=test_limit,
        budget=budget,
        overrides=set_ or [],
        workers=workers,
    )
    question = question.shortened() if quick else question
    comparison = run_comparison(question, out, shlex.join(["peftlab", *sys.argv[1:]]))
    write(comparison, out)
    screen = console()
    screen.print(terminal(comparison, screen.width))
    print(f"{out / 'report.html'}")


@app.command("predict")
def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a finished run")],
    texts: Annotated[list[str] | None, typer.Argument(help="or images; none or -: lines of standard input")] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="a file with one text a line; for a tagger or a parser also .conllu, .conll, .jsonl"),
    ] = None,
    pair: Annotated[bool, typer.Option("--pair", help="each line is two texts with a tab between them")] = False,
    json_: Annotated[
        bool,
        typer.Option(
            "--json",
            help="an object a line: text (or image), label, probabilities, logits; or words, tags; or words, heads,"
            " relations, conllu; or text, translation; or text, continuation",
        ),
    ] = False,
    attention: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="also write a page of where the model looked, for up to 20 texts or images"),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="also write a page of what was said of words: tags, trees")
    ] = None,
) -> None:
    """Label, tag, parse, translate or go on with texts by a finished run: from arguments, a file or standard input.

    A line is a text; a tagger answers word/TAG, a parser CoNLL-U.
    """
    from peftlab.train.predict import annotated, answer_lines, plain, spoken
    from peftlab.train.reading import answers_words, read_lines

    lines = read_lines(texts, file, pair, words=answers_words(folder))
    if attention is None and html is None and not json_:
        for piece in spoken(folder, lines):
            print(piece, end="", flush=True)
        return
    if attention is not None:
        from peftlab.report.attention import write
        from peftlab.train.looking import look

        seen = look(folder, lines)
        write(seen, str(folder), attention)
        answers = iter([each.answer for each in seen])
    elif html is not None:
        from peftlab.report.arcs import write as draw

        found = annotated(folder, lines)
        draw(found, str(folder), html)
        answers = iter(found)
    else:
        answers = answer_lines(folder, lines)
    for answer in answers:
        print(json.dumps(answer, ensure_ascii=False) if json_ else plain(answer), flush=True)


@app.command("export")
def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a finished run")],
    out: Annotated[Path, typer.Argument(metavar="DIR", help="where to write")],
    to: Annotated[
        str, typer.Option(help="peft: an adapter for stock peft; merged: a model of its own, see docs/adapters.md")
    ] = "peft",
) -> None:
    """Take a finished run elsewhere: an adapter for stock `peft`, or merged into a model of its own.

    A head that reads the first token makes it one of `transformers`, the mean one of `sentence-transformers`.
    """
    from peftlab.train.export import export_run

    export_run(folder, out, to)
    print(out)


def console(stderr: bool = False) -> "Console":
    """The terminal; a pipe or a file gets long lines instead of broken ones."""
    from rich.console import Console

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr) if terminal else Console(stderr=stderr, width=200)


def main() -> None:
    """The console script."""
    warnings.simplefilter("always", UserWarning)
    warnings.showwarning = lambda message, *_: print(f"peftlab: warning: {message}", file=sys.stderr)
    atexit.register(gc.freeze)  # all that was imported goes with the process: to look for garbage in it takes 0.3 s
    with told():
        app()
