"""Adapters on disk: to and from stock `peft` on real weights, our own files byte for byte, and what is refused."""

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
from safetensors.torch import load_file, save_file

import peftlab
from peftlab.errors import UserError

TEXTS = ["a good film", "no, it is not a good film at all, not even for a rainy afternoon", "x"]
PAIRS = [("a man eats", "someone is eating"), ("a man eats in the garden of his house", "no"), ("x", "y z")]
SEQ_CLS = {"task_type": "SEQ_CLS"}
STOCK = {
    "lora": peft.LoraConfig(**SEQ_CLS, r=4, lora_alpha=8, target_modules=["query", "value"], init_lora_weights=False),
    "lora-pattern": peft.LoraConfig(
        **SEQ_CLS,
        r=4,
        lora_alpha=8,
        target_modules=["query", "output.dense", "intermediate.dense"],
        use_rslora=True,
        rank_pattern={"query": 2},
        alpha_pattern={"layer.1.attention.self.query": 32, "query": 5},
        init_lora_weights=False,
    ),
    "dora": peft.LoraConfig(**SEQ_CLS, r=3, target_modules=["key", "value"], use_dora=True, init_lora_weights=False),
    "prompt": peft.PromptTuningConfig(**SEQ_CLS, num_virtual_tokens=5),
    "p-tuning-mlp": peft.PromptEncoderConfig(**SEQ_CLS, num_virtual_tokens=5, encoder_hidden_size=32),
    "p-tuning-lstm": peft.PromptEncoderConfig(
        **SEQ_CLS, num_virtual_tokens=5, encoder_hidden_size=32, encoder_reparameterization_type="LSTM"
    ),
    "prefix": peft.PrefixTuningConfig(**SEQ_CLS, num_virtual_tokens=5),
    "prefix-mlp": peft.PrefixTuningConfig(
        **SEQ_CLS, num_virtual_tokens=5, prefix_projection=True, encoder_hidden_size=16
    ),
}


@pytest.fixture
def base(minilm):
    return peftlab.load(minilm)


@pytest.fixture(scope="module")
def whole(minilm):
    """One base for all draws of a property."""
    return peftlab.load(minilm)


def classifier(minilm, labels: int = 3):
    return transformers.AutoModelForSequenceClassification.from_pretrained(minilm, num_labels=labels)


def inputs(minilm, texts):
    return transformers.AutoTokenizer.from_pretrained(minilm)(texts, padding=True, return_tensors="pt")


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


SMALL = {"vocab_size": 30522, "max_position_embeddings": 40, "pad_token_id": 0}
BERT = SMALL | {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 36}
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


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, also in those below it, by name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


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


# — what is refused —


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
