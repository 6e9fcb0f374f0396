"""Published checkpoints, in and out, against `transformers`: random small ones of each family, and the real MiniLM."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import peftlab
from peftlab.data.batch import Batch
from peftlab.errors import UserError
from peftlab.models.pretrained import load_checkpoint, save_checkpoint

COMMON = {"vocab_size": 60, "max_position_embeddings": 20, "pad_token_id": 0}
BERT = COMMON | {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 36}
FAMILIES = {
    "bert": (transformers.BertModel, transformers.BertConfig(**BERT)),
    "bert-relu": (transformers.BertModel, transformers.BertConfig(**BERT, hidden_act="relu", layer_norm_eps=1e-5)),
    "roberta": (
        transformers.RobertaModel,
        transformers.RobertaConfig(**{**BERT, "pad_token_id": 1}, type_vocab_size=1),
    ),
    "electra": (transformers.ElectraModel, transformers.ElectraConfig(**BERT, embedding_size=24)),
    "electra-narrow": (transformers.ElectraModel, transformers.ElectraConfig(**BERT, embedding_size=16)),
    "distilbert": (
        transformers.DistilBertModel,
        transformers.DistilBertConfig(**COMMON, dim=24, n_layers=3, n_heads=4, hidden_dim=36),
    ),
}


@pytest.fixture(params=FAMILIES)
def reference(request, tmp_path):
    """A random model of the family, saved as `transformers` does."""
    kind, config = FAMILIES[request.param]
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)  # norms and biases too, so that a mix-up shows
    model.save_pretrained(tmp_path / "reference")
    return model, tmp_path / "reference"


def random_batch(config, pairs: bool) -> Batch:
    pad = config.pad_token_id
    ids, mask = torch.randint(2, 60, (4, 11)), torch.ones(4, 11, dtype=torch.bool)
    for row, length in enumerate((11, 7, 4, 1)):
        ids[row, length:], mask[row, length:] = pad, False
    segments = (torch.arange(11) > 3).long().expand(4, 11) * mask if pairs else None
    return Batch(ids, mask, segments)


@pytest.mark.parametrize("pairs", [False, True])
def test_hidden_states_equal_those_of_transformers(reference, pairs):
    model, folder = reference
    ours, family, _ = load_checkpoint(folder)
    segmented = getattr(model.config, "type_vocab_size", 0) > 1
    batch = random_batch(model.config, pairs and segmented)
    extra = {} if batch.segments is None else {"token_type_ids": batch.segments}
    with torch.no_grad():
        expected = model(input_ids=batch.ids, attention_mask=batch.mask.long(), **extra)
        out = ours(batch)
    torch.testing.assert_close(out.hidden, expected.last_hidden_state, rtol=0, atol=1e-5)
    if family in ("bert", "roberta"):
        torch.testing.assert_close(out.pooled, expected.pooler_output, rtol=0, atol=1e-5)
    else:
        assert out.pooled is None


def test_round_trip_is_bit_equal(reference, tmp_path):
    model, folder = reference
    save_checkpoint(*load_checkpoint(folder), tmp_path / "written")
    again = transformers.AutoModel.from_pretrained(tmp_path / "written")
    assert type(again) is type(model)
    expected = model.state_dict()
    assert again.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in again.state_dict().items())
    kept = ("vocab_size", "hidden_size", "max_position_embeddings", "pad_token_id", "intermediate_size")
    assert all(getattr(again.config, key, 0) == getattr(model.config, key, 0) for key in kept)


def test_shards_are_read(reference, tmp_path):
    model, _ = reference
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    ours, family, settings = load_checkpoint(tmp_path / "shards")
    save_checkpoint(ours, family, settings, tmp_path / "whole")
    whole, expected = load_file(tmp_path / "whole" / "model.safetensors"), model.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in whole.items())


@pytest.mark.parametrize(
    "kind",
    [transformers.BertForTokenClassification, transformers.BertForSequenceClassification],
    ids=lambda kind: kind.__name__,
)
def test_the_base_of_a_checkpoint_with_a_head_is_read_and_the_head_is_told(kind, tmp_path):
    model = kind(transformers.BertConfig(**BERT)).eval()
    model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="are not the base's and are left aside, as classifier"):
        ours, _, _ = load_checkpoint(tmp_path)
    batch = random_batch(model.config, True)
    expected = model.bert(input_ids=batch.ids, attention_mask=batch.mask.long(), token_type_ids=batch.segments)
    torch.testing.assert_close(ours(batch).hidden, expected.last_hidden_state, rtol=0, atol=1e-5)
    assert ours.config.pooler == (kind is transformers.BertForSequenceClassification)


def test_the_first_spelling_of_norms_is_read(tmp_path):
    model = transformers.BertModel(transformers.BertConfig(**BERT))
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(path).items()
    }
    assert any("gamma" in name for name in old)
    save_file(old, path)
    ours, _, _ = load_checkpoint(tmp_path)
    assert torch.equal(ours.embedding.norm.weight, model.embeddings.LayerNorm.weight)


SENTENCES = [
    "The film is a triumph of small gestures.",
    "No.",
    "Although the plot, such as it is, wanders off into the desert for an hour, both leads are never less than good.",
    "naïve café 电影 🙂",
]


def test_the_real_weights_equal_transformers_on_real_sentences(minilm):
    base = peftlab.load(minilm)
    model = transformers.AutoModel.from_pretrained(minilm).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    for texts in (SENTENCES, [(a, b) for a in SENTENCES[:2] for b in SENTENCES[2:]]):
        inputs = tokenizer(texts, padding=True, return_tensors="pt")
        batch = base.encode(texts)
        assert torch.equal(batch.ids, inputs["input_ids"])
        with torch.no_grad():
            expected, out = model(**inputs), base.model(batch)
        torch.testing.assert_close(out.hidden, expected.last_hidden_state, rtol=0, atol=1e-5)
        torch.testing.assert_close(out.pooled, expected.pooler_output, rtol=0, atol=1e-5)


def test_the_real_weights_survive_a_round_trip(minilm, tmp_path):
    base = peftlab.load(minilm)
    base.save(tmp_path / "saved")
    expected = transformers.AutoModel.from_pretrained(minilm).state_dict()
    again = transformers.AutoModel.from_pretrained(tmp_path / "saved").state_dict()
    assert again.keys() == expected.keys()
    assert all(torch.equal(again[name], expected[name]) for name in expected)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs(SENTENCES)["input_ids"] == transformers.AutoTokenizer.from_pretrained(minilm)(SENTENCES)["input_ids"]
    reloaded = peftlab.load(tmp_path / "saved")
    with torch.no_grad():
        batch = base.encode(SENTENCES)
        assert torch.equal(reloaded.model(batch).hidden, base.model(batch).hidden)


# — the user's mistakes —


@pytest.fixture
def small(tmp_path) -> Path:
    transformers.BertModel(transformers.BertConfig(**BERT)).save_pretrained(tmp_path / "small")
    return tmp_path / "small"


def edit(folder: Path, **changes) -> None:
    path = folder / "config.json"
    settings = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in settings.items() if value != "gone"}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "berta"}, "unknown architecture in .*config.json .* 'berta': did you mean 'bert'"),
        ({"model_type": "gone"}, "unknown architecture"),
        ({"hidden_size": "gone"}, "has no 'hidden_size'"),
        ({"hidden_size": "wide"}, "hidden_size in .* is 'wide'"),
        ({"hidden_size": -24}, "hidden_size in .* is -24"),
        ({"hidden_size": float("nan")}, "hidden_size in .* is nan"),
        ({"model_type": []}, "unknown architecture"),
        ({"hidden_size": 10**12}, "hidden_size in .* is 1000000000000"),
        ({"hidden_size": 48}, r"has shape \[60, 24\], its config.json asks for \[60, 48\]"),
        ({"num_hidden_layers": 2}, "16 tensors that its config.json has no place for, as encoder.layer.2"),
        ({"num_hidden_layers": 4}, "has no tensor encoder.layer.3"),
        ({"num_hidden_layers": 10**7}, "says 10000000 layers"),
        ({"num_attention_heads": 5}, "5 heads do not divide a width of 24"),
        ({"intermediate_size": 40}, r"asks for \[40, 24\]"),
        ({"hidden_act": "gelo"}, "unknown activation 'gelo': did you mean 'gelu'"),
        (
            {"position_embedding_type": "relative_key"},
            "position_embedding_type in .* is 'relative_key': this model has it only as 'absolute'",
        ),
    ],
)
def test_a_config_that_does_not_fit_is_told(small, changes, message):
    edit(small, **changes)
    with pytest.raises(UserError, match=message):
        load_checkpoint(small)


def test_a_missing_or_broken_config_is_told(small):
    (small / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config.json is not valid JSON"):
        load_checkpoint(small)
    (small / "config.json").write_text("[]")
    with pytest.raises(UserError, match=r"config.json holds a list"):
        load_checkpoint(small)
    (small / "config.json").unlink()
    with pytest.raises(UserError, match=r"config.json is missing"):
        load_checkpoint(small)


@pytest.mark.parametrize("keep", [0, 5, 100, 0.5, 0.999])
def test_a_truncated_file_is_told(small, keep):
    path = small / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(keep if keep >= 1 else keep * len(data))])
    with pytest.raises(UserError, match=r"model.safetensors is not a whole safetensors file"):
        load_checkpoint(small)


def test_one_changed_bit_in_what_we_saved_is_told(minilm, tmp_path):
    peftlab.load(minilm).save(tmp_path)
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(50_000_000)
        byte = file.read(1)[0]
        file.seek(50_000_000)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(UserError, match=r"model.safetensors does not match its SHA-256"):
        peftlab.load(tmp_path)


def test_a_pickle_is_refused_with_what_to_do(small):
    (small / "model.safetensors").rename(small / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model.bin is a pickle.*save_pretrained"):
        load_checkpoint(small)


def test_a_missing_file_or_shard_is_told(small, tmp_path):
    (small / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model.safetensors is missing"):
        load_checkpoint(small)
    index = small / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    with pytest.raises(UserError, match=r"model-1.safetensors is missing"):
        load_checkpoint(small)
    index.write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    with pytest.raises(UserError, match=r"a shard is a .safetensors file beside it"):
        load_checkpoint(small)
    index.write_text("{}")
    with pytest.raises(UserError, match="has no weight_map"):
        load_checkpoint(small)


def test_integer_weights_are_refused(small):
    path = small / "model.safetensors"
    tensors = load_file(path)
    tensors["embeddings.LayerNorm.bias"] = torch.zeros(24, dtype=torch.int32)
    save_file(tensors, path)
    with pytest.raises(UserError, match=r"LayerNorm.bias .* is torch.int32"):
        load_checkpoint(small)


def test_a_failed_save_leaves_the_old_files(small, monkeypatch):
    ours = load_checkpoint(small)
    before = (small / "model.safetensors").read_bytes()

    def full(tensors, path, metadata):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("peftlab.data.tensors.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(*ours, small)
    assert (small / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in small.iterdir()) == ["config.json", "model.safetensors"]


def test_half_precision_files_are_read_as_fp32(small, tmp_path):
    expected = load_file(small / "model.safetensors")
    shutil.copytree(small, tmp_path / "half")
    save_file({name: tensor.bfloat16() for name, tensor in expected.items()}, tmp_path / "half" / "model.safetensors")
    ours, _, _ = load_checkpoint(tmp_path / "half")
    assert torch.equal(ours.embedding.words.weight, expected["embeddings.word_embeddings.weight"].bfloat16().float())
