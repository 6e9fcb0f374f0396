"""Sites: the places of a model where a method may add something, and how several additions combine there.

A model declares its sites in its own code. Each kind fixes what an addition is given and how additions combine, so that
methods can be mixed and the base never changes its shape or its keys. An empty site is the identity.

| kind     | an addition is called with                            | combine     |
|----------|-------------------------------------------------------|-------------|
| tokens   | the number of rows; gives `Virtual` tokens            | prepend     |
| linear   | x, y0 = xWᵀ + b, W, b; gives what is added to y0      | sum         |
| kv       | the number of rows; gives `KeysValues`                | concatenate |
| sublayer | y, x, join; gives the new y                           | in order    |
| norm     | scale and shift; gives their changes                  | sum         |
| head     | `States`; gives logits                                | one a row   |

Which additions act is decided outside `forward`: the names in `site.active`, the same for every row, or a `Route`, in
which each row names its own adapter and the members of one group are stacked into one batched addition.

Shapes: B rows, T tokens, D model width, n virtual tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peftlab import native
from peftlab.errors import UserError
from peftlab.layers.addition import Addition, KeysValues, Logits, States, Virtual


@dataclass(frozen=True, order=True)
class Address:
    """Where a site is, independent of any published naming: `encoder.3.self.q`, `encoder.embedding.tokens`."""

    stack: str
    """encoder or decoder"""
    layer: int | None
    """the block's number from the input, None outside the blocks"""
    sublayer: str
    """self, local, cross or ff; outside the blocks embedding or pooler; empty for the model's own"""
    part: str
    """q, k, v, o, kv, up, down, norm, out, tokens, head …"""

    def __str__(self) -> str:
        layer = "" if self.layer is None else str(self.layer)
        return ".".join(piece for piece in (self.stack, layer, self.sublayer, self.part) if piece)


@dataclass(frozen=True)
class Route:
    """Which addition acts on which row: built outside the compiled graph, read inside it."""

    rows: int
    parts: dict[str, tuple[Callable[..., Any], ...]] = field(default_factory=dict)
    """address → the mixed additions that act there, one a group"""


def check_route(route: Route | None, rows: int) -> None:
    """A route names an adapter for each row of a batch."""
    if route is not None and route.rows != rows and not torch.compiler.is_compiling():
        raise UserError(f"{route.rows} adapters are named for a batch of {rows} rows: name one a row, or None")


class Group(NamedTuple):
    """Additions that can be stacked: the largest of them, and its size."""

    like: Addition
    size: int


class Site(nn.ModuleDict):
    """An empty place with an address; additions are kept by their adapter's name."""

    kind: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.address = Address("", None, "", "")
        self.key = ""
        self.active: tuple[str, ...] = ()
        self.groups: dict[Any, Group] = {}

    def put(self, name: str, addition: Addition) -> None:
        """Place an addition. Past `add_module`, which refuses names that a ModuleDict has as attributes (`keys`)."""
        self._modules[name] = addition
        self.groups.clear()

    def remove(self, name: str) -> None:
        """Take an addition away again."""
        del self._modules[name]
        self.active = tuple(other for other in self.active if other != name)
        self.groups.clear()

    def idle(self, route: Route | None) -> bool:
        """Whether nothing acts, and the site need not be asked: most are empty, and a call takes longer than this."""
        return not self.active if route is None else self.key not in route.parts

    def acting(self, route: Route | None) -> Sequence[Callable[..., Any]]:
        """The additions that act in this pass, in order."""
        if route is None:
            return [self._modules[name] for name in self.active]
        return route.parts.get(self.key, ())

    def alone(self, route: Route | None) -> Addition | None:
        """All that acts here, where that is one addition, the same for every row."""
        acting: Sequence[Any] = self.acting(route)
        return acting[0] if route is None and len(acting) == 1 else None

    def mix(self, names: Sequence[str | None], stable: bool) -> tuple[Callable[..., Any], ...]:
        """The mixed additions for rows that name their adapters.

        `stable`: also the groups that no row names, at the largest size of any member, so that shapes depend on what
        is attached and not on the names, and a compiled model is not compiled again for each mix.
        """
        rows = [None if name is None else self.get(name) for name in names]
        of = [None if row is None else row.group for row in rows]
        if stable and not self.groups:  # looking through a thousand takes long
            self.groups.update(grouped(self.values()))
        groups = self.groups if stable else grouped(dict.fromkeys(row for row in rows if row is not None))
        return tuple(
            group.like.mixed([row if its == key else None for row, its in zip(rows, of, strict=True)], group.size)
            for key, group in groups.items()
        )

    def get(self, name: str) -> Addition | None:
        """The addition of an adapter, None if it has none here."""
        return self._modules.get(name)  # type: ignore[return-value]


def grouped(additions: Iterable[Any]) -> dict[Any, Group]:
    """The groups that additions are of."""
    groups: dict[Any, Group] = {}
    for addition in additions:
        key, size = addition.group, addition.size
        before = groups.get(key)
        if before is None or before.size < size:
            groups[key] = Group(addition, size)
    return groups


class TokensSite(Site):
    """Virtual tokens before the real ones."""

    kind = "tokens"

    def forward(self, rows: int, route: Route | None = None) -> Virtual | None:
        """The virtual tokens of all that act, the first in front."""
        parts: list[Virtual] = [addition(rows) for addition in self.acting(route)]
        if not parts:
            return None
        return Virtual(
            vectors=torch.cat([part.vectors for part in parts], 1),
            mask=torch.cat([part.mask for part in parts], 1),
            placed=torch.cat([part.placed for part in parts], 1),
            shift=torch.stack([part.shift for part in parts]).sum(0),
            full=all(part.full for part in parts),
        )


class LinearSite(Site):
    """On a linear map."""

    kind = "linear"

    def forward(self, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, route: Route | None = None) -> Tensor:
        """y0 and the sum of what is added to it."""
        changes = [addition(x, y, weight, bias) for addition in self.acting(route)]
        for change in changes:
            y = y + change
        return y

    def changes(self, route: Route | None) -> native.Changes | None:
        """Each row's change of low rank, where these are all that acts and our own kernels can add them, which they do
        without gradients.
        """
        acting = () if route is None or torch.is_grad_enabled() else self.acting(route)
        return getattr(acting[0], "changes", None) if len(acting) == 1 else None


class KVSite(Site):
    """Keys and values before those of the tokens."""

    kind = "kv"

    def forward(
        self, keys: Tensor, values: Tensor, mask: Tensor | None, route: Route | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values [B, n + T, D] with the added ones in front, and the mask [B, 1, ?, n + T] that fits them."""
        B = keys.shape[0]
        for addition in reversed(self.acting(route)):
            added: KeysValues = addition(B)
            n, T = added.keys.shape[1], keys.shape[1]
            keys = torch.cat([added.keys.to(keys.dtype), keys], 1)
            values = torch.cat([added.values.to(values.dtype), values], 1)
            if mask is not None or added.mask is not None:
                rest = keys.new_ones(B, 1, 1, T, dtype=torch.bool) if mask is None else mask
                front = rest.new_ones(B, n) if added.mask is None else added.mask
                mask = torch.cat(
                    [front[:, None, None].expand(-1, -1, rest.shape[2], -1), rest.expand(B, -1, -1, -1)], 3
                )
        return keys, values, mask


class SublayerSite(Site):
    """On a sublayer's output, before the block joins it to its input."""

    kind = "sublayer"

    def forward(self, y: Tensor, x: Tensor, join: Callable[[Tensor], Tensor], route: Route | None = None) -> Tensor:
        """The sublayer's output, changed by each addition in turn. `join` is what the block does with it afterwards."""
        for addition in self.acting(route):
            y = addition(y, x, join)
        return y


class NormSite(Site):
    """On a norm's scale and shift."""

    kind = "norm"

    def forward(self, scale: Tensor, shift: Tensor, route: Route | None = None) -> tuple[Tensor, Tensor]:
        """Scale and shift with the sum of their changes: [D], or [B, 1, D] where rows differ."""
        changes = [addition(scale, shift) for addition in self.acting(route)]
        for scale_change, shift_change in changes:
            scale, shift = scale + scale_change, shift + shift_change
        return scale, shift


class HeadSite(Site):
    """What a task reads off the model."""

    kind = "head"

    def read_first(self, route: Route | None = None) -> bool:
        """Whether the heads that act read the first token and no other."""
        acting: Sequence[Any] = self.acting(route)
        return bool(acting) and all(head.reads_first for head in acting)

    def forward(self, states: States, route: Route | None = None) -> Logits | None:
        """The logits of the head that was activated last, or of each row's own."""
        acting = self.acting(route)
        if not acting:
            return None
        if route is None:
            return Logits(acting[-1](states), None)
        parts: list[Logits] = [head(states) for head in acting]
        widest = max(part.scores.shape[1] for part in parts)
        scores = torch.stack([F.pad(part.scores, (0, widest - part.scores.shape[1])) for part in parts]).sum(0)
        return Logits(scores, torch.stack([part.counts for part in parts if part.counts is not None]).sum(0))


def hide_empty_sites(module: nn.Module) -> str:
    """A module's `repr` without its empty sites, so that a model prints as the paper draws it."""
    shown = object.__new__(type(module))
    shown.__dict__ = dict(module.__dict__)
    shown.__dict__["_modules"] = {
        name: child for name, child in module._modules.items() if not (isinstance(child, Site) and len(child) == 0)
    }
    return nn.Module.__repr__(shown)


GLUE = {"blocks", "sublayer", "site"}
SUBLAYERS = {"self_attention": "self", "local_attention": "local", "cross_attention": "cross", "feedforward": "ff"}


def name_sites(stack: nn.Module, name: str) -> None:
    """Give each site of an encoder or a decoder its address, from where it stands in the module tree."""
    for path, module in stack.named_modules():
        if isinstance(module, Site):
            pieces = [SUBLAYERS.get(piece, piece) for piece in path.split(".") if piece not in GLUE]
            layer = int(pieces.pop(0)) if pieces[0].isdigit() else None
            module.address = Address(name, layer, ".".join(pieces[:-1]), pieces[-1])
            module.key = str(module.address)
