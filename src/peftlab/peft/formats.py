"""Adapters on disk: a folder that stock `peft` loads where it can, with a sidecar that says what `peft` does not.

    adapter_config.json         as stock `peft` writes it; `peft_type` PEFTLAB where stock has no such adapter
    adapter_model.safetensors   its tensors and its head
    peftlab.json                the sidecar: method, head, layout, what base and tokenizer it belongs to
    peftlab.safetensors         what the file above lacks: our own tensors, and probes with the output they must give
    peftlab-manifest.json       the SHA-256 of each file, written last

What is read is checked before anything is attached: hashes, the base, names and shapes, and the probes' output.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from peftlab.data.files import check_manifest, write_bytes, write_manifest, write_text
from peftlab.data.tensors import Tensors
from peftlab.errors import UserError, unknown
from peftlab.layers.site import Addition
from peftlab.models.base import Base
from peftlab.models.heads import Classifier
from peftlab.models.model import Model
from peftlab.peft import make_method
from peftlab.peft.attach import activate, build, check_name, detach, known, put
from peftlab.peft.method import Method
from peftlab.peft.probe import probe_ids, probe_output, replay
from peftlab.peft.stock import CONFIG, MODEL, Read, from_stock, recoverable, stock_files, why_not_head

OWN_TYPE = "PEFTLAB"
SIDECAR, SIDE_TENSORS = "peftlab.json", "peftlab.safetensors"


def save_adapter(base: Base, name: str, folder: str | Path, to: str = "auto") -> None:
    """Write an adapter. `to="peft"` insists on what stock `peft` loads and says why where that is not possible."""
    folder, model = Path(folder), base.model
    attached = known(model, name)
    method: Method = attached.method
    why = method.why_not_stock() or why_not_head(attached.head)
    if to not in ("auto", "peft"):
        raise unknown("format", to, ("auto", "peft"))
    if method.trains_base or (to == "peft" and why):
        raise UserError(f"adapter {name!r} ({method.name}) can't be saved for stock peft: {why}")
    if model.merged:
        raise UserError(f"{', '.join(model.merged)} is merged into the base: unmerge before saving")
    own = own_tensors(model, name)
    config, tensors = stock_files(base, attached, model.additions(name)) if why is None else (own_config(base), own)
    ids = probe_ids(base.tokenizer)
    sidecar = {
        "format": 1,
        "method": {"name": method.name, **asdict(method)},
        "head": None if attached.head is None else asdict(attached.head),
        "base": base_facts(base),
        "probe": ids,
    }
    # what can be had from the stock file is not written twice; an encoder that makes vectors is only here
    side = {} if tensors is own or recoverable(base, config, tensors, own) else {f"own.{k}": t for k, t in own.items()}
    side["probe"] = probe_output(model, name, ids)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / MODEL, save(contiguous(tensors), metadata={"format": "pt"}))
    write_text(folder / CONFIG, json.dumps(config, indent=2, sort_keys=True))
    write_bytes(folder / SIDE_TENSORS, save(contiguous(side)))
    write_text(folder / SIDECAR, json.dumps(sidecar, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
    write_manifest(folder, [MODEL, CONFIG, SIDE_TENSORS, SIDECAR])


def load_adapter(base: Base, folder: str | Path, name: str | None = None) -> str:
    """Attach an adapter from a folder that we or stock `peft` wrote, and activate it; gives its name."""
    folder, model = Path(folder), base.model
    name = folder.name if name is None else name
    check_name(model, name)
    check_manifest(folder)
    probe = None
    if (folder / SIDECAR).is_file():
        sidecar = read_json(folder / SIDECAR)
        side = read_tensors(folder, SIDE_TENSORS)
        read, probe = read_ours(base, folder, sidecar, side), side.get("probe")
    else:
        read = from_stock(base, read_json(folder / CONFIG), read_tensors(folder, MODEL), folder)
    built = build(model, read.method, read.head)
    fill(built, read.tensors, folder)
    active = model.active
    put(model, name, read.method, read.head, built)
    try:
        if probe is not None:
            replay(model, name, sidecar["probe"], probe, folder)
    except UserError:
        detach(model, name)
        activate(model, active)
        raise
    return name


def own_tensors(model: Model, name: str) -> dict[str, Tensor]:
    """Every tensor of an adapter under its address; one that several sites share is there once."""
    seen: dict[int, str] = {}
    tensors = {}
    for key, addition in model.additions(name).items():
        for part, tensor in addition.named_parameters():
            if seen.setdefault(id(tensor), f"{key}.{part}") == f"{key}.{part}":
                tensors[f"{key}.{part}"] = tensor.detach()
    return tensors


def own_config(base: Base) -> dict[str, Any]:
    """For what stock `peft` has no place for: a type that it refuses by name."""
    return {"peft_type": OWN_TYPE, "base_model_name_or_path": base.name, "inference_mode": True, "task_type": None}


def base_facts(base: Base) -> dict[str, Any]:
    """What an adapter must find again: the base's shape and the hashes of its weights and vocabulary."""
    c = base.model.config
    return {
        "name": base.name,
        "family": base.family,
        "shape": {"layers": c.layers, "width": c.dim, "heads": c.heads, "vocabulary": c.vocab},
        "weights": weights_hash(base.model),
        "tokenizer": hashlib.sha256(base.tokenizer.to_json().encode()).hexdigest(),
    }


def weights_hash(model: Model) -> str:
    """SHA-256 over the base's tensors in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.base_state().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_ours(base: Base, folder: Path, sidecar: Mapping[str, Any], side: Mapping[str, Tensor]) -> Read:
    """A folder with our sidecar."""
    try:
        check_base(base, sidecar["base"], folder)
        method = make_method(sidecar["method"], str(folder / SIDECAR))
        head = None if sidecar["head"] is None else Classifier(**sidecar["head"])
    except (KeyError, TypeError) as error:
        raise UserError(f"{folder / SIDECAR} is not a sidecar of this version: {error}") from None
    own = {key.removeprefix("own."): tensor for key, tensor in side.items() if key.startswith("own.")}
    if own:
        return Read(method, head, own)
    config, tensors = read_json(folder / CONFIG), read_tensors(folder, MODEL)
    if config.get("peft_type") == OWN_TYPE:
        return Read(method, head, tensors)
    return Read(method, head, from_stock(base, config, tensors, folder).tensors)


def check_base(base: Base, saved: Mapping[str, Any], folder: Path) -> None:
    """The adapter's base is this one, or the error says where they differ."""
    here = base_facts(base)
    for key in ("family", "shape", "weights", "tokenizer"):
        if here[key] != saved[key]:
            raise UserError(
                f"{folder} is an adapter for {saved['name']!r}, not for {base.name!r}: its {key} is "
                f"{told(saved[key])}, this one's is {told(here[key])}"
            )


def told(value: Any) -> str:
    """A fact in few words."""
    return ", ".join(f"{k} {v}" for k, v in sorted(value.items())) if isinstance(value, dict) else str(value)[:12]


@torch.no_grad()
def fill(built: Mapping[str, Addition], tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Copy tensors into what was built; each must be there, in its shape, and none may be left over."""
    seen: set[int] = set()
    wanted: dict[str, nn.Parameter] = {}
    for key, addition in built.items():
        for part, parameter in addition.named_parameters():
            if id(parameter) not in seen:
                wanted[f"{key}.{part}"] = parameter
                seen.add(id(parameter))
    for name, parameter in wanted.items():
        if name not in tensors:
            raise UserError(f"{folder} has no tensor for {name}, which its settings ask for")
        if tensors[name].shape != parameter.shape:
            there, here = list(tensors[name].shape), list(parameter.shape)
            raise UserError(f"the tensor for {name} in {folder} has shape {there}, its place here has {here}")
    if extra := sorted(tensors.keys() - wanted.keys()):
        raise UserError(f"{folder} has {len(extra)} tensors that its settings have no place for, as {extra[0]}")
    for name, parameter in wanted.items():
        parameter.copy_(tensors[name])


def read_json(path: Path) -> dict[str, Any]:
    """An object from a file."""
    if not path.is_file():
        raise UserError(f"{path} is missing: an adapter is a folder with {CONFIG} and {MODEL}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}, not an object of settings")
    return content


def read_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """All tensors of a file."""
    if not (folder / name).is_file():
        pickle = (
            f" ({name.replace('.safetensors', '.bin')} is a pickle and is not opened)"
            if (folder / name).with_suffix(".bin").is_file()
            else ""
        )
        raise UserError(f"{folder / name} is missing{pickle}: an adapter is a folder with {CONFIG} and {MODEL}")
    tensors = Tensors(folder, [name])
    return {key: tensors.read(key) for key in tensors}


def contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with memory of their own, as the file format wants them."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
