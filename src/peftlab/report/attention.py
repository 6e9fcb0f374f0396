"""One self-contained HTML page of where a model looked: for each text or image its answer, and its attention as maps.

    peftlab predict RUN "a text" --attention page.html

As on the report's page there is no script, and a policy forbids scripts and requests; all text goes through
`markup.tag`. A heat map is a picture of a pixel a weight, which is all alpha: the page's style gives it its colour, so
that it follows a dark theme. One hundred tokens in 72 heads are 0.4 MB like that, and as rectangles 50.

Shapes: H heads, Tq tokens that look, Tk tokens that are looked at, virtual ones included.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from peftlab.report.markup import Markup, tag
from peftlab.report.numbers import points
from peftlab.report.page import page_head, write_page
from peftlab.train.looking import Maps, Overlay, Seen
from peftlab.train.predict import Answer

HOW = (
    "A row is a token that looks and a column one that is looked at; the stronger the colour, the more of the row's"
    " attention goes there, and the weights of a row sum to 1."
)
HOW_IN_IMAGES = (
    "An image is cut into patches; the stronger the colour over one, the more of it is in what the answer was read"
    " from, and the strongest of an image has the full colour."
)
SHADES = 48
"""steps of colour: more can't be told apart, and fewer bytes are needed for them"""
WIDE, LARGEST, SMALLEST = 1000, 28, 14
"""pixels: what a large map may take across the page, and the sides that a cell of it may have"""
SMALL = 96
"""the most cells of a small map across and down; of more, neighbours share one, and the strongest is seen"""
STRONGEST = 3
"""weights that a row's tooltip names"""


def write(seen: Sequence[Seen], title: str, path: Path) -> None:
    """Leave the page in a file."""
    write_page(page(seen, title), path)


def page(seen: Sequence[Seen], title: str) -> str:
    """The page as text."""
    head = page_head(f"Where the model looked: {title}", "page.css", "attention.css")
    images = any(isinstance(kind, Overlay) for each in seen for kind in each.maps)
    opening = tag(
        "header",
        tag("p", title, class_="eyebrow"),
        tag("h1", "Where the model looked"),
        tag("p", HOW_IN_IMAGES if images else HOW, class_="lede"),
        "" if images else tag("p", *(_swatch(weight) for weight in (0.01, 0.05, 0.2, 0.5, 1.0)), class_="legend"),
    )
    body = tag("main", opening, *map(_text, seen))
    return f"<!doctype html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _swatch(weight: float) -> Markup:
    return tag("span", tag("i", style=f"opacity:{weight**0.5:.2f}"), f"{weight:g}")


def _text(seen: Seen) -> Markup:
    given = next(iter(seen.answer.values()))  # a text, two of them, or an image's path
    text = given if isinstance(given, str) else " / ".join(given)
    return tag(
        "section",
        tag("h2", text.strip() or "(an empty text)"),
        tag("p", _said(seen.answer), class_="answer"),
        *(_overlay(kind) if isinstance(kind, Overlay) else _kind(kind) for kind in seen.maps),
    )


def _said(answer: Answer) -> str:
    if "translation" in answer:
        return str(answer["translation"]).strip() or "(nothing)"
    return f"{answer['label']}, {points(answer['probabilities'][answer['label']])}\N{NO-BREAK SPACE}%"


def _kind(maps: Maps) -> Markup:
    """One kind of attention: the last layer's mean at large, and every head of every layer in small."""
    last, count = maps.layers[-1], sum(map(len, maps.layers))
    heads = f"mean of {len(last)} heads" if len(last) > 1 else "one head"
    layer = f"layer {len(maps.layers)}, the last" if len(maps.layers) > 1 else "the only layer"
    virtual = last.shape[2] > len(maps.columns)
    about = f"{maps.about}{'; the columns of virtual tokens, which the method adds, come first' * virtual}"
    large = tag("div", tag("p", f"{heads} in {layer}", class_="shown"), _large(last.mean(0), maps))
    small = tag("div", tag("p", "every layer and head", class_="shown"), _heads(maps)) if count > 1 else ""
    return tag(
        "div",
        tag("h3", maps.title),
        tag("p", about, class_="about"),
        tag("div", large, small, class_="maps"),
        class_="card",
    )


def _overlay(overlay: Overlay) -> Markup:
    """An image, and beside it the same with a colour over each patch."""
    C, H, W = overlay.pixels.shape
    lines = F.pad(overlay.pixels.permute(1, 2, 0).reshape(H, W * C), [1, 0])  # of each: no filter
    image = tag("img", src=f"data:image/png;base64,{_png(lines, W, 0 if C == 1 else 2)}", alt="the image")
    weights = overlay.weights / overlay.weights.max()
    shade = tag("div", class_="shade", style=f"--map:{_picture(weights**2)}")  # of its root, so as strong as they are
    place = int(weights.argmax())
    row, column = place // weights.shape[1] + 1, place % weights.shape[1] + 1
    said = f"{overlay.title}: {overlay.weights.max():.2f} on the patch in row {row}, column {column}"
    seen = tag("div", image, shade, class_="seen", role="img", aria_label=said, title=said)
    return tag(
        "div",
        tag("h3", overlay.title),
        tag("p", overlay.about, class_="about"),
        tag("div", tag("div", image, class_="seen"), seen, class_="maps"),
        class_="card",
    )


def _large(weights: Tensor, maps: Maps) -> Markup:
    """A map [Tq, Tk] with its tokens, in a container that scrolls beneath them where it is too large."""
    Tq, Tk = weights.shape
    columns = [*(f"virtual {i}" for i in range(1, Tk - len(maps.columns) + 1)), *maps.columns]
    cell = min(max(WIDE // Tk, SMALLEST), LARGEST)
    said = [_strongest(token, row, columns) for token, row in zip(maps.rows, weights, strict=True)]
    return tag(
        "div",
        tag("div", class_="corner"),
        tag("div", *(tag("span", token, title=token) for token in columns), class_="columns"),
        tag("div", *(tag("span", token, title=s) for token, s in zip(maps.rows, said, strict=True)), class_="rows"),
        tag(
            "div",
            tag("div", class_="shade", style=f"--map:{_picture(weights)}"),
            *(tag("div", title=s, class_="row") for s in said),
            class_="field",
            role="img",
            aria_label=f"{maps.title}: {Tq} by {Tk} weights",
        ),
        class_="large",
        style=f"--cell:{cell}px;--across:{Tk};--down:{Tq}",
    )


def _strongest(token: str, row: Tensor, columns: list[str]) -> str:
    """What a row looks at most."""
    weights, places = row.topk(min(STRONGEST, len(row)))
    found = (f"{columns[i]} {w:.2f}" for w, i in zip(weights.tolist(), places.tolist(), strict=True) if w > 0)
    return f"{token} → {', '.join(found)}"


def _heads(maps: Maps) -> Markup:
    """Small maps, a row a layer and a column a head."""
    count = max(map(len, maps.layers))
    cells = [tag("span"), *(tag("span", f"head {head}", class_="head") for head in range(1, count + 1))]
    for number, layer in enumerate(maps.layers, 1):
        _, Tq, Tk = layer.shape
        cells.append(tag("span", f"layer {number}", class_="layer"))
        for head, weights in enumerate(F.adaptive_max_pool2d(layer, (min(Tq, SMALL), min(Tk, SMALL))), 1):
            name = f"layer {number}, head {head}"
            shade = tag("div", class_="shade", style=f"--map:{_picture(weights)};aspect-ratio:{Tk}/{Tq}")
            cells.append(tag("div", shade, class_="small", title=name, role="img", aria_label=name))
    return tag("div", tag("div", *cells, class_="heads", style=f"--heads:{count}"), class_="scroll")


def _picture(weights: Tensor) -> str:
    """Weights [Tq, Tk] as a PNG of black whose alpha is √weight, in a style's `url`.

    The root lets a weight of 0.01, which is much among a hundred tokens, still be seen beside one of 1.
    """
    Tq, Tk = weights.shape
    lines = torch.zeros(Tq, 1 + 2 * Tk, dtype=torch.uint8)  # of each: no filter, then grey and alpha in turns
    lines[:, 2::2] = (weights.clamp(0, 1).sqrt() * SHADES).round() * 255 / SHADES
    return f"url(data:image/png;base64,{_png(lines, Tk, 4)})"


def _png(lines: Tensor, width: int, kind: int) -> str:
    """Lines of 8 bits, each behind its filter's number, as a PNG in base64; of the kind 0 grey, 2 colours, 4 grey with
    alpha.
    """
    header = struct.pack(">IIBBBBB", width, len(lines), 8, kind, 0, 0, 0)
    data = zlib.compress(lines.numpy().tobytes(), 9)
    png = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")
    return b64encode(png).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
