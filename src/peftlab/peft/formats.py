"""Adapters on disk: a folder that stock `peft` loads where it can, with a sidecar that says what `peft` does not.

    adapter_config.json         as stock `peft` writes it; `peft_type` PEFTLAB where stock has no such adapter
    adapter_model.safetensors   its tensors and its head
    1_Pooling/, 2_Dense/        the head where it pools the mean, as `sentence-transformers` reads it
    peftlab.json                the sidecar: method, head, layout, what base, tokenizer and files it belongs to
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

from peftlab.data.files import (
    check_hashes,
    check_manifest,
    is_file,
    make_folder,
    read_object,
    write_bytes,
    write_manifest,
)
from peftlab.data.tensors import Tensors
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError, unknown
from peftlab.layers.addition import Addition
from peftlab.models.base import Base
from peftlab.models.heads import Classifier, Labels
from peftlab.models.model import Attached, Model
from peftlab.models.own import OWN
from peftlab.models.parser import Parser
from peftlab.models.sentence import dense_folders
from peftlab.models.stack import StackConfig
from peftlab.models.tagger import Tagger
from peftlab.models.writer import Writer
from peftlab.peft import make_method
from peftlab.peft.attach import build, check_name, detach, known, put, refuse_merged
from peftlab.peft.method import Method
from peftlab.peft.probe import probe_ids, probe_output, probe_vocabulary, replay
from peftlab.peft.stock import CONFIG, MODEL, Read, from_stock, recoverable, stock_files, why_not_stock

OWN_TYPE = "PEFTLAB"
FORMAT = 1
SIDECAR, SIDE_TENSORS = "peftlab.json", "peftlab.safetensors"
HEADS: dict[str, type[Labels]] = {head.kind: head for head in (Classifier, Tagger, Parser)}
FOLDER = f"an adapter is a folder with {CONFIG} and {MODEL}"


def save_adapter(base: Base, name: str, folder: str | Path, to: str = "auto") -> None:
    """Write an adapter. `to="peft"` insists on what stock `peft` loads and says why where that is not possible."""
    folder, model = Path(folder), base.model
    attached = known(model, name)
    method: Method = attached.method
    why = why_only_ours(base, attached)
    if to not in ("auto", "peft"):
        raise unknown("format", to, ("auto", "peft"))
    if method.trains_base or (to == "peft" and why):
        raise UserError(f"adapter {name!r} ({method.name}) can't be saved for stock peft: {why}")
    refuse_merged(model, "save an adapter")
    own = own_tensors(model, name)
    config, tensors, beside = (
        stock_files(base, attached, model.additions(name)) if why is None else (own_config(base), own, {})
    )
    ids = probe_ids(base, name)
    sidecar = {
        "format": FORMAT,
        "method": {"name": method.name, **asdict(method)},
        "head": None if attached.head is None else {"kind": attached.head.kind, **asdict(attached.head)},
        "base": base_facts(base),
        "probe": ids,
    }
    # what can be had from the other files is not written twice; an encoder that makes vectors is only here
    side = {} if tensors is own or recoverable(base, config, tensors, own) else {f"own.{k}": t for k, t in own.items()}
    side["probe"] = probe_output(model, name, ids)
    # all is made before anything is written, so that a failure leaves what was there
    files = {
        MODEL: save(contiguous(tensors), metadata={"format": "pt"}),
        CONFIG: json.dumps(config, indent=2, sort_keys=True).encode(),
        SIDE_TENSORS: save(contiguous(side)),
        **beside,
    }
    sidecar["sha256"] = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
    files[SIDECAR] = (json.dumps(sidecar, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
    for file, content in files.items():
        make_folder((folder / file).parent)
        write_bytes(folder / file, content)
    write_manifest(folder, files)


def load_adapter(base: Base, folder: str | Path, name: str | None = None) -> str:
    """Attach an adapter from a folder that we or stock `peft` wrote, and activate it; gives its name."""
    folder, model = Path(folder), base.model
    name = folder.name if name is None else name
    check_name(model, name)
    refuse_merged(model, "load an adapter")
    check_manifest(folder)
    try:
        read, probe = read_folder(base, folder)
        built = build(model, read.method, read.head)
    except (TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{folder} is not an adapter of this version: {' '.join(str(error).split())}") from error
    fill(built, read.tensors, folder)
    put(model, name, read.method, read.head, built)
    try:
        if probe is not None:
            replay(model, name, *probe, folder)
            # a bit of a weight may change the output less than rounding does, and a manifest is easily written anew
            check_hashes(folder, read_object(folder / SIDECAR).get("sha256"), SIDECAR)
    except BaseException:
        detach(model, name)
        raise
    return name


def read_folder(base: Base, folder: Path) -> tuple[Read, tuple[list[list[int]], Tensor] | None]:
    """What a folder holds, and where it is ours the probes with the output that they must give."""
    if not is_file(folder / SIDECAR):
        return from_stock(base, read_object(folder / CONFIG, FOLDER), read_tensors(folder, MODEL), folder), None
    sidecar, side = read_object(folder / SIDECAR), read_tensors(folder, SIDE_TENSORS)
    ids, vocabulary = sidecar.get("probe"), probe_vocabulary(base)
    if sidecar.get("format") != FORMAT:
        raise UserError(f"{folder / SIDECAR} has format {sidecar.get('format')!r}: this version reads {FORMAT}")
    rows = ids if isinstance(ids, list) else []
    if not rows or not all(isinstance(row, list) and row and all(i in range(vocabulary) for i in row) for row in rows):
        raise UserError(f"{folder / SIDECAR} has no probes: it is a list of rows of token ids, or of bytes for images")
    if "probe" not in side:
        raise UserError(f"{folder / SIDE_TENSORS} has no output of the probes")
    return read_ours(base, folder, sidecar, side), (rows, side["probe"])


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


def why_only_ours(base: Base, attached: Attached) -> str | None:
    """Why an adapter is written in our own format alone; None if stock `peft` can load it."""
    if isinstance(base.model, Writer) or base.model.reads_images:
        kind = "writes" if isinstance(base.model, Writer) else "reads images"
        return f"that of a model that {kind} is kept in our own format"
    if base.family == OWN:
        return "that of a model of one's own is kept in our own format"
    return why_not_stock(base, attached)


def base_facts(base: Base) -> dict[str, Any]:
    """What an adapter must find again: the base's shape and the hashes of its weights and of what it reads by."""
    reader = "tokenizer" if isinstance(base.reader, Tokenizer) else "image reader"
    return {
        "name": base.name,
        "family": base.family,
        "shape": shape(base.model),
        "weights": weights_hash(base.model),
        reader: hashlib.sha256(base.reader.to_json().encode()).hexdigest(),
    }


def shape(model: Model) -> dict[str, Any]:
    """The sizes of a model that is one stack; of another what it says of itself."""
    c = model.config
    if not isinstance(c, StackConfig):
        return {"model": model.shape}
    return {"layers": c.layers, "width": c.dim, "heads": c.heads, "vocabulary": c.vocab}


def weights_hash(model: Model) -> str:
    """SHA-256 over the base's tensors in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.base_state().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_ours(base: Base, folder: Path, sidecar: Mapping[str, Any], side: Mapping[str, Tensor]) -> Read:
    """A folder with our sidecar."""
    check_base(base, sidecar["base"], folder)
    method = make_method(sidecar["method"], str(folder / SIDECAR))
    head = None if sidecar["head"] is None else make_head(sidecar["head"], folder)
    own = {key.removeprefix("own."): tensor for key, tensor in side.items() if key.startswith("own.")}
    if own:
        return Read(method, head, own)
    config, tensors = read_object(folder / CONFIG, FOLDER), read_tensors(folder, MODEL)
    if config.get("peft_type") == OWN_TYPE:
        return Read(method, head, tensors)
    found = from_stock(base, config, tensors, folder).tensors
    if isinstance(head, Classifier) and head.pool == "mean":
        found |= read_mean_head(base, head, folder)
    return Read(method, head, found)


def make_head(settings: Mapping[str, Any], folder: Path) -> Labels:
    """A head from its settings; without a kind, as all once were, it is a classifier."""
    settings = {"kind": Classifier.kind, **settings}
    if (kind := settings.pop("kind")) not in HEADS:
        raise unknown(f"kind of head in {folder / SIDECAR}", str(kind), HEADS)
    return HEADS[kind](**settings)


def read_mean_head(base: Base, head: Classifier, folder: Path) -> dict[str, Tensor]:
    """The tensors of a head that stands beside stock's files."""
    return {
        f"{base.model.head_address}.{part}.{name.removeprefix('linear.')}": tensor
        for part, place in dense_folders(head.activation(base.config)).items()
        for name, tensor in read_tensors(folder, f"{place}/model.safetensors").items()
    }


def check_base(base: Base, saved: Mapping[str, Any], folder: Path) -> None:
    """The adapter's base is this one, or the error says where they differ."""
    here = base_facts(base)
    for key in here:
        if key != "name" and here[key] != saved[key]:
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
        if not tensors[name].isfinite().all():
            raise UserError(f"the tensor for {name} in {folder} has values that are not finite: it is damaged")
        if tensors[name].shape != parameter.shape:
            there, here = list(tensors[name].shape), list(parameter.shape)
            raise UserError(f"the tensor for {name} in {folder} has shape {there}, its place here has {here}")
    if extra := sorted(tensors.keys() - wanted.keys()):
        raise UserError(f"{folder} has {len(extra)} tensors that its settings have no place for, as {extra[0]}")
    for name, parameter in wanted.items():
        parameter.copy_(tensors[name])


def read_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """All tensors of a file."""
    if not (folder / name).is_file():
        pickle = (
            f" ({name.replace('.safetensors', '.bin')} is a pickle and is not opened)"
            if (folder / name).with_suffix(".bin").is_file()
            else ""
        )
        raise UserError(f"{folder / name} is missing{pickle}: {FOLDER}")
    tensors = Tensors(folder, [name])
    return {key: tensors.read(key) for key in tensors}


def contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with memory of their own, as the file format wants them."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
