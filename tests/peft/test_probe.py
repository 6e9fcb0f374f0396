"""Adapters of models that write, on disk: whole they come back, and no weight of theirs changes unnoticed."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from examples import FIVE, METHODS, shake, vouch
from safetensors.torch import load_file, save_file

import peftlab
from peftlab.data.files import MANIFEST, manifest, sha256
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.models.base import Base
from peftlab.models.own import OWN, make_model
from peftlab.models.writer import Marks
from peftlab.peft.probe import TEXTS, WRITTEN, probe_output

SIZES = {"dim": 16, "layers": 1, "heads": 2, "inner": 24, "max_length": 96, "init_std": 0.3}
KINDS = {
    "decoder": {"kind": "decoder", **SIZES, "residual": "pre"},
    "seq2seq": {"kind": "seq2seq", **SIZES},
    "rnn": {"kind": "rnn", "dim": 16, "cell": "lstm", "tied": False},
}
FITTING = {name: METHODS[name] for name in FIVE} | {"lora": peftlab.LoRA(rank=2, targets="all")}
RECURRENT = {"lora": peftlab.LoRA(rank=2, at=("decoder.bridge", "decoder.vocabulary")), "bitfit": peftlab.BitFit()}
PAIRS = [(kind, name) for kind in KINDS for name in (RECURRENT if kind == "rnn" else FITTING)]
MODEL, SIDECAR = "adapter_model.safetensors", "peftlab.json"


def small(kind: str, **choices) -> Base:
    tokenizer = Tokenizer.train_on(TEXTS, "bpe", vocab_size=300)
    marks = Marks(None if kind == "decoder" else tokenizer.bos, tokenizer.eos, tokenizer.pad)
    torch.manual_seed(0)
    return Base("small", make_model(KINDS[kind] | choices, tokenizer.vocab_size, marks).eval(), tokenizer, OWN, {})


def save(base: Base, method: str, folder: Path) -> Path:
    """An adapter as if it were trained."""
    methods = RECURRENT if base.model.max_length is None else FITTING
    peftlab.attach(base.model, "mine", methods[method])
    for addition in base.model.additions("mine").values():
        shake(addition.parameters())
    peftlab.save_adapter(base, "mine", folder)
    peftlab.detach(base.model, "mine")
    return folder


@pytest.mark.parametrize(("kind", "method"), PAIRS)
def test_every_tensor_of_an_adapter_is_replayed(kind, method, tmp_path):
    base = small(kind)
    folder = save(base, method, tmp_path / "adapter")
    assert peftlab.load_adapter(base, folder) == "adapter"
    peftlab.save_adapter(base, "adapter", tmp_path / "again")
    assert (tmp_path / "again" / MODEL).read_bytes() == (folder / MODEL).read_bytes()
    peftlab.detach(base.model, "adapter")
    tensors = load_file(folder / MODEL)
    assert tensors
    for name in tensors:
        changed = Path(shutil.copytree(folder, tmp_path / "changed", dirs_exist_ok=True))
        other = dict(tensors)
        other[name] = tensors[name] + torch.randn_like(tensors[name])
        save_file(other, changed / MODEL, metadata={"format": "pt"})
        vouch(changed)
        with pytest.raises(UserError, match="gives another output for its probes"):
            peftlab.load_adapter(base, changed, name="other")
        assert base.model.adapters == {}


@pytest.mark.parametrize("kind", KINDS)
def test_one_flipped_bit_of_a_weight_is_told_even_if_the_manifest_is_written_anew(kind, tmp_path):
    base = small(kind)
    folder = save(base, "lora", tmp_path / "adapter")
    content = bytearray((folder / MODEL).read_bytes())
    start, generator = 8 + int.from_bytes(content[:8], "little"), torch.Generator().manual_seed(0)
    for place in torch.randint(8 * start, 8 * len(content), (25,), generator=generator).tolist():
        content[place // 8] ^= 1 << place % 8
        (folder / MODEL).write_bytes(content)
        hashes = {path.name: sha256(path) for path in folder.iterdir() if path.name != MANIFEST}
        (folder / MANIFEST).write_bytes(manifest(hashes))
        with pytest.raises(UserError):
            peftlab.load_adapter(base, folder)
        content[place // 8] ^= 1 << place % 8
    (folder / MODEL).write_bytes(content)
    vouch(folder)
    peftlab.load_adapter(base, folder)


@pytest.mark.parametrize("kind", ["decoder", "seq2seq"])
def test_probes_fit_into_few_positions(kind, tmp_path):
    base = small(kind, max_length=12)
    peftlab.attach(base.model, "other", peftlab.Prompt(tokens=4, layout="peft"))
    peftlab.attach(base.model, "mine", peftlab.Prompt(tokens=3, layout="peft"))
    peftlab.save_adapter(base, "mine", tmp_path / "adapter")
    rows = json.loads((tmp_path / "adapter" / SIDECAR).read_text())["probe"]
    assert max(map(len, rows)) == 12 - 3 - WRITTEN
    assert base.model.active == ("other", "mine")
    again = small(kind, max_length=12)
    peftlab.load_adapter(again, tmp_path / "adapter")
    torch.testing.assert_close(
        probe_output(again.model, "adapter", rows), probe_output(base.model, "mine", rows), rtol=0, atol=1e-5
    )


def test_another_base_is_told_by_its_shape(tmp_path):
    folder = save(small("seq2seq"), "lora", tmp_path / "adapter")
    with pytest.raises(UserError, match=r"its shape is model encoder of 1 layers, .* this one's is model encoder of 2"):
        peftlab.load_adapter(small("seq2seq", layers=2), folder)
    base = small("decoder")
    peftlab.attach(base.model, "mine", peftlab.LoRA(rank=2))
    with pytest.raises(UserError, match=r"can't be saved for stock peft: .* our own format"):
        peftlab.save_adapter(base, "mine", tmp_path / "peft", to="peft")
