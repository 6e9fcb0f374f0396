"""Adapters on disk that are refused: odd values, missing and superfluous tensors, another base, names that are none."""

import json
import shutil
from pathlib import Path

import peft
import pytest
import torch
import transformers
from examples import add
from safetensors.torch import load_file, save_file
from stock import BERT, STOCK, TEXTS, classifier, files

import peftlab
from peftlab.errors import UserError


@pytest.fixture
def saved(base, tmp_path) -> Path:
    add(base.model, "mine", peftlab.LoRA(rank=2), labels=2)
    peftlab.save_adapter(base, "mine", tmp_path / "saved")
    peftlab.detach(base.model, "mine")
    (tmp_path / "saved" / "peftlab-manifest.json").unlink()  # so that what stands behind the hashes is reached
    return tmp_path / "saved"


def change_config(folder: Path, file: str, change) -> None:
    content = json.loads((folder / file).read_text())
    change(content)
    (folder / file).write_text(json.dumps(content))


def change_tensors(folder: Path, change) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


STOCK_DAMAGE = [
    {"lora_alpha": None},
    {"lora_alpha": "8"},
    {"peft_type": []},
    {"modules_to_save": 5},
    {"alpha_pattern": []},
    {"alpha_pattern": {"query": "x"}},
    {"alpha_pattern": {"(a+)+$": 1}},
    {"lora_dropout": 7},
    {"bias": "all"},
    {"r": "8"},
]


@pytest.mark.parametrize("change", STOCK_DAMAGE, ids=str)
def test_odd_values_in_a_stock_adapter_are_told(change, base, minilm, tmp_path):
    peft.get_peft_model(classifier(minilm), STOCK["lora"]).save_pretrained(tmp_path)
    change_config(tmp_path, "adapter_config.json", lambda config: config.update(change))
    if change == {"alpha_pattern": []}:
        peftlab.load_adapter(base, tmp_path, name="mine")  # as good as none
        return
    with pytest.raises(UserError) as caught:
        peftlab.load_adapter(base, tmp_path, name="mine")
    assert "\n" not in str(caught.value)
    assert base.model.adapters == {}


@pytest.mark.parametrize("shape", [(), (5,), (5, 7), (5, 384, 2)])
def test_odd_shapes_in_a_stock_prompt_are_told(shape, base, minilm, tmp_path):
    peft.get_peft_model(classifier(minilm), STOCK["prompt"]).save_pretrained(tmp_path)
    change_tensors(tmp_path, lambda t: t.update({"prompt_embeddings": torch.zeros(shape)}))
    with pytest.raises(UserError):
        peftlab.load_adapter(base, tmp_path, name="mine")
    change_tensors(tmp_path, lambda t: t.update({"prompt_embeddings": torch.zeros(5, 384), "extra": torch.zeros(1)}))
    with pytest.raises(UserError, match="tensor extra belongs to nothing"):
        peftlab.load_adapter(base, tmp_path, name="mine")


HEAD = "base_model.model.classifier.weight"
QUERY = "base_model.model.bert.encoder.layer.0.attention.self.query"


def tensors(change):
    """Damage to the adapter's tensors."""
    return lambda folder: change_tensors(folder, change)


def sidecar(change, file: str = "peftlab.json"):
    """Damage to one of the adapter's JSON files."""
    return lambda folder: change_config(folder, file, change)


DAMAGE = [
    (tensors(lambda t: t.pop(f"{QUERY}.lora_A.weight")), "no tensor for encoder.0.self.q.A"),
    (tensors(lambda t: t.update({f"{QUERY}.lora_C.weight": torch.zeros(1)})), "lora_C.weight belongs to nothing"),
    (tensors(lambda t: t.update({"x": torch.zeros(1)})), "tensor x belongs to nothing"),
    (tensors(lambda t: t.update({f"{QUERY}.lora_A.weight": torch.zeros(3, 384)})), r"q.A in .* has shape \[3, 384\]"),
    (tensors(lambda t: t.update({HEAD: torch.zeros(5, 384)})), r"encoder.head.out.weight in .* has shape \[5, 384\]"),
    (tensors(lambda t: t[f"{QUERY}.lora_A.weight"].add_(0.5)), "gives another output for its probes"),
    (sidecar(lambda c: c["method"].update(rank=0)), "rank is 0"),
    (sidecar(lambda c: c["method"].update(rank=1000)), "rank 1000 is larger than the matrix"),
    (sidecar(lambda c: c["method"].update(rnk=2)), "setting of lora in .* 'rnk': did you mean 'rank'"),
    (sidecar(lambda c: c["method"].update(name="lorra")), "did you mean 'lora'"),
    (sidecar(lambda c: c.pop("base")), "is not an adapter of this version"),
    (sidecar(lambda c: c.pop("probe")), "has no probes"),
    (sidecar(lambda c: c.update(probe=[["x"]])), "has no probes"),
    (sidecar(lambda c: c.update(format=99)), "has format 99: this version reads 1"),
    (sidecar(lambda c: c["method"].update(alpha="x")), "alpha is 'x'"),
    (sidecar(lambda c: c["method"].update(rank=10**9)), "rank is 1000000000"),
    (sidecar(lambda c: c["head"].update(labels=10**9)), "labels is 1000000000"),
    (tensors(lambda t: t[f"{QUERY}.lora_A.weight"].fill_(float("nan"))), "values that are not finite"),
    (sidecar(lambda c: c["base"].update(weights="0" * 64)), "not for .*: its weights is 000000000000"),
    (sidecar(lambda c: c.update(peft_type="LORRA"), "adapter_config.json"), "did you mean 'LORA'"),
    (lambda folder: (folder / "adapter_config.json").write_text("{"), "adapter_config.json is not valid JSON"),
    (lambda folder: (folder / "adapter_model.safetensors").unlink(), "adapter_model.safetensors is missing"),
    (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"half"), "is not a whole safetensors file"),
    (lambda folder: (folder / "peftlab.safetensors").unlink(), "peftlab.safetensors is missing"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE, ids=[message for _, message in DAMAGE])
def test_a_damaged_adapter_is_told_and_nothing_is_attached(damage, message, base, saved):
    state = {key: tensor.clone() for key, tensor in base.model.state_dict().items()}
    damage(saved)
    with pytest.raises(UserError, match=message) as caught:
        peftlab.load_adapter(base, saved, name="mine")
    assert "\n" not in str(caught.value)
    assert (base.model.adapters, base.model.active) == ({}, ())
    assert base.model.state_dict().keys() == state.keys()


MEAN_DAMAGE = [
    (lambda t: t.pop("linear.bias"), "no tensor for encoder.head.out.bias"),
    (lambda t: t.update(x=torch.zeros(1)), "1 tensors that its settings have no place for, as encoder.head.out.x"),
    (lambda t: t.update({"linear.weight": torch.zeros(5, 384)}), r"encoder.head.out.weight in .* shape \[5, 384\]"),
    (lambda t: t["linear.weight"].fill_(float("nan")), "values that are not finite"),
    (lambda t: t["linear.weight"].add_(0.5 * torch.randn(2, 384)), "gives another output for its probes"),
]


@pytest.mark.parametrize(("damage", "message"), MEAN_DAMAGE, ids=[message for _, message in MEAN_DAMAGE])
def test_a_damaged_head_beside_the_adapter_is_told_and_nothing_is_attached(damage, message, base, tmp_path):
    peftlab.attach(base.model, "mine", peftlab.LoRA(rank=2), head=peftlab.Classifier(labels=2, pool="mean"))
    peftlab.save_adapter(base, "mine", tmp_path / "saved")
    peftlab.detach(base.model, "mine")
    (tmp_path / "saved" / "peftlab-manifest.json").unlink()
    file = tmp_path / "saved" / "2_Dense" / "model.safetensors"
    found = load_file(file)
    damage(found)
    save_file(found, file)
    with pytest.raises(UserError, match=message):
        peftlab.load_adapter(base, tmp_path / "saved", name="mine")
    file.unlink()
    with pytest.raises(UserError, match=r"2_Dense/model\.safetensors is missing"):
        peftlab.load_adapter(base, tmp_path / "saved", name="mine")
    assert (base.model.adapters, base.model.active) == ({}, ())


@pytest.mark.parametrize("pool", ["first", "mean"])
def test_one_changed_byte_in_any_file_is_told(pool, base, tmp_path):
    peftlab.attach(base.model, "mine", peftlab.LoRA(rank=2), head=peftlab.Classifier(labels=2, pool=pool))
    peftlab.save_adapter(base, "mine", tmp_path / "saved")
    peftlab.detach(base.model, "mine")
    for path in map((tmp_path / "saved").joinpath, files(tmp_path / "saved")):
        data = path.read_bytes()
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        with pytest.raises(UserError, match=path.name.replace(".", r"\.") if "manifest" not in path.name else "."):
            peftlab.load_adapter(base, tmp_path / "saved", name="mine")
        path.write_bytes(data)
    assert peftlab.load_adapter(base, tmp_path / "saved") == "saved"


def test_an_adapter_of_another_base_is_told(base, saved, tmp_path):
    transformers.BertModel(transformers.BertConfig(**BERT)).save_pretrained(tmp_path / "other")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(base.name) / file, tmp_path / "other")
    other = peftlab.load(tmp_path / "other")
    with pytest.raises(UserError, match=r"its shape is heads 12, layers 6, .* this one's is heads 4, layers 2"):
        peftlab.load_adapter(other, saved, name="mine")
    (saved / "peftlab.json").unlink()  # now it is as stock `peft` would have written it
    with pytest.raises(UserError, match="belongs to nothing that this model has"):
        peftlab.load_adapter(other, saved, name="mine")


@pytest.mark.parametrize("name", ["../x", "a.b", "", "x" * 65, "a/b", "a\0b", " a"])
def test_a_name_that_is_no_name_is_told(name, base, saved):
    with pytest.raises(UserError, match="is no name for an adapter"):
        peftlab.load_adapter(base, saved, name=name)


def test_a_folder_without_an_adapter_is_told(base, tmp_path):
    with pytest.raises(UserError, match=r"adapter_config.json is missing"):
        peftlab.load_adapter(base, tmp_path, name="mine")


def test_saving_while_merged_is_refused(base, saved, tmp_path):
    peftlab.load_adapter(base, saved, name="mine")
    peftlab.merge(base.model, "mine")
    with pytest.raises(UserError, match="mine is merged into the base: unmerge before you save an adapter"):
        peftlab.save_adapter(base, "mine", tmp_path / "no")
    base.save(tmp_path / "merged")  # the way to a merged checkpoint
    merged = transformers.AutoModel.from_pretrained(tmp_path / "merged").eval()
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "merged")(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        here, there = base.model(base.encode(TEXTS)).hidden, merged(**tokens).last_hidden_state
    torch.testing.assert_close(there, here, rtol=0, atol=1e-5)
