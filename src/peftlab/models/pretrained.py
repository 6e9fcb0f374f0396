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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peftlab.data.files import make_folder, read_object, write_text
from peftlab.data.tensors import Tensors, write_tensors
from peftlab.errors import UserError, unknown
from peftlab.layers.site import Address
from peftlab.models.encoder import Encoder, EncoderConfig

BLOCK = {
    "self_attention.sublayer.q": "attention.self.query",
    "self_attention.sublayer.k": "attention.self.key",
    "self_attention.sublayer.v": "attention.self.value",
    "self_attention.sublayer.o": "attention.output.dense",
    "self_attention.norm": "attention.output.LayerNorm",
    "feedforward.sublayer.up": "intermediate.dense",
    "feedforward.sublayer.down": "output.dense",
    "feedforward.norm": "output.LayerNorm",
}
OUTSIDE = {
    "embedding.words": "embeddings.word_embeddings",
    "embedding.positions": "embeddings.position_embeddings",
    "embedding.segments": "embeddings.token_type_embeddings",
    "embedding.norm": "embeddings.LayerNorm",
    "embedding.project": "embeddings_project",
    "pooler.dense": "pooler.dense",
}
SETTINGS = {
    "vocab": "vocab_size",
    "dim": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "activation": "hidden_act",
    "max_length": "max_position_embeddings",
    "segments": "type_vocab_size",
    "norm_eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "pad": "pad_token_id",
    "init_std": "initializer_range",
}


@dataclass(frozen=True)
class Family:
    """How one family of published checkpoints names what we have."""

    architecture: str
    """the class in `transformers` that holds the base alone"""
    prefix: str
    """what stands before the base's names in a checkpoint with a head"""
    block: dict[str, str] = field(default_factory=lambda: BLOCK)
    """our part of a block → theirs"""
    outside: dict[str, str] = field(default_factory=lambda: OUTSIDE)
    """our part outside the blocks → theirs"""
    layers: str = "encoder.layer."
    """what stands before a block's number"""
    settings: dict[str, str] = field(default_factory=lambda: SETTINGS)
    """our field → their key in config.json"""
    fixed: dict[str, Any] = field(default_factory=dict)
    """fields of ours that are the same in every checkpoint of the family"""
    head: dict[str, str] = field(default_factory=lambda: {"dense": "pooler.dense", "out": "classifier"})
    """our part of a classifier → theirs"""
    past_keys: bool = True
    """whether its class in `transformers` takes keys and values of earlier tokens"""
    pads_positions: bool = False
    """the table of positions starts behind the padding token's row: offset = pad + 1"""

    def module(self, address: Address) -> str | None:
        """A site's address → the module in the base of `transformers`, None where it has none of its own."""
        part, sublayer = (
            f"sublayer.{address.part}",
            {"self": "self_attention", "ff": "feedforward"}.get(address.sublayer),
        )
        for ours in (f"{sublayer}.{part}", f"{sublayer}.{address.part}"):
            if address.layer is not None and ours in self.block:
                return f"{self.layers}{address.layer}.{self.block[ours]}"
        return self.outside.get(f"{address.sublayer}.{address.part}")

    def published(self, name: str) -> str:
        """Our name of a tensor → theirs: `blocks.3.feedforward.norm.bias` → `encoder.layer.3.output.LayerNorm.bias`."""
        module, _, leaf = name.rpartition(".")
        block = re.fullmatch(r"blocks\.(\d+)\.(.+)", module)
        theirs = f"{self.layers}{block[1]}.{self.block[block[2]]}" if block else self.outside[module]
        return f"{theirs}.{leaf}"


DENSE_HEAD = {"dense": "classifier.dense", "out": "classifier.out_proj"}
FAMILIES = {
    "bert": Family("BertModel", "bert."),
    "roberta": Family("RobertaModel", "roberta.", fixed={"head": "tanh"}, head=DENSE_HEAD, pads_positions=True),
    "electra": Family(
        "ElectraModel",
        "electra.",
        settings={**SETTINGS, "embedding_dim": "embedding_size"},
        fixed={"head": "gelu"},
        head=DENSE_HEAD,
    ),
    "distilbert": Family(
        "DistilBertModel",
        "distilbert.",
        block={
            "self_attention.sublayer.q": "attention.q_lin",
            "self_attention.sublayer.k": "attention.k_lin",
            "self_attention.sublayer.v": "attention.v_lin",
            "self_attention.sublayer.o": "attention.out_lin",
            "self_attention.norm": "sa_layer_norm",
            "feedforward.sublayer.up": "ffn.lin1",
            "feedforward.sublayer.down": "ffn.lin2",
            "feedforward.norm": "output_layer_norm",
        },
        layers="transformer.layer.",
        settings={
            "vocab": "vocab_size",
            "dim": "dim",
            "layers": "n_layers",
            "heads": "n_heads",
            "inner": "hidden_dim",
            "activation": "activation",
            "max_length": "max_position_embeddings",
            "dropout": "dropout",
            "attention_dropout": "attention_dropout",
            "pad": "pad_token_id",
            "init_std": "initializer_range",
        },
        fixed={"segments": 0, "norm_eps": 1e-12, "head": "relu"},
        head={"dense": "pre_classifier", "out": "classifier"},
        past_keys=False,
    ),
}
REQUIRED = ("vocab", "dim", "layers", "heads", "inner")
BUFFERS = {"embeddings.position_ids", "embeddings.token_type_ids"}
LARGEST = 10_000_000


def load_checkpoint(folder: Path) -> tuple[Encoder, str, dict[str, Any]]:
    """The model of a folder, its family, and its `config.json` as it stands there."""
    settings = read_object(folder / "config.json", "a base is a folder with config.json and model.safetensors")
    name = str(settings.get("model_type", ""))
    if name not in FAMILIES:
        raise unknown(f"architecture in {folder / 'config.json'} (model_type)", name, FAMILIES)
    family, tensors = FAMILIES[name], Tensors.in_folder(folder)
    config = read_config(family, settings, folder / "config.json")
    theirs = base_names(family, tensors)
    if config.layers > len(theirs):
        raise UserError(
            f"{folder / 'config.json'} says {config.layers} layers, the checkpoint has {len(theirs)} tensors"
        )
    config = replace(config, pooler=family.outside["pooler.dense"] + ".weight" in theirs)
    with torch.device("meta"):
        model = Encoder(config)
    wanted = {key: (family.published(key), tensor.shape) for key, tensor in model.state_dict().items()}
    tensors.check({theirs.get(published, published): shape for published, shape in wanted.values()}, "config.json")
    if extra := sorted(theirs.keys() - {published for published, _ in wanted.values()}):
        raise UserError(f"{folder} has {len(extra)} tensors that its config.json has no place for, as {extra[0]}")
    state = {key: tensors.read(theirs[published]) for key, (published, _) in wanted.items()}
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(True).eval(), name, settings


def save_checkpoint(
    model: Encoder, name: str, settings: dict[str, Any], folder: Path, head: str | None = None
) -> list[str]:
    """Write `model.safetensors` and `config.json` for `transformers`; gives the names of the files.

    With `head`, the name of an adapter, its classifier is written too.
    """
    family = FAMILIES[name]
    tensors = {family.published(key): tensor.detach().contiguous() for key, tensor in model.base_state().items()}
    written = (
        settings | write_config(family, model.config) | {"model_type": name, "architectures": [family.architecture]}
    )
    if head is not None:
        tensors, labels = with_head(family, tensors, model, head)
        written |= labels
    make_folder(folder)
    write_tensors(folder / "model.safetensors", tensors)
    write_text(folder / "config.json", json.dumps(written, indent=2, sort_keys=True) + "\n")
    return ["model.safetensors", "config.json"]


def with_head(
    family: Family, tensors: dict[str, Tensor], model: Encoder, name: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a classifier in `transformers`, and what its config.json says of the labels."""
    head, about = model.head.get(name), model.adapters[name].head if name in model.adapters else None
    if head is None or about is None:
        raise UserError(f"adapter {name!r} has no head to save")
    if about.pool != "first":
        raise UserError(
            f'the head pools the {about.pool}, and that of transformers the first token: use pool = "first"'
        )
    tensors = {f"{family.prefix}{key}": tensor for key, tensor in tensors.items()}
    for part, tensor in head.named_parameters():
        module, _, leaf = part.rpartition(".")
        prefix = family.prefix if family.head[module].startswith("pooler") else ""
        tensors[f"{prefix}{family.head[module]}.{leaf}"] = tensor.detach().contiguous()
    architecture = family.architecture.replace("Model", "ForSequenceClassification")
    return tensors, about.settings | {"architectures": [architecture]}


def read_config(family: Family, settings: dict[str, Any], path: Path) -> EncoderConfig:
    """Their settings → our configuration, each value checked."""
    if settings.get("position_embedding_type", "absolute") != "absolute" or settings.get("is_decoder"):
        raise UserError(f"{path} asks for relative positions or a decoder: this encoder has absolute positions only")
    values: dict[str, Any] = {"norm_eps": 1e-12, **family.fixed}
    for ours, theirs in family.settings.items():
        if theirs not in settings:
            if ours in REQUIRED:
                raise UserError(f"{path} has no {theirs!r}")
            continue
        value, kind = settings[theirs], EncoderConfig.__annotations__[ours].split(" ")[0]
        if value is None and ours == "pad":
            value = 0
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        right = {
            "int": number and value == int(value) and 0 <= value <= LARGEST,
            "float": number and 0 <= value <= 1,
            "str": isinstance(value, str),
        }[kind]
        if not right or (ours in REQUIRED and value == 0):
            raise UserError(f"{theirs} in {path} is {value!r}: it must be a sensible {kind}")
        values[ours] = int(value) if kind == "int" else value
    if family.pads_positions:
        values["position_offset"] = values.get("pad", 1) + 1
        values["max_length"] = values.get("max_length", 514) - values["position_offset"]
    return EncoderConfig(**values)


def write_config(family: Family, config: EncoderConfig) -> dict[str, Any]:
    """Our configuration → their settings."""
    ours = asdict(config)
    if family.pads_positions:
        ours["max_length"] += config.position_offset
    ours["embedding_dim"] = config.embedding_dim or config.dim
    return {theirs: ours[name] for name, theirs in family.settings.items()}


def base_names(family: Family, tensors: Tensors) -> dict[str, str]:
    """The base's names without prefix and in today's spelling → the names in the file; a head's are left aside."""
    prefix = family.prefix if any(name.startswith(family.prefix) for name in tensors) else ""
    roots = tuple({name.split(".")[0] + "." for name in (*family.outside.values(), family.layers)})
    found, aside = {}, []
    for name in tensors:
        plain = name.removeprefix(prefix)
        plain = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", plain))  # as the first BERTs were saved
        if name.startswith(prefix) and plain.startswith(roots):
            found[plain] = name
        else:
            aside.append(name)
    if aside:
        text = f"{tensors.folder}: {len(aside)} tensors are not the base's and are left aside, as {aside[0]}"
        warnings.warn(text, stacklevel=4)
    return {plain: name for plain, name in found.items() if plain not in BUFFERS}
