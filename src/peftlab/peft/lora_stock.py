"""LoRA in stock `peft`'s files: `base_model.model.<module>.lora_A.weight`, and alphas by patterns of module names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from peftlab.errors import UserError
from peftlab.layers.addition import Addition
from peftlab.peft.lora import LoRA
from peftlab.peft.method import Stock

THEIRS = {"A": "lora_A.weight", "B": "lora_B.weight", "magnitude": "lora_magnitude_vector"}
REFUSED = ("fan_in_fan_out", "modules_to_save", "trainable_token_indices", "exclude_modules", "target_parameters")


def to_stock(method: LoRA, additions: Mapping[str, Addition], names: Mapping[str, str]) -> Stock:
    """Config and tensors for stock `peft`. Patterns name whole modules, so that none matches by accident."""

    def by_module(values: Mapping[str, Any]) -> dict[str, Any]:
        at = {key: values.get(key, values.get(key.rpartition(".")[2])) for key in additions}
        return {names[key]: value for key, value in at.items() if value is not None}

    config = {
        "r": method.rank,
        "lora_alpha": method.alpha,
        "lora_dropout": method.dropout,
        "target_modules": sorted(names[key] for key in additions),
        "bias": "none",
        "use_rslora": method.rs,
        "use_dora": method.dora,
        "rank_pattern": by_module(method.rank_pattern),
        "alpha_pattern": by_module(method.alpha_pattern),
        "fan_in_fan_out": False,
        "init_lora_weights": True,
    }
    tensors = {
        f"base_model.model.{names[key]}.{THEIRS[part]}": tensor.detach()
        for key, addition in additions.items()
        for part, tensor in addition.named_parameters()
    }
    return Stock(config, tensors)


def from_stock(stock: Stock, names: Mapping[str, str]) -> tuple[LoRA, dict[str, dict[str, Tensor]]]:
    """The method that a stock LoRA stands for, and its tensors by address."""
    config = stock.config
    for option in REFUSED:
        if config.get(option):
            raise UserError(f"the adapter's {option} is {config[option]!r}, which has no place here")
    if config.get("bias", "none") != "none":
        raise UserError(f"the adapter's bias is {config['bias']!r}, which has no place here: only 'none' has")
    start = config.get("init_lora_weights", True)
    if start not in (True, False, None, "gaussian"):
        raise UserError(f"the adapter's init_lora_weights is {start!r}, which changes the base itself")
    places = {module: key for key, module in names.items()}
    parts = {theirs: ours for ours, theirs in THEIRS.items()}
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in stock.tensors.items():
        module, _, leaf = name.removeprefix("base_model.model.").partition(".lora_")
        if f"lora_{leaf}" not in parts or module not in places:
            raise UserError(f"the adapter's tensor {name} belongs to nothing that this model has")
        found.setdefault(places[module], {})[parts[f"lora_{leaf}"]] = tensor
    if not found:
        raise UserError("the adapter has no tensors of a LoRA")

    def by_address(values: Mapping[str, Any] | None) -> dict[str, Any]:
        matches = [
            (key, value) for pattern, value in (values or {}).items() for key in found if fits(pattern, names[key])
        ]
        return dict(reversed(matches))  # the first pattern that fits wins, as there

    rank = config.get("r", 8)
    ranks = {key: tensors["A"].shape[0] for key, tensors in found.items() if "A" in tensors}
    method = LoRA(
        rank=rank,
        alpha=config.get("lora_alpha", 8),
        dropout=config.get("lora_dropout", 0.0),
        at=tuple(found),
        rs=bool(config.get("use_rslora")),
        dora=bool(config.get("use_dora")),
        rank_pattern={key: there for key, there in ranks.items() if there != rank},
        alpha_pattern=by_address(config.get("alpha_pattern")),
    )
    return method, found


def fits(pattern: str, module: str) -> bool:
    """Whether a pattern names a module, whole or by its end. Regular expressions from a file are not run."""
    if not re.fullmatch(r"\^?[\w.]+\$?", pattern):
        raise UserError(f"the adapter's alpha_pattern {pattern!r} is a regular expression: name modules instead")
    name = pattern.strip("^$")
    return module == name or (module.endswith(f".{name}") and not pattern.startswith("^"))
