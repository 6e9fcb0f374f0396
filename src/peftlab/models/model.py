"""What every model has in common: its output, its sites by address, and routes through them.

Shapes: B rows, T tokens, D width, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from peftlab.errors import UserError, unknown
from peftlab.layers.addition import Addition
from peftlab.layers.site import Address, Route, Site, hide_empty_sites


@dataclass(frozen=True)
class Output:
    """What a model gives for a batch."""

    hidden: Tensor
    """[B, T, D] the last hidden states of the batch's tokens, without virtual ones; [B, 1, D] of the token that the
    heads read where only logits were asked for and they read no other"""
    pooled: Tensor | None = None
    """[B, D] what the base's own pooler makes of the first token; None where the family has none"""
    attention: tuple[Tensor, ...] | None = None
    """one [B, H, T, virtual + T] a layer, on request: the columns of virtual tokens and prefixes come first"""
    cross: tuple[Tensor, ...] | None = None
    """of an encoder–decoder, one [B, H, T, virtual + S] a layer of the decoder: where it looks in the source"""
    source: tuple[Tensor, ...] | None = None
    """and one [B, H, S, virtual + S] a layer of the encoder"""
    scores: Tensor | None = None
    """[B, L] the heads' output, as wide as the widest, or [B, T, V] of the next token; `logits` is what to read"""
    counts: Tensor | None = None
    """[B] how many of a row's scores count; None: all"""

    @property
    def virtual(self) -> int:
        """How many columns of `attention` stand for virtual tokens and prefixes."""
        return 0 if not self.attention else self.attention[0].shape[-1] - self.hidden.shape[1]

    @property
    def logits(self) -> Any:
        """[B, labels]; a list of [labels] where rows differ in them, with None for a row without a head."""
        if self.scores is None or self.counts is None:
            return self.scores
        counts = self.counts.tolist()
        if len(set(counts)) == 1:
            return self.scores[:, : counts[0]] if counts[0] else None
        return [row[:count] if count else None for row, count in zip(self.scores, counts, strict=True)]


@dataclass(frozen=True)
class Place:
    """A site with what it is part of: a method looks there for widths and weights."""

    site: Site
    owner: nn.Module
    """the module that has the site as an attribute"""

    @property
    def address(self) -> Address:
        """Where the site is."""
        return self.site.address


@dataclass
class Attached:
    """What a model remembers of an adapter."""

    method: Any
    """its hyper-parameters"""
    head: Any = None
    """its head's, None without one"""


class Model(nn.Module):
    """A base with sites. Subclasses name their sites when they are built (`layers.site.name_sites`)."""

    config: Any
    """the choices it was built from"""
    reads_images: ClassVar[bool] = False
    """and no text"""

    def __init__(self) -> None:
        super().__init__()
        self.adapters: dict[str, Attached] = {}
        self.active: tuple[str, ...] = ()
        self.originals: dict[str, dict[str, Tensor | None]] = {}
        """address → weight and bias as they were before merging; empty: nothing is merged"""
        self.merged: tuple[str, ...] = ()
        self.found: dict[str, Place] = {}

    @property
    def room(self) -> int | None:
        """How many tokens a text that is given may have; None: any number."""
        return None

    @property
    def width(self) -> int:
        """Of the hidden states that a head reads."""
        return self.config.dim

    @property
    def shape(self) -> str:
        """Its size in a few words."""
        c = self.config
        return f"{c.layers} layers, {c.dim} wide, {c.heads} heads, {c.vocab:,} tokens"

    def places(self) -> dict[str, Place]:
        """Every site by its address with its owner, in the order in which the data passes them."""
        if not self.found:  # looked for once: with a thousand adapters a walk through all modules takes 40 ms
            owners = {id(child): owner for owner in self.modules() for child in owner.children()}
            sites = [module for module in self.modules() if isinstance(module, Site)]
            self.found = {site.key: Place(site, owners[id(site)]) for site in sites}
        return self.found

    def sites(self) -> dict[str, Site]:
        """Every site by its address."""
        return {key: place.site for key, place in self.places().items()}

    @property
    def head_address(self) -> str | None:
        """Where a task's head goes; None where it has no place for one."""
        return next((key for key, site in self.sites().items() if site.kind == "head"), None)

    def head_parameters(self) -> list[nn.Parameter]:
        """Of all heads that are attached."""
        return [] if self.head_address is None else list(self.sites()[self.head_address].parameters())

    @property
    def head_lr(self) -> float | None:
        """The learning rate that an attached head is best trained with; None: that of its method."""
        rates = (attached.head and attached.head.lr for attached in self.adapters.values())
        return next((rate for rate in rates if rate is not None), None)

    def additions(self, name: str) -> dict[str, Addition]:
        """What an adapter put where."""
        found = {key: site.get(name) for key, site in self.sites().items()}
        return {key: addition for key, addition in found.items() if addition is not None}

    def base_state(self) -> dict[str, Tensor]:
        """The base's own tensors by name, without what sits in its sites."""
        inside = tuple(f"{path}." for path, module in self.named_modules() if isinstance(module, Site))
        return {name: tensor for name, tensor in self.state_dict().items() if not name.startswith(inside)}

    def route(self, names: Sequence[str | None], stable: bool = True) -> Route:
        """Which adapter acts on which row, as tensors: made outside the compiled graph and given to `forward`.

        With `stable` it depends on what is attached and not on the names: in its shapes, and in carrying no gradient,
        so that another mix of names is not another compilation.
        """
        for name in names:
            if name is not None and name not in self.adapters:
                raise unknown("adapter", name, self.adapters)
            if name is not None and self.adapters[name].method.trains_base:
                raise UserError(f"adapter {name!r} trains the base itself: it can't be one row among others")
        if self.merged:
            raise UserError(
                f"{', '.join(self.merged)} is merged into the base: unmerge it before rows choose their own"
            )
        with torch.set_grad_enabled(torch.is_grad_enabled() and not stable):
            mixed = {key: site.mix(names, stable) for key, site in self.sites().items() if len(site)}
        return Route(len(names), {key: parts for key, parts in mixed.items() if parts})

    __repr__ = hide_empty_sites
