"""Published checkpoints, in and out, against `transformers`: random small ones of each family, and the real MiniLM."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import peftlab
from peftlab.data.batch import Batch
from peftlab.errors import UserError
from peftlab.models.base import base_fingerprint
from peftlab.models.pretrained import load_checkpoint, save_checkpoint

BERT = {"vocab_size": 60, "max_position_embeddings": 20, "pad_token_id": 0, "hidden_size": 24}
BERT |= {"num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 36}
FAMILIES = {
    "bert": (transformers.BertModel, transformers.BertConfig),
    "roberta": (transformers.RobertaModel, transformers.RobertaConfig),
    "electra": (transformers.ElectraModel, transformers.ElectraConfig),
    "distilbert": (transformers.DistilBertModel, transformers.DistilBertConfig),
}
DISTILBERT_CALLS = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
}


def draw(family: str, number: int) -> Any:
    """One of the small configurations of a family, at random but the same in each run."""
    chance = random.Random(f"{family} {number}")
    heads = chance.randint(1, 5)
    width = heads * chance.choice([6, 8, 10])
    settings: dict[str, Any] = {
        "vocab_size": chance.randint(40, 80),
        "max_position_embeddings": chance.randint(16, 24),
        "pad_token_id": chance.randint(0, 3),
        "hidden_size": width,
        "num_hidden_layers": chance.randint(2, 4),
        "num_attention_heads": heads,
        "intermediate_size": chance.randint(width // 2, 3 * width),
        "hidden_act": chance.choice(["gelu", "relu", "silu", "gelu_new"]),
    }
    if family == "distilbert":
        settings = {DISTILBERT_CALLS.get(key, key): value for key, value in settings.items()}
    else:
        segments = [1, 2] if family == "roberta" else [2, 3]
        settings |= {"type_vocab_size": chance.choice(segments), "layer_norm_eps": chance.choice([1e-12, 1e-7, 1e-5])}
    if family == "electra":
        settings["embedding_size"] = width // 2 if number else width  # with its projection and without
    return FAMILIES[family][1](**settings)


DRAWN = {f"{family}-{number}": draw(family, number) for family in FAMILIES for number in range(3)}
PAIRED = [name for name, config in DRAWN.items() if getattr(config, "type_vocab_size", 0) > 1]


@pytest.fixture(params=DRAWN)
def reference(request, tmp_path):
    """A random model of a drawn configuration, saved as `transformers` does."""
    config = DRAWN[request.param]
    model = FAMILIES[config.model_type][0](config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)  # norms and biases too, so that a mix-up shows
    model.save_pretrained(tmp_path / "reference")
    return model, tmp_path / "reference"


def random_batch(config, pairs: bool) -> Batch:
    ids, mask = torch.randint(4, config.vocab_size, (4, 11)), torch.ones(4, 11, dtype=torch.bool)
    for row, length in enumerate((11, 7, 4, 1)):
        ids[row, length:], mask[row, length:] = config.pad_token_id, False
    segments = (torch.arange(11) > 3) * (config.type_vocab_size - 1) * mask if pairs else None
    return Batch(ids, mask, segments)


@pytest.mark.parametrize(
    ("reference", "pairs"),
    [*((name, False) for name in DRAWN), *((name, True) for name in PAIRED)],
    indirect=["reference"],
)
def test_hidden_states_equal_those_of_transformers(reference, pairs):
    model, folder = reference
    ours, family, _ = load_checkpoint(folder)
    batch = random_batch(model.config, pairs)
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
    renamed = DISTILBERT_CALLS if model.config.model_type == "distilbert" else {}
    kept = {renamed.get(key, key) for key in (*BERT, "hidden_act")}
    kept |= {key for key in ("type_vocab_size", "layer_norm_eps", "embedding_size") if hasattr(model.config, key)}
    assert {key: getattr(again.config, key) for key in kept} == {key: getattr(model.config, key) for key in kept}


def test_shards_are_read(reference, tmp_path):
    model, _ = reference
    model.save_pretrained(tmp_path / "shards", max_shard_size="4KB")
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
        ({"num_attention_heads": 5}, "small/config.json: 5 heads do not divide a width of 24"),
        ({"hidden_dropout_prob": 1.0}, "small/config.json: dropout is 1.0: it must be .* at least 0 and below 1"),
        ({"intermediate_size": 40}, r"asks for \[40, 24\]"),
        ({"hidden_act": "gelo"}, "small/config.json: unknown activation 'gelo': did you mean 'gelu'"),
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


def test_the_fingerprint_tells_every_file_that_a_base_is_read_from(small):
    seen = {base_fingerprint(small)}
    for name in ("config.json", "model.safetensors"):
        with (small / name).open("a") as file:
            file.write(" ")
        seen.add(base_fingerprint(small))
    reader = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json"]
    reader += ["merges.txt", "preprocessor_config.json"]
    for name in reader:
        for text in ("{}", "{ }"):
            (small / name).write_text(text)
            seen.add(base_fingerprint(small))
    assert len(seen) == 1 + 2 + 2 * len(reader)
    (small / "README.md").write_text("what no one reads")
    assert base_fingerprint(small) in seen
