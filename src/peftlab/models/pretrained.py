"""Published checkpoints, in and out: one declarative table a family maps their names and settings to ours.

A checkpoint is a folder with `config.json` and `model.safetensors` (or shards with `model.safetensors.index.json`), as
`transformers` writes it. Pickles are never opened. What we write, `transformers` loads.

    model, family, settings = load_checkpoint(Path("folder"))
    save_checkpoint(model, family, settings, Path("elsewhere"))
"""

from __future__ import annotations

import json
import math
import re
import warnings
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peftlab.data.files import make_folder, read_object, write_text
from peftlab.data.tensors import Tensors, write_tensors
from peftlab.errors import UserError, unknown
from peftlab.models.encoder import EncoderConfig
from peftlab.models.families import FAMILIES
from peftlab.models.family import Family
from peftlab.models.heads import Classifier
from peftlab.models.model import Model
from peftlab.models.own import OWN, load_own, save_own
from peftlab.models.pretraining import PretrainingHead

REQUIRED = ("vocab", "dim", "layers", "heads", "inner")
LARGEST = 10_000_000


def load_checkpoint(folder: Path) -> tuple[Any, str, dict[str, Any]]:
    """The model of a folder, its family, and its `config.json` as it stands there."""
    settings = read_object(folder / "config.json", "a base is a folder with config.json and model.safetensors")
    name = family_name(settings)
    if name == OWN:
        return load_own(folder, settings), name, settings
    if name not in FAMILIES:
        raise unknown(f"architecture in {folder / 'config.json'} (model_type)", name, FAMILIES)
    family, tensors = FAMILIES[name], Tensors.in_folder(folder)
    told = settings if family.dialect is None else family.dialect.read(settings, folder / "config.json")
    values = read_values(family, told, folder / "config.json")
    theirs = base_names(family, tensors)
    for stack in values.values():
        if stack["layers"] > len(theirs):
            raise UserError(
                f"{folder / 'config.json'} says {stack['layers']} layers, the checkpoint has {len(theirs)} tensors"
            )
    for choice, sign in family.optional.items():
        values[""][choice] = sign in theirs
    try:
        with torch.device("meta"):
            model = family.build({stack: family.stacks[stack].config(**given) for stack, given in values.items()})
    except UserError as error:  # what a value alone does not show: heads and width, the name of an activation
        raise UserError(f"{folder / 'config.json'}: {error}") from None
    state = model.state_dict()
    wanted = family.publish(state)
    tensors.check({theirs.get(name, name): tensor.shape for name, tensor in wanted.items()}, "config.json")
    if extra := sorted(theirs.keys() - wanted.keys()):
        raise UserError(f"{folder} has {len(extra)} tensors that its config.json has no place for, as {extra[0]}")
    model.load_state_dict(family.adopt(state, lambda name: tensors.read(theirs[name])), assign=True)
    return model.requires_grad_(True).eval(), name, settings


def family_name(settings: dict[str, Any]) -> str:
    """The family that a config.json is of: timm's have no model_type, and of two with the same one the class tells."""
    told = str(settings.get("model_type", "timm" if "architecture" in settings else ""))
    classes = settings.get("architectures") or ()
    alike = (name for name, family in FAMILIES.items() if family.model_type == told and family.architecture in classes)
    return next(alike, told)


def save_checkpoint(
    model: Any,
    name: str,
    settings: dict[str, Any],
    folder: Path,
    head: str | None = None,
    pretrained: PretrainingHead | None = None,
) -> list[str]:
    """Write `model.safetensors` and `config.json` for `transformers`; gives the names of the files.

    With `head`, the name of an adapter, its classifier is written too; with `pretrained` the head that the model was
    pretrained with, where its family has a place for it.
    """
    if name == OWN:
        if head is not None:
            raise UserError(f"a model of one's own is written without a head: save that of {head!r} by save_adapter")
        return save_own(model, folder)
    family = FAMILIES[name]
    tensors = {key: tensor.detach().contiguous() for key, tensor in family.publish(model.base_state()).items()}
    named = {"model_type": family.model_type or name, "architectures": [family.architecture]}
    written = settings | write_settings(family, model.config) | named
    labels: dict[str, Any] = {}
    if head is not None:
        tensors, labels = with_head(family, tensors, model, head)
        written |= labels
    if pretrained is not None and (published := family.pretrained.get(pretrained.kind)) is not None:
        tensors = {f"{family.prefix}{key}": tensor for key, tensor in tensors.items()}
        state = pretrained.state_dict()
        tensors |= {theirs: state[ours] for ours, theirs in published.names(state).items()}
        written["architectures"] = [family.architecture.replace("Model", published.kind)]
    if family.dialect is not None:
        written = family.dialect.write(settings, model.config, labels.get("id2label", {}))
    make_folder(folder)
    write_tensors(folder / "model.safetensors", tensors)
    write_text(folder / "config.json", json.dumps(written, indent=2, sort_keys=True) + "\n")
    return ["model.safetensors", "config.json"]


def with_head(
    family: Family, tensors: dict[str, Tensor], model: Model, name: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a classifier in `transformers`, and what its config.json says of the labels."""
    about = model.adapters[name].head if name in model.adapters else None
    head = None if about is None else model.additions(name)[model.head_address or ""]
    if head is None or about is None:
        raise UserError(f"adapter {name!r} has no head to save")
    if not isinstance(about, Classifier):
        raise UserError(f"adapter {name!r} has a {about.kind}'s head: transformers' checkpoints have a classifier's")
    if not family.head:
        raise UserError(f"a classifier on {family.architecture} has another shape there: save {name!r} by save_adapter")
    if about.pool != "first":
        raise UserError(
            f'the head pools the {about.pool}, and that of transformers the first token: use pool = "first"'
        )
    tensors = {f"{family.prefix}{key}": tensor for key, tensor in tensors.items()}
    for part, tensor in head.named_parameters():
        module, _, leaf = part.rpartition(".")
        prefix = family.prefix if family.head[module].startswith("pooler") else ""
        tensors[f"{prefix}{family.head[module]}.{leaf}"] = tensor.detach().contiguous()
    architecture = family.architecture.replace("Model", family.classifier)
    return tensors, about.settings | {"architectures": [architecture]}


def head_activation(kind: type[PretrainingHead], name: str, config: EncoderConfig) -> str:
    """What stands behind the dense layer of a head to pretrain with, as a family has it."""
    published = FAMILIES[name].pretrained.get(kind.kind) if name in FAMILIES else None
    own = None if published is None else published.activation
    return own or config.activation


def load_head(folder: Path, name: str, head: PretrainingHead) -> bool:
    """Read what a checkpoint was pretrained with into a head; False where it has none."""
    published = FAMILIES[name].pretrained.get(head.kind) if name in FAMILIES else None
    if published is None:
        return False
    tensors, state = Tensors.in_folder(folder), head.state_dict()
    there = {spelled(name): name for name in tensors}
    wanted = published.names(state)
    if not there.keys() & set(wanted.values()):
        return False
    if published.copies and read_object(folder / "config.json").get("tie_word_embeddings", True) is not True:
        raise UserError(f"{folder}: tie_word_embeddings is false, and a head that is pretrained here has it true")
    tensors.check({there.get(theirs, theirs): state[ours].shape for ours, theirs in wanted.items()}, "config.json")
    head.load_state_dict({ours: tensors.read(there[theirs]) for ours, theirs in wanted.items()})
    return True


def published_as(config: EncoderConfig, kind: type[PretrainingHead]) -> str:
    """The family in whose config.json an encoder with such a head can be told; none has what the ablations turn."""
    for name, family in FAMILIES.items():
        if kind.kind in family.pretrained:
            try:
                values = read_values(family, write_settings(family, config), Path("config.json"))[""]
            except UserError:  # without a feed-forward network
                continue
            if whole(EncoderConfig(**values, pooler=config.pooler)) == whole(config):
                return name
    return OWN


def whole(config: EncoderConfig) -> EncoderConfig:
    """With the width of the embedding, also where it is the model's."""
    return replace(config, embedding_dim=config.embedding_dim or config.dim)


def read_values(family: Family, settings: dict[str, Any], path: Path) -> dict[str, dict[str, Any]]:
    """Their settings → the fields of our configuration of each stack, each value checked."""
    for key, value in family.demanded.items():
        if settings.get(key, value) != value:
            raise UserError(f"{key} in {path} is {settings[key]!r}: this model has it only as {value!r}")
    found = {stack: read_stack(family, stack, settings, path) for stack in family.stacks}
    if family.pads_positions:
        values = found[""]
        values["position_offset"] = values.get("pad", 1) + 1
        values["max_length"] = values.get("max_length", 514) - values["position_offset"]
    return found


def read_stack(family: Family, stack: str, settings: dict[str, Any], path: Path) -> dict[str, Any]:
    """The fields of one stack's configuration."""
    config, names = family.stacks[stack]
    kinds = {field.name: str(field.type).split(" ")[0] for field in fields(config)}
    values: dict[str, Any] = {key: value for key, value in family.fixed.items() if key in kinds}
    for ours, theirs in names.items():
        value, kind = settings.get(theirs), kinds[ours]
        if value is None and ours in family.usual:
            value = family.usual[ours](values)
        if value is None:
            if ours in REQUIRED:
                raise UserError(f"{path} has no {theirs!r}")
            continue
        several = value if isinstance(value, list) else [value]
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        right = {
            "int": number and value == int(value) and 0 <= value <= LARGEST,
            "float": number and 0 <= value <= 1,
            "str": isinstance(value, str),
            "bool": isinstance(value, bool),
            "tuple[int,": all(type(one) is int and 0 < one <= LARGEST for one in several),
            "tuple[str,": all(isinstance(one, str) for one in several),
        }[kind]
        if not right or (ours in REQUIRED and value == 0):
            said = kind.removesuffix(",").replace("tuple[", "list of ")
            raise UserError(f"{theirs} in {path} is {value!r}: it must be a sensible {said}")
        values[ours] = int(value) if kind == "int" else value
    return values


def write_settings(family: Family, config: Any) -> dict[str, Any]:
    """Our configuration → their settings."""
    written: dict[str, Any] = {}
    for stack, (_, names) in family.stacks.items():
        ours = asdict(getattr(config, stack) if stack else config)
        if family.pads_positions:
            ours["max_length"] += ours["position_offset"]
        ours["embedding_dim"] = ours.get("embedding_dim") or ours["dim"]
        written |= {theirs: ours[name] for name, theirs in names.items()}
    return written


def base_names(family: Family, tensors: Tensors) -> dict[str, str]:
    """The base's names without prefix and in today's spelling → the names in the file; a head's are left aside.

    It is told of, unless it is one that the family was pretrained with (`load_head`).
    """
    prefix = family.prefix if any(name.startswith(family.prefix) for name in tensors) else ""
    roots = tuple({re.split(r"[.{]", name)[0] for name in (*family.outside.values(), family.layers)})
    heads = tuple(part for head in family.pretrained.values() for part in (*head.parts.values(), *head.copies))
    found, aside = {}, []
    for name in tensors:
        plain = spelled(name.removeprefix(prefix))
        if re.fullmatch(family.derived, plain) or plain.startswith(heads or "\0"):
            continue
        if name.startswith(prefix) and plain.split(".")[0] in roots:
            found[plain] = name
        else:
            aside.append(name)
    if aside:
        text = f"{tensors.folder}: {len(aside)} tensors are not the base's and are left aside, as {aside[0]}"
        warnings.warn(text, stacklevel=4)
    return found


def spelled(name: str) -> str:
    """A tensor's name in today's spelling: the first BERTs were saved with another one for norms."""
    return re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
