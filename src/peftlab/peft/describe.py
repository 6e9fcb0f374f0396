"""A look inside: each site, what sits there, its shape, and what trains.

print(peftlab.describe(base.model))        # a table; HTML in a notebook
"""

from __future__ import annotations

import html
import sys
from dataclasses import dataclass

from peftlab.models.model import Model

HEADINGS = ("site", "kind", "adapter", "what", "shapes", "parameters", "")


@dataclass(frozen=True)
class Row:
    """One addition at one site."""

    site: str
    kind: str
    adapter: str
    what: str
    shapes: str
    parameters: int
    trains: bool
    layer: int | None
    part: str
    """the site with * for the block's number"""


@dataclass(frozen=True)
class Description:
    """What a model carries; prints as a table."""

    rows: tuple[Row, ...]
    base: int
    """parameters of the base"""
    base_trains: int
    """how many of them train"""
    added: int
    """parameters of the adapters that train, without heads"""
    heads: int
    """parameters of the heads that train"""

    @property
    def trainable(self) -> int:
        """All that trains."""
        return self.base_trains + self.added + self.heads

    def summary(self) -> list[str]:
        """The totals, a line each."""
        bare = self.base_trains + self.added
        return [
            f"base {self.base:,} parameters, of which {self.base_trains:,} train",
            f"trainable {bare:,} without heads ({bare / self.base:.3%} of the base), {self.trainable:,} with them"
            f" ({self.trainable / self.base:.3%})",
        ]

    def lines(self) -> list[tuple[str, ...]]:
        """The table's cells; blocks that have the same in the same place share a line."""
        groups: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            trains = "trains" if row.trains else "frozen"
            groups.setdefault((row.part, row.kind, row.adapter, row.what, row.shapes, trains), []).append(row)
        lines = []
        for (part, *cells, trains), rows in groups.items():
            layers = [row.layer for row in rows if row.layer is not None]
            whole = len(layers) > 1 and layers == list(range(layers[0], layers[-1] + 1))
            where = f"{layers[0]}–{layers[-1]}" if whole else ",".join(map(str, layers))
            count = f"{sum(row.parameters for row in rows):,}"
            lines.append((part.replace("*", where), *cells, count, trains))
        return lines

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table(*HEADINGS, box=None, pad_edge=False)
        for column in (0, 2, 5):
            table.columns[column].no_wrap = True
        table.columns[5].justify = "right"
        for line in self.lines():
            table.add_row(*line)
        console = Console() if sys.stdout.isatty() else Console(width=160)
        with console.capture() as captured:
            console.print(table)
        return captured.get() + "\n".join(self.summary())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{heading}</th>" for heading in HEADINGS)
        rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in line) for line in self.lines())
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        totals = "".join(f"<p>{html.escape(text)}</p>" for text in self.summary())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{totals}"


def describe(model: Model) -> Description:
    """The additions of a model, site by site, with totals."""
    rows, counted = [], {"added": 0, "heads": 0}
    seen: set[int] = set()
    for key, site in model.sites().items():
        place = site.address
        part = key if place.layer is None else f"{place.stack}.*.{place.sublayer}.{place.part}"
        for name, addition in site.items():
            own = {leaf: p for leaf, p in addition.named_parameters() if id(p) not in seen}  # shared ones count once
            seen |= {id(p) for p in own.values()}
            shapes = ", ".join(f"{leaf} {'×'.join(map(str, p.shape))}" for leaf, p in own.items())
            count, trains = sum(p.numel() for p in own.values()), any(p.requires_grad for p in own.values())
            rows.append(Row(key, site.kind, name, type(addition).__name__, shapes, count, trains, place.layer, part))
            counted["heads" if site.kind == "head" else "added"] += count if trains else 0
    base = [p for p in model.parameters() if id(p) not in seen]
    return Description(
        rows=tuple(rows),
        base=sum(p.numel() for p in base),
        base_trains=sum(p.numel() for p in base if p.requires_grad),
        **counted,
    )
