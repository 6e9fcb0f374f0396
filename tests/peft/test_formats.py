"""Adapters on disk: to and from stock `peft` on real weights, and our own files byte for byte."""

import json
import shutil
from pathlib import Path

import peft
import pytest
import torch
import transformers
from examples import METHODS, add, shake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from stock import BERT, PAIRS, SEQ_CLS, SMALL, STOCK, TEXTS, classifier, files, inputs

import peftlab
from peftlab.errors import UserError


@pytest.fixture(scope="module")
def whole(minilm):
    """One base for all draws of a property."""
    return peftlab.load(minilm)


@pytest.mark.parametrize("name", STOCK)
def test_what_stock_peft_writes_gives_the_same_logits_here_and_back_there(name, base, minilm, tmp_path):
    model = peft.get_peft_model(classifier(minilm), STOCK[name]).eval()
    shake([p for p in model.parameters() if p.requires_grad], 0.05)
    model.save_pretrained(tmp_path / "stock")
    peftlab.load_adapter(base, tmp_path / "stock", name="mine")
    peftlab.save_adapter(base, "mine", tmp_path / "ours", to="peft")
    again = peft.PeftModel.from_pretrained(classifier(minilm), tmp_path / "ours").eval()
    for texts in (TEXTS, PAIRS):
        with torch.no_grad():
            expected = model(**inputs(minilm, texts)).logits
            there = again(**inputs(minilm, texts)).logits
            here = base.model(base.encode(texts)).logits
        torch.testing.assert_close(here, expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(there, expected, rtol=0, atol=1e-4)
        assert expected.std() > 1e-3
    peftlab.detach(base.model, "mine")
    peftlab.load_adapter(base, tmp_path / "ours", name="again")
    torch.testing.assert_close(base.model(base.encode(PAIRS)).logits, expected, rtol=0, atol=1e-4)


OURS = {
    "lora": peftlab.LoRA(rank=4, targets="all", rank_pattern={"q": 2, "encoder.3.ff.up": 6}, alpha_pattern={"v": 5}),
    "lora-top": peftlab.LoRA(rank=2, rs=True, layers=(4, 5), targets=("q", "o")),
    "dora": peftlab.LoRA(rank=3, dora=True),
    "prompt": peftlab.Prompt(tokens=4, layout="peft"),
    "p-tuning-lstm": peftlab.PTuning(tokens=4, encoder="lstm", hidden=16, layout="peft"),
    "p-tuning-mlp": peftlab.PTuning(tokens=4, layout="peft"),
    "prefix": peftlab.Prefix(length=4, layout="peft"),
    "prefix-shared": peftlab.Prefix(length=4, mlp=8, shared=True, layout="peft"),
}


@pytest.mark.parametrize("name", OURS)
def test_what_we_write_gives_the_same_logits_in_stock_peft(name, base, minilm, tmp_path):
    peftlab.attach(base.model, "mine", OURS[name], head=peftlab.Classifier(labels=("no", "maybe", "yes")))
    for addition in base.model.additions("mine").values():
        shake(addition.parameters(), 0.05)
    peftlab.save_adapter(base, "mine", tmp_path / "adapter", to="peft")
    model = peft.PeftModel.from_pretrained(classifier(minilm), tmp_path / "adapter").eval()
    for texts in (TEXTS, PAIRS):
        with torch.no_grad():
            there = model(**inputs(minilm, texts)).logits
            here = base.model(base.encode(texts)).logits
        torch.testing.assert_close(there, here, rtol=0, atol=1e-4)


FAMILIES = {
    "roberta": transformers.RobertaConfig(**{**BERT, "pad_token_id": 1}, type_vocab_size=1),
    "electra": transformers.ElectraConfig(**BERT, embedding_size=24),
    "distilbert": transformers.DistilBertConfig(**SMALL, dim=24, n_layers=2, n_heads=4, hidden_dim=36),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["lora", "prompt", "prefix"])
def test_heads_of_the_other_families(family, kind, tmp_path, minilm):
    if (family, kind) == ("distilbert", "prefix"):
        pytest.skip(f"stock peft has no prefix on {family}")
    config = FAMILIES[family]
    config.num_labels = 3
    plain = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    shake(plain.parameters(), 0.2)
    plain.save_pretrained(tmp_path / "classifier")
    plain.base_model.save_pretrained(tmp_path / "base")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm / file, tmp_path / "base")
    targets = ["q_lin", "lin2"] if family == "distilbert" else ["query", "output.dense"]
    shape = {"num_virtual_tokens": 3, "token_dim": 24, "num_layers": 2, "num_attention_heads": 4}
    stock = {
        "lora": peft.LoraConfig(**SEQ_CLS, r=2, target_modules=targets, init_lora_weights=False),
        "prompt": peft.PromptTuningConfig(**SEQ_CLS, **shape),
        "prefix": peft.PrefixTuningConfig(**SEQ_CLS, **shape),
    }[kind]
    model = peft.get_peft_model(plain, stock).eval()
    shake([p for p in model.parameters() if p.requires_grad], 0.1)
    model.save_pretrained(tmp_path / "stock")
    base = peftlab.load(tmp_path / "base")
    peftlab.load_adapter(base, tmp_path / "stock", name="mine")
    ids, mask = torch.randint(2, 60, (3, 9)), torch.ones(3, 9, dtype=torch.bool)
    mask[1, 5:] = False
    ids[~mask] = config.pad_token_id
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask.long()).logits
        here = base.model(peftlab.Batch(ids, mask)).logits
    torch.testing.assert_close(here, expected, rtol=0, atol=1e-4)
    peftlab.save_adapter(base, "mine", tmp_path / "ours", to="peft")
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "classifier")
    again = peft.PeftModel.from_pretrained(plain, tmp_path / "ours").eval()
    with torch.no_grad():
        there = again(input_ids=ids, attention_mask=mask.long()).logits
    torch.testing.assert_close(there, expected, rtol=0, atol=1e-4)


def small_base(config, folder: Path, minilm: Path) -> None:
    """A random base of a family, with the words of MiniLM."""
    plain = transformers.AutoModel.from_config(config)
    shake(plain.parameters(), 0.2)
    plain.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm / file, folder)


MEAN = [
    ("bert", peftlab.LoRA(rank=2, targets="all", rs=True)),
    ("bert", peftlab.LoRA(rank=2, dora=True)),
    ("electra", peftlab.LoRA(rank=2)),
    ("distilbert", peftlab.LoRA(rank=2)),
    ("distilbert", peftlab.Prompt(tokens=3, layout="peft")),
    ("roberta", peftlab.LoRA(rank=2)),
    ("roberta", peftlab.PTuning(tokens=3, encoder="lstm", hidden=8, layout="peft")),
    ("roberta", peftlab.Prefix(length=3, layout="peft")),
]


@pytest.mark.parametrize(("family", "method"), MEAN, ids=[f"{family}-{method.name}" for family, method in MEAN])
def test_a_head_that_pools_the_mean_stands_beside_an_adapter_of_stock_peft(family, method, tmp_path, minilm):
    small_base((FAMILIES | {"bert": transformers.BertConfig(**BERT)})[family], tmp_path / "base", minilm)
    base, head = peftlab.load(tmp_path / "base"), peftlab.Classifier(labels=("no", "so", "yes"), pool="mean")
    peftlab.attach(base.model, "mine", method, head=head)
    for addition in base.model.additions("mine").values():
        shake(addition.parameters(), 0.1)
    peftlab.save_adapter(base, "mine", tmp_path / "adapter")  # of its own accord: stock has a place for it
    stock = peft.PeftModel.from_pretrained(
        transformers.AutoModel.from_pretrained(tmp_path / "base"), tmp_path / "adapter"
    )
    batch = base.encode(PAIRS if base.config.segments > 1 else TEXTS)
    segments = {} if batch.segments is None else {"token_type_ids": batch.segments}
    with torch.no_grad():
        states = stock.eval()(input_ids=batch.ids, attention_mask=batch.mask.long(), **segments).last_hidden_state
        here = base.model(batch).logits
    real = batch.mask[..., None]
    there = (states[:, -real.shape[1] :] * real).sum(1) / real.sum(1)  # without virtual tokens
    for folder in sorted((tmp_path / "adapter").glob("*_Dense")):
        linear, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
        activation = getattr(torch.nn, config["activation_function"].rpartition(".")[2])()
        there = activation(there @ linear["linear.weight"].T + linear["linear.bias"])
    torch.testing.assert_close(there, here, rtol=0, atol=1e-4)
    peftlab.detach(base.model, "mine")
    peftlab.load_adapter(base, tmp_path / "adapter", name="mine")
    assert base.model.adapters["mine"].head == head
    with torch.no_grad():
        assert torch.equal(base.model(batch).logits, here)


@pytest.mark.parametrize(
    "targets", ["all-linear", ["dense"], ["layer.0.attention.self.query", "layer.1.attention.self.value"]]
)
def test_stock_targets_outside_the_blocks_and_by_layer(targets, base, minilm, tmp_path):
    config = peft.LoraConfig(**SEQ_CLS, r=2, target_modules=targets, init_lora_weights=False)
    model = peft.get_peft_model(classifier(minilm), config).eval()
    model.save_pretrained(tmp_path / "stock")
    peftlab.load_adapter(base, tmp_path / "stock", name="mine")
    with torch.no_grad():
        expected, here = model(**inputs(minilm, TEXTS)).logits, base.model(base.encode(TEXTS)).logits
    torch.testing.assert_close(here, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["lora", "dora"])
def test_without_a_head_both_ways(name, base, minilm, tmp_path):
    config = peft.LoraConfig(task_type="FEATURE_EXTRACTION", r=3, target_modules=["query"], use_dora=name == "dora")
    config.init_lora_weights = False
    model = peft.get_peft_model(transformers.AutoModel.from_pretrained(minilm), config).eval()
    model.save_pretrained(tmp_path / "stock")
    peftlab.load_adapter(base, tmp_path / "stock", name="mine")
    peftlab.save_adapter(base, "mine", tmp_path / "ours", to="peft")
    again = peft.PeftModel.from_pretrained(transformers.AutoModel.from_pretrained(minilm), tmp_path / "ours").eval()
    with torch.no_grad():
        expected = model(**inputs(minilm, TEXTS)).last_hidden_state
        there = again(**inputs(minilm, TEXTS)).last_hidden_state
        here = base.model(base.encode(TEXTS)).hidden
    torch.testing.assert_close(here, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(there, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_a_start_that_changes_the_base_is_refused(start, base, minilm, tmp_path):
    config = peft.LoraConfig(**SEQ_CLS, r=2, target_modules=["query"], init_lora_weights=start)
    peft.get_peft_model(classifier(minilm), config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"init_lora_weights is '{start}', which changes the base itself"):
        peftlab.load_adapter(base, tmp_path, name="mine")


def test_a_base_without_a_pooler_is_not_exported_with_a_classifier(tmp_path, minilm):
    transformers.BertModel(
        transformers.BertConfig(**BERT | {"vocab_size": 30522}), add_pooling_layer=False
    ).save_pretrained(tmp_path / "b")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm / file, tmp_path / "b")
    base = peftlab.load(tmp_path / "b")
    add(base.model, "mine", peftlab.LoRA(rank=2), labels=2)
    with pytest.raises(UserError, match="this base has no pooler"):
        peftlab.save_adapter(base, "mine", tmp_path / "no", to="peft")
    peftlab.save_adapter(base, "mine", tmp_path / "ours")
    peftlab.detach(base.model, "mine")
    peftlab.load_adapter(base, tmp_path / "ours", name="mine")


@pytest.mark.parametrize("name", ["p-tuning-lstm", "p-tuning-mlp", "prefix-mlp", "prefix-shared"])
def test_what_is_folded_is_saved_and_loaded(name, base, tmp_path):
    add(base.model, "mine", METHODS[name], labels=2)
    peftlab.fold(base.model, "mine")
    peftlab.save_adapter(base, "mine", tmp_path / "folded")
    before = base.model(base.encode(TEXTS)).logits
    peftlab.detach(base.model, "mine")
    peftlab.load_adapter(base, tmp_path / "folded", name="mine")
    assert torch.equal(base.model(base.encode(TEXTS)).logits, before)


def test_a_failed_save_leaves_the_adapter_that_was_there(base, tmp_path, monkeypatch):
    add(base.model, "mine", peftlab.LoRA(rank=2), labels=2)
    peftlab.save_adapter(base, "mine", tmp_path / "saved")
    before = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    monkeypatch.setattr("peftlab.peft.formats.probe_output", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        peftlab.save_adapter(base, "mine", tmp_path / "saved")
    assert {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()} == before


def test_a_text_is_cut_where_virtual_tokens_need_positions(base):
    add(base.model, "mine", peftlab.Prompt(tokens=20, layout="peft"))
    batch = base.encode(["word " * 600], truncate=True)
    assert batch.ids.shape[1] == 512 - 20
    base.model(batch)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.one_of(
        st.builds(
            peftlab.LoRA,
            rank=st.integers(1, 8),
            alpha=st.integers(1, 40),
            targets=st.lists(st.sampled_from(["q", "k", "v", "o", "up", "down"]), min_size=1, unique=True).map(tuple),
            layers=st.none() | st.lists(st.integers(0, 5), min_size=1, unique=True).map(tuple),
            rs=st.booleans(),
            dora=st.booleans(),
        ),
        st.builds(
            peftlab.Adapter, placement=st.sampled_from(["houlsby", "pfeiffer", "parallel"]), width=st.integers(1, 9)
        ),
        st.builds(peftlab.Prefix, length=st.integers(1, 5), layout=st.sampled_from(["native", "peft"])),
    ),
    labels=st.none() | st.integers(1, 4),
)
def test_save_load_save_is_byte_equal_whatever_the_settings(whole, tmp_path_factory, method, labels):
    folder = tmp_path_factory.mktemp("property")
    add(whole.model, "mine", method, labels=labels)
    peftlab.save_adapter(whole, "mine", folder / "a")
    peftlab.detach(whole.model, "mine")
    peftlab.load_adapter(whole, folder / "a", name="other")
    peftlab.save_adapter(whole, "other", folder / "b")
    peftlab.detach(whole.model, "other")
    for path in (folder / "a").iterdir():
        assert path.read_bytes() == (folder / "b" / path.name).read_bytes()


@pytest.mark.parametrize("pool", ["first", "mean"])
@pytest.mark.parametrize("name", METHODS)
def test_save_load_save_is_byte_equal_and_gives_the_same_output(name, pool, base, tmp_path):
    peftlab.attach(base.model, "mine", METHODS[name], head=peftlab.Classifier(labels=2, pool=pool))
    for addition in base.model.additions("mine").values():
        shake(addition.parameters())
    peftlab.save_adapter(base, "mine", tmp_path / "first")
    batch = base.encode(TEXTS)
    before = base.model(batch).logits
    peftlab.detach(base.model, "mine")
    peftlab.load_adapter(base, tmp_path / "first", name="other")
    assert torch.equal(base.model(batch).logits, before)
    assert base.model.adapters["other"].method == METHODS[name]
    peftlab.save_adapter(base, "other", tmp_path / "second")
    first, second = (files(tmp_path / folder) for folder in ("first", "second"))
    assert list(first) == list(second)
    for file, content in first.items():
        assert second[file] == content, file
    assert ("2_Dense/model.safetensors" in first) == (pool == "mean" and METHODS[name].stock_type == "LORA")


def test_an_encoder_is_kept_so_that_training_can_go_on(base, tmp_path):
    add(base.model, "mine", peftlab.PTuning(tokens=3, encoder="lstm", hidden=8, layout="peft"))
    kept = {key: t.clone() for key, t in base.model.additions("mine")["encoder.embedding.tokens"].named_parameters()}
    peftlab.save_adapter(base, "mine", tmp_path, to="peft")
    peftlab.detach(base.model, "mine")
    peftlab.load_adapter(base, tmp_path, name="mine")
    back = dict(base.model.additions("mine")["encoder.embedding.tokens"].named_parameters())
    assert back.keys() == kept.keys()
    assert all(torch.equal(back[key], kept[key]) for key in kept)


@pytest.mark.parametrize("name", ["prompt", "p-tuning-lstm", "prefix"])
def test_a_native_layout_is_not_exported_as_if_it_were_stock_s(name, base, minilm, tmp_path):
    add(base.model, "mine", METHODS[name], labels=3)
    with pytest.raises(UserError, match='train with layout = "peft"'):
        peftlab.save_adapter(base, "mine", tmp_path / "no", to="peft")
    assert not (tmp_path / "no").exists()
    peftlab.save_adapter(base, "mine", tmp_path / "ours")
    with pytest.raises(Exception, match="PEFTLAB"):
        peft.PeftModel.from_pretrained(classifier(minilm), tmp_path / "ours")


@pytest.mark.parametrize(
    ("method", "head", "message"),
    [
        (peftlab.Adapter(), None, "stock peft has no adapter"),
        (peftlab.BitFit(), None, "stock peft has no bitfit"),
        (peftlab.Prompt(layout="peft"), peftlab.Classifier(labels=2, pool="mean"), 'train with pool = "first"'),
        (peftlab.Full(), None, "it trains the base itself: save the base with its head instead"),
    ],
)
def test_what_stock_peft_has_no_place_for_is_told(method, head, message, base, tmp_path):
    peftlab.attach(base.model, "mine", method, head=head)
    with pytest.raises(UserError, match=message):
        peftlab.save_adapter(base, "mine", tmp_path / "no", to="peft")
    assert not (tmp_path / "no").exists()
