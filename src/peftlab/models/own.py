"""Models of one's own: built from settings, not from a published checkpoint, and kept in a folder all the same.

    model = make_model({"kind": "seq2seq", "dim": 256, "layers": 3, "heads": 4, "inner": 1024}, vocab=8000, marks=marks)
    save_own(model, folder)        # config.json with model_type "peftlab", and model.safetensors under our names

What another library can read too is an export (`models/families.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peftlab.data.files import make_folder, write_text
from peftlab.data.tensors import Tensors, write_tensors
from peftlab.errors import UserError, unknown
from peftlab.models.cnn import CNN, CNNConfig
from peftlab.models.decoder import Decoder, DecoderConfig
from peftlab.models.encoder import Encoder, EncoderConfig
from peftlab.models.model import Model
from peftlab.models.reformer import ReformerConfig, ReformerDecoder, ReformerEncoder
from peftlab.models.rnn import RecurrentConfig, RecurrentSeq2Seq
from peftlab.models.seq2seq import Seq2Seq, Seq2SeqConfig, seq2seq_config
from peftlab.models.stack import StackConfig
from peftlab.models.vit import ViT, ViTConfig
from peftlab.models.writer import Marks, Writer

OWN = "peftlab"
"""the model_type in config.json"""


def make_seq2seq(settings: Mapping[str, Any]) -> Seq2SeqConfig:
    """From its settings as they are saved."""
    encoder, decoder = (dict(settings[stack]) for stack in ("encoder", "decoder"))
    return Seq2SeqConfig(EncoderConfig(**encoder), DecoderConfig(**decoder), settings["shared"])


KINDS: dict[str, tuple[type[Model], Callable[[Mapping[str, Any]], Any]]] = {
    "seq2seq": (Seq2Seq, make_seq2seq),
    "rnn": (RecurrentSeq2Seq, lambda settings: RecurrentConfig(**settings)),
    "encoder": (Encoder, lambda settings: EncoderConfig(**settings)),
    "decoder": (Decoder, lambda settings: DecoderConfig(**settings)),
    "reformer": (ReformerDecoder, lambda settings: ReformerConfig(**settings)),
    "reformer_encoder": (ReformerEncoder, lambda settings: ReformerConfig(**settings)),
    "vit": (ViT, lambda settings: ViTConfig(**settings)),
    "cnn": (CNN, lambda settings: CNNConfig(**settings)),
}
SHAPES: dict[str, Any] = {
    "seq2seq": StackConfig,
    "rnn": RecurrentConfig,
    "encoder": EncoderConfig,
    "decoder": DecoderConfig,
    "reformer": ReformerConfig,
    "reformer_encoder": ReformerConfig,
    "vit": ViTConfig,
    "cnn": CNNConfig,
}
"""kind → what its settings are"""


def make_model(settings: Mapping[str, Any], vocab: int, marks: Marks, where: str = "[model]") -> Writer:
    """A model that writes, with random weights; the settings are its kind and what its configuration leaves open."""
    given = {"vocab": vocab, "start": marks.start, "end": marks.end, "pad": marks.pad}
    model = make({"kind": "seq2seq", **settings}, given, where)
    assert isinstance(model, Writer)
    return model


def make(settings: Mapping[str, Any], given: Mapping[str, Any], where: str = "[model]") -> Model:
    """A model with random weights, of its kind and its settings, and of what the data gives."""
    rest = dict(settings)
    kind = str(rest.pop("kind"))
    if kind not in KINDS:
        raise unknown(f"kind in {where}", kind, KINDS)
    shape = SHAPES[kind]
    known = {field.name for field in fields(shape)} | ({"shared", "tied"} if kind == "seq2seq" else set())
    for key in rest:
        if key not in known - given.keys():
            raise unknown(f"key of {where} for a {kind}", key, sorted(known - given.keys()))
    try:
        if kind == "seq2seq":
            return Seq2Seq(seq2seq_config(**given, **rest))
        return KINDS[kind][0](shape(**given, **rest))  # type: ignore[call-arg]
    except TypeError as error:
        raise UserError(f"{where} can't be {json.dumps(rest)}: {error}") from None


def save_own(model: Model, folder: Path) -> list[str]:
    """Write a model; gives the names of the files."""
    kind = next(kind for kind, (cls, _) in KINDS.items() if isinstance(model, cls))
    written = {"model_type": OWN, "kind": kind, "config": asdict(model.config)}
    make_folder(folder)
    tensors = {key: tensor.detach().contiguous() for key, tensor in once(model).items()}
    write_tensors(folder / "model.safetensors", tensors)
    write_text(folder / "config.json", json.dumps(written, indent=2) + "\n")
    return ["model.safetensors", "config.json"]


def load_own(folder: Path, settings: Mapping[str, Any]) -> Model:
    """The model of a folder whose config.json says so."""
    kind = str(settings.get("kind"))
    if kind not in KINDS:
        raise unknown(f"kind in {folder / 'config.json'}", kind, KINDS)
    cls, make = KINDS[kind]
    try:
        config = make(settings["config"])
    except (KeyError, TypeError) as error:
        raise UserError(f"{folder / 'config.json'} is not that of a {kind}: {error}") from None
    model = cls(config)  # type: ignore[call-arg]
    tensors, state = Tensors.in_folder(folder), once(model)
    tensors.check({key: tensor.shape for key, tensor in state.items()}, "config.json")
    with torch.no_grad():
        for key, tensor in state.items():
            tensor.copy_(tensors.read(key))
    return model.eval()


def once(model: Model) -> dict[str, Tensor]:
    """The tensors of a model, one that has two names under its first alone."""
    found: dict[int, tuple[str, Tensor]] = {}
    for key, tensor in model.base_state().items():
        found.setdefault(tensor.data_ptr(), (key, tensor))
    return dict(found.values())
