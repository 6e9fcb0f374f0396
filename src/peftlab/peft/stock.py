"""Stock `peft`'s adapter files: what is the same for all methods. Each method names its own tensors in its own file.

`adapter_config.json` and `adapter_model.safetensors`, as `peft` 0.21 reads and writes them for `transformers`' models:
for a classifier, its head included, or for the bare base, where the head is none of stock's or there is none.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from peftlab.errors import UserError, unknown
from peftlab.layers.addition import Addition
from peftlab.models.base import Base
from peftlab.models.families import FAMILIES
from peftlab.models.heads import Classifier, ClassifierHead, Labels
from peftlab.models.model import Attached
from peftlab.models.sentence import head_files
from peftlab.peft import METHODS
from peftlab.peft.method import Method, Stock

CONFIG, MODEL = "adapter_config.json", "adapter_model.safetensors"
FOLLOWS = "0.21.2"
"""the version of `peft` whose format this is"""


@dataclass(frozen=True)
class Read:
    """What a folder holds."""

    method: Method
    head: Labels | None
    tensors: dict[str, Tensor]
    """`address.parameter` → tensor, the head's included"""


def why_not_stock(base: Base, attached: Attached) -> str | None:
    """Why stock `peft` can't load an adapter so that it gives the same; None if it can."""
    method, head, family = attached.method, attached.head, FAMILIES[base.family]
    why: str | None = method.why_not_stock(family)
    if head is None:
        return why
    if not isinstance(head, Classifier):
        return f"a {head.kind}'s head is kept in our own format"
    if head.pool == "first" and not family.head:
        return f"a classifier on {family.architecture} has another shape there"
    if head.pool == "mean" and "tokens" in method.kinds and base.config.segments > 1:
        if why is not None:
            return f'{why} and pool = "first"'  # both at once: who trains again does it once
        return (
            "with virtual tokens and a head that pools the mean stock peft ignores which text of a pair a token is of: "
            'train with pool = "first"'
        )
    if why is None and head.pool == "first" and base.config.head == "linear" and not base.config.pooler:
        return "this base has no pooler, which the head brings along and stock peft does not save"
    return why


def stock_files(
    base: Base, attached: Attached, additions: Mapping[str, Addition]
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, bytes]]:
    """Config and tensors as stock `peft` writes them, and the files of a head that is not among them.

    A head that reads the first token is stock's classifier; one that pools the mean stands beside an adapter of the
    bare base, as `sentence-transformers` reads it.
    """
    method, place = attached.method, base.model.head_address
    head, mean = (attached.head is not None and attached.head.pool == pool for pool in ("first", "mean"))
    rest = {key: addition for key, addition in additions.items() if key != place}
    family = FAMILIES[base.family]
    stock: Stock = method.to_stock(rest, module_names(base, family.prefix if head else ""), base.config)
    config = {
        "peft_type": method.stock_type,
        "peft_version": FOLLOWS,
        "base_model_name_or_path": base.name,
        "task_type": "SEQ_CLS" if head else "FEATURE_EXTRACTION",
        "inference_mode": True,
        "modules_to_save": ["classifier", "score"] if head else None,
        "revision": None,
        **stock.config,
    }
    tensors = dict(stock.tensors)
    if head:
        for part, tensor in additions[place].named_parameters():
            module, _, leaf = part.rpartition(".")
            tensors[f"{head_prefix(method.stock_type)}{family.head[module]}.{leaf}"] = tensor.detach()
    return config, tensors, head_files(cast(ClassifierHead, additions[place])) if mean else {}


def head_prefix(stock_type: str | None) -> str:
    """Before a head's tensors: adapters that wrap the model have one `model` more in their names than prompts."""
    wraps = any(method.stock_type == stock_type and "linear" in method.kinds for method in METHODS.values())
    return "base_model.model." if wraps else "base_model."


def module_names(base: Base, prefix: str) -> dict[str, str]:
    """Address → the module's name in `transformers`; sites that have none there stand for themselves."""
    modules = {key: FAMILIES[base.family].module(site.address) for key, site in base.model.sites().items()}
    return {key: key if module is None else f"{prefix}{module}" for key, module in modules.items()}


def from_stock(base: Base, config: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> Read:
    """The method, the head and the tensors by address."""
    known_types = {kind.stock_type: kind for kind in METHODS.values() if kind.stock_type}
    stock_type = str(config.get("peft_type"))
    if stock_type not in known_types:
        raise unknown(f"peft_type in {folder / CONFIG}", stock_type, known_types)
    family, before = FAMILIES[base.family], head_prefix(stock_type)
    heads = {f"{before}{m}.{leaf}": f"{part}.{leaf}" for part, m in family.head.items() for leaf in ("weight", "bias")}
    head_tensors = {heads[name]: tensor for name, tensor in tensors.items() if name in heads}
    rest = {name: tensor for name, tensor in tensors.items() if name not in heads}
    aside = [m for m in config.get("modules_to_save") or [] if m not in ("classifier", "score", "pre_classifier")]
    prefix = family.prefix if any(name.startswith(f"base_model.model.{family.prefix}") for name in rest) else ""
    stock = Stock(config | {"modules_to_save": aside}, rest)
    try:
        method, by_address = known_types[stock_type].from_stock(stock, module_names(base, prefix))
    except KeyError as error:
        raise UserError(f"{folder / MODEL} has no tensor {error.args[0]}") from None
    found = {f"{key}.{part}": tensor for key, parts in by_address.items() for part, tensor in parts.items()}
    head = None
    if head_tensors:
        if "out.weight" not in head_tensors:
            raise UserError(f"{folder / MODEL} has a part of a head only: {', '.join(sorted(head_tensors))}")
        head = Classifier(labels=head_tensors["out.weight"].shape[0])
        found |= {f"{base.model.head_address}.{part}": tensor for part, tensor in head_tensors.items()}
    elif config.get("task_type") == "SEQ_CLS":
        text = f"{folder} is for classification and has no head: the adapter is loaded without one"
        warnings.warn(text, stacklevel=3)
    return Read(method, head, found)


def recoverable(base: Base, config: dict[str, Any], tensors: dict[str, Tensor], own: dict[str, Tensor]) -> bool:
    """Whether the stock file gives every tensor back under its name; those of a head always come back."""
    head = f"{base.model.head_address}."
    rest, back = (
        {key: tensor for key, tensor in found.items() if not key.startswith(head)}
        for found in (own, from_stock(base, config, tensors, Path()).tensors)
    )
    return back.keys() == rest.keys() and all(torch.equal(back[key], rest[key]) for key in rest)
