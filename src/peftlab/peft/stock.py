"""Stock `peft`'s adapter files: what is the same for all methods. Each method names its own tensors in its own file.

`adapter_config.json` and `adapter_model.safetensors`, as `peft` 0.21 reads and writes them for `transformers`' models,
the classifier included.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peftlab.errors import UserError, unknown
from peftlab.layers.site import Addition
from peftlab.models.base import Base
from peftlab.models.heads import Classifier
from peftlab.models.model import Attached
from peftlab.models.pretrained import FAMILIES
from peftlab.peft import METHODS
from peftlab.peft.method import Method, Stock

CONFIG, MODEL = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True)
class Read:
    """What a folder holds."""

    method: Method
    head: Classifier | None
    tensors: dict[str, Tensor]
    """`address.parameter` → tensor, the head's included"""


def why_not_head(head: Classifier | None) -> str | None:
    """Why stock `peft` can't load a head."""
    return (
        None
        if head is None or head.pool == "first"
        else f'its head pools the {head.pool}, and stock peft\'s the first token: use pool = "first"'
    )


def stock_files(
    base: Base, attached: Attached, additions: Mapping[str, Addition]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors as stock `peft` writes them, head included."""
    method, head = attached.method, attached.head
    rest = {key: addition for key, addition in additions.items() if not key.endswith(".head")}
    stock: Stock = method.to_stock(rest, module_names(base), base.model.config)
    config = {
        "peft_type": method.stock_type,
        "base_model_name_or_path": base.name,
        "task_type": None if head is None else "SEQ_CLS",
        "inference_mode": True,
        "modules_to_save": None if head is None else ["classifier", "score"],
        "revision": None,
        **stock.config,
    }
    tensors = dict(stock.tensors)
    for key in additions.keys() - rest.keys():
        prefix = head_prefix(method.stock_type)
        for part, tensor in additions[key].named_parameters():
            module, _, leaf = part.rpartition(".")
            tensors[f"{prefix}{FAMILIES[base.family].head[module]}.{leaf}"] = tensor.detach()
    return config, tensors


def head_prefix(stock_type: str | None) -> str:
    """Before a head's tensors: adapters that wrap the model have one `model` more in their names than prompts."""
    wraps = any(method.stock_type == stock_type and "linear" in method.kinds for method in METHODS.values())
    return "base_model.model." if wraps else "base_model."


def module_names(base: Base) -> dict[str, str]:
    """Address → the module's name in `transformers`; sites that have none there stand for themselves."""
    family = FAMILIES[base.family]
    return {key: family.module(site.address) or key for key, site in base.model.sites().items()}


def from_stock(base: Base, config: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> Read:
    """The method, the head and the tensors by address."""
    known_types = {kind.stock_type: kind for kind in METHODS.values() if kind.stock_type}
    stock_type = config.get("peft_type")
    if stock_type not in known_types:
        raise unknown(f"peft_type in {folder / CONFIG}", str(stock_type), known_types)
    family, prefix = FAMILIES[base.family], head_prefix(stock_type)
    theirs = {
        f"{prefix}{module}.{leaf}": f"{part}.{leaf}"
        for part, module in family.head.items()
        for leaf in ("weight", "bias")
    }
    head_tensors = {theirs[name]: tensor for name, tensor in tensors.items() if name in theirs}
    rest = {name: tensor for name, tensor in tensors.items() if name not in theirs}
    aside = [m for m in config.get("modules_to_save") or [] if m not in ("classifier", "score", "pre_classifier")]
    try:
        method, by_address = known_types[stock_type].from_stock(
            Stock(config | {"modules_to_save": aside}, rest), module_names(base)
        )
    except KeyError as error:
        raise UserError(f"{folder / MODEL} has no tensor {error.args[0]}") from None
    found = {f"{key}.{part}": tensor for key, parts in by_address.items() for part, tensor in parts.items()}
    head = None
    if head_tensors:
        if "out.weight" not in head_tensors:
            raise UserError(f"{folder / MODEL} has a part of a head only: {', '.join(sorted(head_tensors))}")
        head = Classifier(labels=head_tensors["out.weight"].shape[0])
        found |= {f"encoder.head.{part}": tensor for part, tensor in head_tensors.items()}
    elif config.get("task_type") == "SEQ_CLS":
        warnings.warn(
            f"{folder} is for classification and has no head: the adapter is loaded without one", stacklevel=3
        )
    return Read(method, head, found)


def recoverable(base: Base, config: dict[str, Any], tensors: dict[str, Tensor], own: dict[str, Tensor]) -> bool:
    """Whether the stock file alone gives every tensor back under its name."""
    back = from_stock(base, config, tensors, Path()).tensors
    return back.keys() == own.keys() and all(torch.equal(back[key], own[key]) for key in own)
