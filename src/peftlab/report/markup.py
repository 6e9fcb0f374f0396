"""HTML and SVG from nested calls, in which all text is escaped unless it was built here.

    tag("p", "a < b", class_="note")      # <p class="note">a &lt; b</p>

There is no other way to write markup in this package, so text from data can't become any.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

EMPTY = {"line", "circle", "path", "rect", "meta", "link", "input", "br", "col"}


class Markup(str):
    """Text that is markup already."""


def tag(name: str, /, *content: str | Iterable[str], **attributes: str | float | bool | None) -> Markup:
    """An element. `class_` is class, `stroke_width` is stroke-width; None and False leave an attribute out.

    >>> tag("label", "x & y", for_="it", hidden=True)
    '<label for="it" hidden="hidden">x &amp; y</label>'
    """
    written = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        written.append(f' {key}="{html.escape(key if value is True else number(value))}"')
    opening = f"<{name}{''.join(written)}>"
    if name in EMPTY and not content:
        return Markup(f"{opening[:-1]}/>")
    return Markup(f"{opening}{join(content)}</{name}>")


def join(content: Iterable[str | Iterable[str]], between: str = "") -> Markup:
    """Several pieces as one, each escaped unless it is markup."""
    return Markup(html.escape(between).join(_escaped(piece) for piece in content))


def _escaped(piece: str | Iterable[str]) -> str:
    if isinstance(piece, Markup):
        return piece
    return html.escape(piece) if isinstance(piece, str) else join(piece)


def number(value: str | float) -> str:
    """A coordinate without needless digits."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
