"""Heads on disk: each kind comes back as itself, one without a kind is a classifier, and another is told."""

import json

import pytest
import torch
from examples import vouch
from safetensors.torch import load_file, save_file
from small import write_base

import peftlab
from peftlab.data.files import write_manifest
from peftlab.errors import UserError
from peftlab.models.heads import Classifier
from peftlab.models.parser import Parser
from peftlab.models.tagger import Tagger

HEADS = [
    Classifier(labels=("x", "y"), pool="mean"),
    Tagger(labels=("x", "y")),
    Parser(labels=("x", "y"), arc=4, label=3),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory, minilm):
    return peftlab.load(write_base(tmp_path_factory.mktemp("base"), minilm))


def saved(base, head, folder):
    peftlab.attach(base.model, "mine", peftlab.LoRA(rank=2), head=head)
    for parameter in base.model.additions("mine")[base.model.head_address].parameters():
        torch.nn.init.normal_(parameter)
    with torch.no_grad():
        scores = base.model(base.encode(["a sentence of words"])).scores
    peftlab.save_adapter(base, "mine", folder)
    peftlab.detach(base.model, "mine")
    return scores


def edited(folder, change):
    """The sidecar with other settings of the head, as if it had been written so."""
    path = folder / "peftlab.json"
    content = json.loads(path.read_text())
    change(content["head"])
    path.write_text(json.dumps(content))
    files = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    write_manifest(folder, [file for file in files if "manifest" not in file])


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.kind)
def test_a_head_comes_back_as_itself(base, head, tmp_path):
    scores = saved(base, head, tmp_path)
    name = peftlab.load_adapter(base, tmp_path, "again")
    assert base.model.adapters[name].head == head
    with torch.no_grad():
        torch.testing.assert_close(base.model(base.encode(["a sentence of words"])).scores, scores)
    peftlab.detach(base.model, name)


@pytest.mark.parametrize("head", HEADS[1:], ids=lambda head: head.kind)
def test_every_tensor_of_a_head_is_replayed(base, head, tmp_path):
    saved(base, head, tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    tensors = load_file(file)
    for name in (name for name in tensors if ".head." in name):
        save_file(tensors | {name: tensors[name] + torch.randn_like(tensors[name])}, file, metadata={"format": "pt"})
        vouch(tmp_path)
        with pytest.raises(UserError, match="gives another output for its probes"):
            peftlab.load_adapter(base, tmp_path, "other")


def test_a_head_without_a_kind_is_a_classifier(base, tmp_path):
    saved(base, HEADS[0], tmp_path)
    edited(tmp_path, lambda head: head.pop("kind"))
    name = peftlab.load_adapter(base, tmp_path, "old")
    assert base.model.adapters[name].head == HEADS[0]
    peftlab.detach(base.model, name)


def test_an_unknown_kind_is_told(base, tmp_path):
    saved(base, HEADS[1], tmp_path)
    edited(tmp_path, lambda head: head.update(kind="tager"))
    with pytest.raises(UserError, match=r"unknown kind of head in .*peftlab.json 'tager': did you mean 'tagger'"):
        peftlab.load_adapter(base, tmp_path, "odd")


@pytest.mark.parametrize("head", HEADS[1:], ids=lambda head: head.kind)
def test_a_checkpoint_of_transformers_has_no_place_for_it(base, head, tmp_path):
    peftlab.attach(base.model, "mine", peftlab.LoRA(rank=2), head=head)
    with pytest.raises(UserError, match=f"has a {head.kind}'s head: transformers' checkpoints have a classifier's"):
        base.save(tmp_path / "out", head="mine")
    peftlab.detach(base.model, "mine")
