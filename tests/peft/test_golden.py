"""Adapters, prefix and LoRA against tensors that AdapterHub's own code made; stock `peft` has no bottleneck."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import peftlab
from peftlab.data.batch import Batch
from peftlab.models.pretrained import load_checkpoint

METHODS = {
    "houlsby": peftlab.Adapter(placement="houlsby", width=8, activation="relu"),
    "pfeiffer": peftlab.Adapter(placement="pfeiffer", width=8, activation="gelu"),
    "parallel": peftlab.Adapter(placement="parallel", width=8, activation="relu", scale=2.0),
    "prefix": peftlab.Prefix(length=3),
    "lora": peftlab.LoRA(rank=4, alpha=8, targets=("q", "v")),
}


def fill(model, name: str, tensors: dict[str, torch.Tensor]) -> None:
    """AdapterHub's names → ours."""
    for key, addition in model.additions("mine").items():
        _, layer, sublayer, part = key.split(".")
        block = f"adapter.bert.encoder.layer.{layer}"
        if name == "prefix":
            ((_, flat),) = ((k, t) for k, t in tensors.items() if k.endswith("control_trans"))
            rows = flat.view(3, 2 * 2, 32)  # prefix length, keys and values of two layers, width
            new = {"keys": rows[:, 2 * int(layer)], "values": rows[:, 2 * int(layer) + 1]}
        elif name == "lora":
            stem = f"{block}.attention.self.{ {'q': 'query', 'v': 'value'}[part] }.loras.a.lora_"
            new = {"A": tensors[stem + "A"], "B": tensors[stem + "B"]}
        else:
            stem = f"{block}.{'attention.' if sublayer == 'self' else ''}output.adapters.a.adapter_"
            parts = {"down": "down.0", "up": "up"}
            new = {f"{o}.{leaf}": tensors[f"{stem}{t}.{leaf}"] for o, t in parts.items() for leaf in ("weight", "bias")}
        addition.load_state_dict(new)


@pytest.mark.parametrize("name", METHODS)
def test_equals_adapterhub(name, shared, tmp_path):
    tensors = load_file(shared / "golden" / f"{name}.safetensors")
    base = {key.removeprefix("base."): tensor for key, tensor in tensors.items() if key.startswith("base.")}
    save_file(base, tmp_path / "model.safetensors")
    settings = json.loads((shared / "golden" / "config.json").read_text())["model"]
    (tmp_path / "config.json").write_text(json.dumps(settings))
    model, _, _ = load_checkpoint(tmp_path)
    batch = Batch(tensors["ids"].long(), tensors["mask"].bool())
    torch.testing.assert_close(model(batch).hidden, tensors["hidden_without"], rtol=0, atol=1e-5)
    peftlab.attach(model, "mine", METHODS[name])
    fill(model, name, tensors)
    out = model(batch).hidden
    real = batch.mask
    torch.testing.assert_close(out[real], tensors["hidden"][real], rtol=0, atol=1e-5)
    assert (tensors["hidden"] - tensors["hidden_without"]).abs().max() > 0.01
    mixed = model(batch, adapters=["mine", None]).hidden
    torch.testing.assert_close(mixed[0, real[0]], tensors["hidden"][0, real[0]], rtol=0, atol=1e-5)
    torch.testing.assert_close(mixed[1, real[1]], tensors["hidden_without"][1, real[1]], rtol=0, atol=1e-5)
