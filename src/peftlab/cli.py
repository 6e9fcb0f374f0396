"""The command line: parses, calls, prints.

Commands import what they need when they run, so that `--help` answers at once. A user's mistake is one sentence on
standard error and exit code 2; anything else is a bug and keeps its traceback.
"""

import sys
import warnings
from typing import TYPE_CHECKING, Annotated

import typer

from peftlab.errors import UserError

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
    """List what there is: bases, data sets and methods, a line each."""
    from rich.table import Table

    from peftlab.data.sources import BASES, DATASETS
    from peftlab.peft import METHODS

    about = {
        "bases": {name: source.about for name, source in BASES.items()},
        "data sets": {name: source.about for name, source in DATASETS.items()},
        "methods": {name: method.about for name, method in METHODS.items()},
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
    base: Annotated[str, typer.Option(help="short name, folder or hub id of the model")] = "minilm",
    full: Annotated[bool, typer.Option("--full", help="every block, not only the first")] = False,
) -> None:
    """Follow a text through the model: every step with its tensor's shape and what each dimension is."""
    from rich.table import Table
    from rich.text import Text

    from peftlab.base import load
    from peftlab.trace import shorten
    from peftlab.trace import trace as follow

    text = sys.stdin.read().strip() if text == "-" else text
    if not text:
        raise UserError("the text is empty: give a sentence, or - and one on standard input")
    loaded = load(base)
    steps = follow(loaded, text if pair is None else (text, pair))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_column(style="cyan")
    for step in steps if full else shorten(steps):
        table.add_row(step.place, Text(step.what), step.named)
    print(loaded)
    console().print(table)


def console() -> "Console":
    """The terminal; a pipe or a file gets long lines instead of broken ones."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=200)


def main() -> None:
    """The console script."""
    warnings.simplefilter("always", UserWarning)
    warnings.showwarning = lambda message, *_: print(f"peftlab: warning: {message}", file=sys.stderr)
    try:
        app()
    except UserError as error:
        print(f"peftlab: {error}", file=sys.stderr)
        sys.exit(2)
