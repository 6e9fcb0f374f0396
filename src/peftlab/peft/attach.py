"""Adapters on a model: attach, activate, detach, freeze, merge, unmerge, combine, fold. Knows no method.

Attaching never freezes and never changes the base; detaching restores it bit for bit. Merging keeps the original
weights, so that unmerging is bit-exact.

    attach(model, "mine", LoRA(rank=8), head=Classifier(labels=3))
    freeze(model)                        # only what the active adapters declare trains
    merge(model, "mine"); unmerge(model, "mine"); detach(model, "mine")
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from peftlab.errors import UserError, unknown
from peftlab.layers.addition import Addition
from peftlab.models.heads import Labels
from peftlab.models.model import Attached, Model
from peftlab.peft.method import Method

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ -]{0,63}")


def attach(model: Model, name: str, method: Method, head: Labels | None = None) -> None:
    """Put an adapter into the model's sites under a name, and activate it besides those that are active."""
    check_name(model, name)
    if not isinstance(method, Method):
        raise UserError(f"{method!r} is not a method: give one such as peftlab.LoRA(rank=8)")
    if method.trains_base:
        refuse_merged(model, "train the base")
    put(model, name, method, head, build(model, method, head))


def refuse_merged(model: Model, what: str) -> None:
    """Some things can't be done while the base's weights are not its own."""
    if model.merged:
        raise UserError(f"{', '.join(model.merged)} is merged into the base: unmerge before you {what}")


def build(model: Model, method: Method, head: Labels | None) -> dict[str, Addition]:
    """The additions of a method and a head, on the model's device, not yet in any site."""
    if (problem := no_place(model, type(method))) is not None:
        raise UserError(problem)
    places = {key: place for key, place in model.places().items() if place.site.kind in method.kinds}
    built = method.build(places)
    if method.kinds and not built:
        raise UserError(f"{method!r} finds no place in this model: nothing would be attached")
    if head is not None:
        if (place := model.head_address) is None:
            raise UserError(f"{type(model).__name__} writes text and has no place for a head: attach without one")
        built = {**built, place: head.build(model)}
    parameter = next(model.parameters())
    for addition in built.values():
        addition.to(parameter.device, parameter.dtype).train(model.training)
    return built


def no_place(model: Model, method: type[Method]) -> str | None:
    """Why a model can't carry a method, whatever its settings; None: it can."""
    there = sorted({site.kind for site in model.sites().values()})
    wanted = method.kinds if method.needs is None else (method.needs,)
    if not wanted or any(kind in there for kind in wanted):
        return None
    return f"{method.name} needs a {' or '.join(wanted)} site: this model has {', '.join(there)}"


def put(model: Model, name: str, method: Method, head: Labels | None, built: Mapping[str, Addition]) -> None:
    """Place what was built, and let it act besides what acts already."""
    sites = model.sites()
    for key, addition in built.items():
        sites[key].put(name, addition)
        sites[key].active = (*sites[key].active, name)
    model.adapters[name] = Attached(method, head)
    model.active = (*model.active, name)


def activate(model: Model, names: Sequence[str]) -> None:
    """Let exactly these adapters act, in this order where the order matters; none with an empty list."""
    for name in names:
        known(model, name)
    for name in model.merged:
        if name not in names:
            raise UserError(f"adapter {name!r} is merged into the base and so it acts: unmerge it first")
    model.active = tuple(dict.fromkeys(names))
    for site in model.sites().values():
        here = {name: site.get(name) for name in model.active}
        site.active = tuple(n for n, a in here.items() if a is not None and not (a.mergeable and n in model.merged))


def detach(model: Model, name: str) -> None:
    """Take an adapter away; the base is as it was before it came, unless the adapter trained the base itself."""
    known(model, name)
    if name in model.merged:
        unmerge(model, name)
    for site in model.sites().values():
        if name in site:
            site.remove(name)
    del model.adapters[name]
    model.active = tuple(other for other in model.active if other != name)


def freeze(model: Model) -> None:
    """Train exactly what the active adapters declare, heads included; everything else gets no gradient."""
    refuse_merged(model, "train")
    base = any(model.adapters[name].method.trains_base for name in model.active)
    model.requires_grad_(base)
    for parameter in model.parameters():
        parameter.grad = None
    for name in model.adapters:
        for addition in model.additions(name).values():
            addition.requires_grad_(name in model.active)


@dataclass(frozen=True)
class Drift:
    """What rounding to the base's precision did when a change was merged into it."""

    largest: float
    """the largest difference of any weight from the same sum in double precision"""
    relative: float
    """the same, over the largest weight of its matrix"""
    where: str
    """the address of that matrix"""


def merge(model: Model, name: str) -> Drift:
    """Add an adapter's change to the base's weights, so that it costs nothing at run time; reports the rounding."""
    known(model, name)
    if name in model.merged:
        raise UserError(f"adapter {name!r} is merged already")
    if name not in model.active:
        raise UserError(f"adapter {name!r} is not active, and merged it would act: activate it first")
    stuck = unmergeable(model, name)
    if stuck or model.adapters[name].method.trains_base:
        where = f": what it has at {stuck[0]} is no change of a weight" if stuck else ""
        raise UserError(f"adapter {name!r} ({model.adapters[name].method.name}) can't be merged into the base{where}")
    return remerge(model, (*model.merged, name))


def unmergeable(model: Model, name: str) -> list[str]:
    """The addresses where an adapter is no change of a weight; its head, which stays beside the base, is not asked."""
    head = model.head_address
    return [key for key, addition in model.additions(name).items() if not addition.mergeable and key != head]


def unmerge(model: Model, name: str) -> None:
    """Give the base its own weights back, bit for bit; the adapter acts beside them again."""
    known(model, name)
    if name not in model.merged:
        raise UserError(f"adapter {name!r} is not merged")
    remerge(model, tuple(other for other in model.merged if other != name))


@torch.no_grad()
def remerge(model: Model, names: tuple[str, ...]) -> Drift:
    """The base's own weights plus the changes of these adapters, in that order."""
    drift = Drift(0.0, 0.0, "")
    for key, place in model.places().items():
        owner: Any = place.owner
        found = [place.site.get(name) for name in names]
        changes = [addition for addition in found if addition is not None and addition.mergeable]
        if key in model.originals:
            restore(owner, model.originals.pop(key))
        if not changes:
            continue
        model.originals[key] = {
            "weight": owner.weight.clone(),
            "bias": None if owner.bias is None else owner.bias.clone(),
        }
        weight, bias = owner.weight.double(), None if owner.bias is None else owner.bias.double()
        for addition in changes:
            weight, bias = addition.merged(weight, bias)
        restore(owner, {"weight": weight, "bias": bias})
        for kept, exact in ((owner.weight, weight), (owner.bias, bias)):
            largest = 0.0 if exact is None else float((kept.double() - exact).abs().max())
            if exact is not None and largest >= drift.largest:
                drift = Drift(largest, largest / float(exact.abs().max().clamp(min=1e-30)), key)
    model.merged = names
    activate(model, model.active)
    return drift


def restore(owner: Any, values: Mapping[str, Tensor | None]) -> None:
    """Copy values into a layer's own weights."""
    owner.weight.copy_(values["weight"])
    if owner.bias is not None:
        owner.bias.copy_(values["bias"])


@torch.no_grad()
def combine(model: Model, name: str, weights: Mapping[str, float]) -> None:
    """Attach the weighted sum of adapters whose change is a matrix, under a new name, without a head."""
    check_name(model, name)
    if not weights:
        raise UserError("weights is empty: name at least one adapter with its weight")
    parts = {other: known(model, other) for other in weights}
    kinds = {type(part.method) for part in parts.values()}
    if len(kinds) > 1:
        raise UserError(
            f"a sum needs adapters of one method: {', '.join(f'{n} is {p.method.name}' for n, p in parts.items())}"
        )
    (kind,) = kinds
    method = kind.combined(
        [part.method for part in parts.values()], {k: p for k, p in model.places().items() if p.site.kind in kind.kinds}
    )
    built = build(model, method, None)
    for key, into in built.items():
        here = {other: addition for other in weights if (addition := model.additions(other).get(key)) is not None}
        into.combine(list(here.values()), [weights[other] for other in here])
    put(model, name, method, None, built)


def fold(model: Model, name: str) -> None:
    """Let go what only training needs: a network that makes vectors is replaced by the vectors."""
    attached = known(model, name)
    attached.method = attached.method.folded()
    sites = model.sites()
    for key, addition in model.additions(name).items():
        trains = any(parameter.requires_grad for parameter in addition.parameters())
        sites[key].put(name, addition.folded().train(addition.training).requires_grad_(trains))


def known(model: Model, name: str) -> Attached:
    """What is attached under a name."""
    if name not in model.adapters:
        raise unknown("adapter", name, model.adapters)
    return model.adapters[name]


def check_name(model: Model, name: str) -> None:
    """A new adapter's name can be part of a tensor's name and of a path."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or name != name.strip():
        near = re.sub(r"[^A-Za-z0-9_-]+", "-", str(name)).strip("-")[:64] or "mine"
        raise UserError(f"{name!r} is no name for an adapter: letters, digits, _ and -, at most 64, such as {near!r}")
    if name in model.adapters:
        raise UserError(f"an adapter {name!r} is attached already: detach it first, or choose another name")
