"""timm's config.json ⇄ that of `transformers`: there a model's name stands for its sizes, and `model_args` for changes.

Of PyTorch Image Models the plain ViT and DeiT are read, as `timm.models.push_to_hf_hub` writes them; how their tensors
are named is the family "timm" in `models/families.py`.

    {"architecture": "vit_base_patch16_224", "model_args": {"img_size": 384}, "num_classes": 10, …}
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peftlab.errors import UserError, unknown
from peftlab.models.vit import ViTConfig

SIZES = {
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
    "huge": (1280, 32, 16),
}
"""width, blocks and heads"""
NAME = re.compile(rf"(?:vit|deit)_({'|'.join(SIZES)})_(?:distilled_)?patch(\d+)_(\d+)")
USUAL = {False: "vit_base_patch16_224", True: "deit_base_distilled_patch16_224"}
"""distilled or not → a model that becomes any other by its arguments"""
ARGUMENTS = {
    "embed_dim": "hidden_size",
    "depth": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "patch_size": "patch_size",
    "img_size": "image_size",
    "in_chans": "num_channels",
}
"""of timm's class → as `transformers` calls it"""
ELSEWHERE = ("num_classes", "global_pool", "drop_rate", "dynamic_img_size")
"""arguments that change no tensor of the base"""
EPS, LARGEST = 1e-6, 10_000_000


def read_timm(settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """timm's settings as `transformers` calls them."""
    name = NAME.fullmatch(str(settings.get("architecture")))
    if name is None:
        raise UserError(
            f"architecture in {path} is {settings.get('architecture')!r}: of timm's models those are read that are "
            f"named as {USUAL[False]} and {USUAL[True]}"
        )
    width, blocks, heads = SIZES[name[1]]
    values: dict[str, Any] = {"embed_dim": width, "depth": blocks, "num_heads": heads, "mlp_ratio": 4, "in_chans": 3}
    values |= {"patch_size": int(name[2]), "img_size": int(name[3])}
    given = settings.get("model_args") or {}
    if not isinstance(given, dict):
        raise UserError(f"model_args in {path} is {given!r}: it must be an object of arguments")
    for key, value in given.items():
        if key in ELSEWHERE:
            continue
        if key not in values:
            raise unknown(f"argument in model_args of {path}", key, values)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= LARGEST:
            raise UserError(f"{key} in model_args of {path} is {value!r}: it must be a number above 0")
        values[key] = value
    theirs = {ARGUMENTS[key]: value for key, value in values.items() if key in ARGUMENTS}
    inner = int(values["embed_dim"] * values["mlp_ratio"])
    return theirs | {"intermediate_size": inner, "hidden_act": "gelu", "layer_norm_eps": EPS}


def write_timm(settings: Mapping[str, Any], config: ViTConfig, labels: Mapping[int, str]) -> dict[str, Any]:
    """Our configuration as timm's settings, with what else stood in the settings that were read."""
    if (config.norm_eps, config.activation) != (EPS, "gelu"):
        raise UserError(
            f"timm has ε = {EPS} and gelu, this model {config.norm_eps} and {config.activation}: "
            "save it for transformers"
        )
    if config.distilled and labels:
        raise UserError("timm's distilled models have a head for each of two tokens: save this one for transformers")
    kept = settings if "architecture" in settings else {}
    return {"architecture": USUAL[config.distilled], "global_pool": "token"} | {
        **kept,
        "num_features": config.dim,
        "num_classes": len(labels),
        "label_names": list(labels.values()),
        "model_args": {
            "embed_dim": config.dim,
            "depth": config.layers,
            "num_heads": config.heads,
            "mlp_ratio": ratio(config.inner, config.dim),
            "patch_size": config.patch,
            "img_size": config.image,
            "in_chans": config.channels,
        },
    }


def ratio(inner: int, dim: int) -> float:
    """inner / dim, rounded so that timm, which cuts `dim * ratio` to a whole number, finds `inner` again."""
    near = inner / dim
    return near if int(dim * near) == inner else math.nextafter(near, math.inf)
