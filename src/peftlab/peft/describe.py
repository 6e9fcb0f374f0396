"""A look inside: each site, what sits there, its shape, and what trains.

print(peftlab.describe(base.model))        # a table; HTML in a notebook
"""

from __future__ import annotations

import html
from dataclasses import dataclass

from peftlab.models.model import Model


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

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table("site", "kind", "adapter", "what", "shapes", "parameters", "", box=None, pad_edge=False)
        for row in self.rows:
            trains = "trains" if row.trains else "frozen"
            table.add_row(row.site, row.kind, row.adapter, row.what, row.shapes, f"{row.parameters:,}", trains)
        console = Console()
        with console.capture() as captured:
            console.print(table)
        return captured.get() + "\n".join(self.summary())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heads = ("site", "kind", "adapter", "what", "shapes", "parameters", "")
        cells = [
            (r.site, r.kind, r.adapter, r.what, r.shapes, f"{r.parameters:,}", "trains" if r.trains else "frozen")
            for r in self.rows
        ]
        line = "".join(f"<th>{head}</th>" for head in heads)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
        totals = "".join(f"<p>{html.escape(text)}</p>" for text in self.summary())
        return f"<table><thead><tr>{line}</tr></thead><tbody>{body}</tbody></table>{totals}"


def describe(model: Model) -> Description:
    """The additions of a model, site by site, with totals."""
    rows, counted = [], {"added": 0, "heads": 0}
    seen: set[int] = set()
    for key, site in model.sites().items():
        for name, addition in site.items():
            own = [(part, p) for part, p in addition.named_parameters() if id(p) not in seen]  # shared ones count once
            seen |= {id(p) for _, p in own}
            trains = any(p.requires_grad for _, p in own)
            count = sum(p.numel() for _, p in own)
            shapes = ", ".join(f"{part} {'×'.join(map(str, p.shape))}" for part, p in own)
            rows.append(Row(key, site.kind, name, type(addition).__name__, shapes, count, trains))
            counted["heads" if site.kind == "head" else "added"] += count if trains else 0
    base = [p for p in model.parameters() if id(p) not in seen]
    return Description(
        rows=tuple(rows),
        base=sum(p.numel() for p in base),
        base_trains=sum(p.numel() for p in base if p.requires_grad),
        **counted,
    )
