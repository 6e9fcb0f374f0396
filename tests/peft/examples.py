"""Small models and one example of every method, for the tests of this folder."""

import json
from pathlib import Path

import torch

import peftlab
from peftlab.data.batch import Batch
from peftlab.data.files import MANIFEST, manifest, sha256
from peftlab.models.encoder import Encoder, EncoderConfig
from peftlab.models.model import Model

METHODS = {
    "lora": peftlab.LoRA(rank=3, alpha=6),
    "lora-all-rs": peftlab.LoRA(
        rank=2, targets="all", rs=True, rank_pattern={"q": 4}, alpha_pattern={"encoder.1.ff.up": 3}
    ),
    "dora": peftlab.LoRA(rank=3, dora=True, targets=("q", "o", "down")),
    "houlsby": peftlab.Adapter(placement="houlsby", width=4, train_norms=True),
    "pfeiffer": peftlab.Adapter(placement="pfeiffer", reduction=4, activation="relu"),
    "parallel": peftlab.Adapter(placement="parallel", width=5, scale=4.0),
    "prompt": peftlab.Prompt(tokens=3),
    "prompt-peft": peftlab.Prompt(tokens=4, init="random", layout="peft"),
    "p-tuning-lstm": peftlab.PTuning(tokens=2, encoder="lstm", hidden=6),
    "p-tuning-mlp": peftlab.PTuning(tokens=4, layout="peft"),
    "prefix": peftlab.Prefix(length=3),
    "prefix-mlp": peftlab.Prefix(length=2, mlp=5),
    "prefix-shared": peftlab.Prefix(length=4, mlp=5, shared=True),
    "prefix-peft": peftlab.Prefix(length=3, layout="peft"),
    "bitfit": peftlab.BitFit(),
    "head": peftlab.Head(),
}
FIVE = ["lora", "houlsby", "prompt", "p-tuning-lstm", "prefix"]
MERGEABLE = ["lora", "lora-all-rs", "dora", "bitfit"]


def small(**choices) -> Encoder:
    """A random encoder of two blocks in evaluation mode, its norms and biases random too."""
    config = {"vocab": 50, "dim": 16, "layers": 2, "heads": 4, "inner": 24, "max_length": 24, "pooler": True}
    torch.manual_seed(0)
    model = Encoder(EncoderConfig(**(config | choices))).eval()
    shake(model.parameters(), 0.2)
    return model


@torch.no_grad()
def shake(parameters, std: float = 0.3) -> None:
    for parameter in parameters:
        parameter.add_(torch.randn_like(parameter) * std)


def add(model: Model, name: str, method, labels: int | None = None) -> None:
    """Attach a method with random weights, as if it were trained."""
    peftlab.attach(model, name, method, head=None if labels is None else peftlab.Classifier(labels=labels))
    for addition in model.additions(name).values():
        shake(addition.parameters())


def batch(*lengths: int, side: str = "right", pairs: bool = False) -> Batch:
    T = max(lengths)
    mask = torch.tensor([[t < n for t in range(T)] for n in lengths])
    mask = mask if side == "right" else mask.flip(1)
    segments = (torch.arange(T) > T // 2).long().expand(len(lengths), T) if pairs else None
    return Batch(torch.randint(1, 50, (len(lengths), T)) * mask, mask, segments)


def row(b: Batch, i: int) -> Batch:
    """One row of a batch alone, without its padding."""
    real = b.mask[i]
    segments = None if b.segments is None else b.segments[i, real][None]
    return Batch(b.ids[i, real][None], b.mask[i, real][None], segments)


def vouch(folder: Path) -> None:
    """Hashes for the files as they are now, as whoever changed them would write them."""
    sidecar = json.loads((folder / "peftlab.json").read_text())
    sidecar["sha256"] = {name: sha256(folder / name) for name in sidecar["sha256"]}
    (folder / "peftlab.json").write_text(json.dumps(sidecar))
    hashes = {path.name: sha256(path) for path in folder.iterdir() if path.name != MANIFEST}
    (folder / MANIFEST).write_bytes(manifest(hashes))
