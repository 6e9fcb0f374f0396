"""Pretraining from a configuration to a base: it learns, it resumes, and its result is a base like any other."""

import json
import random
from pathlib import Path

import pytest
import torch
import transformers
from small import films, left_alone_and_interrupted, write_films

import peftlab
from peftlab.compare.compare import Question
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.models.base import base_fingerprint
from peftlab.train.config import Config, make_config, read_config_file
from peftlab.train.export import export_run
from peftlab.train.predict import open_finished
from peftlab.train.run import open_work, run

LETTERS = "abcdefghij"
MODEL = {
    "kind": "encoder",
    "dim": 32,
    "layers": 2,
    "heads": 2,
    "inner": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "init_std": 0.1,
}
CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def letters(tmp_path_factory) -> Path:
    """Lines of one letter each, one of ten: what is hidden follows from what is not."""
    file, draw = tmp_path_factory.mktemp("letters") / "letters.txt", random.Random(0)
    with file.open("w") as out:
        for _ in range(400):
            print(" ".join(draw.choice(LETTERS) * draw.randint(40, 80)), file=out)
    return file


def pretrain(letters: Path, kind="masked_tokens", model=MODEL, base: Path | None = None, asked=(), **train) -> Config:
    task = {"name": str(letters), "vocab": 40, "length": 32} | dict(asked)
    settings = {"steps": 120, "batch": 16, "lr": 5e-3, "threads": 1, "evaluations": 2, "precision": "fp32"} | train
    return make_config({kind: task, "train": settings, **({"model": model} if base is None else {"base": str(base)})})


@pytest.fixture(scope="module")
def bert(letters, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "my-bert"
    run(pretrain(letters), folder)
    return folder


@pytest.fixture(scope="module")
def electra(letters, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "my-electra"
    run(pretrain(letters, "replaced_tokens", steps=150, lr=2e-3), folder)
    return folder


def result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


# It learns


def test_masked_letters_are_learned_in_seconds(bert, letters):
    found = result(bert)
    assert found["perplexity"] < 3, "ten letters, and those around say which"
    assert found["perplexity"] == pytest.approx(found["tests"]["test"]["perplexity"])
    assert found["curve"][-1]["perplexity"] == pytest.approx(1 / found["curve"][-1]["score"])
    lines = [json.loads(line) for line in (bert / "metrics.jsonl").read_text().splitlines()]
    assert [line["tokens"] for line in lines[:3]] == [512, 1024, 1536]
    assert 0.9 < found["tokens"] / (120 * 16 * 32) <= 1, "the last step of an epoch may have fewer rows"
    assert found["tokens"] % 32 == 0
    assert found["flops"] > found["tokens"] * found["base_parameters"]
    assert found["tokens_second"] > 0


def test_replaced_letters_are_found_in_seconds(electra):
    found = result(electra)
    assert found["curve"][-1]["rtd_accuracy"] > 0.9
    assert found["rtd_recall"] > 0.2, "it does not say of every token that it is original"
    assert found["rtd_precision"] > 0.7
    assert found["perplexity"] < 7
    assert "rtd accuracy" in found["said"]


# It resumes


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("masked_tokens", {"whole_words": True}),
        ("replaced_tokens", {}),
        ("replaced_tokens", {"sharing": "none", "adversarial": True}),
        ("replaced_tokens", {"sharing": "all", "generator": 1.0}),
        ("replaced_tokens", {"sharing": "none", "generator": 1.0, "two_stage": True}),
    ],
    ids=str,
)
def test_an_interrupted_training_ends_with_the_same_bits(tmp_path, kind, asked):
    words = random.Random(0).choices(["never", "nearer", "river", "rain", "in", "vain"], k=3000)
    text = tmp_path / "words.txt"
    text.write_text("\n".join(" ".join(words[i : i + 10]) for i in range(0, 3000, 10)))
    model = MODEL | {"dropout": 0.1}
    config = pretrain(text, kind, model, asked=asked, steps=9, evaluations=3, checkpoint=0)
    whole, again = left_alone_and_interrupted(config, tmp_path, at=6)
    times = ("peak_memory", "ms_step", "tokens_second", "seconds")
    assert {key: value for key, value in whole.items() if key not in times} == {
        key: value for key, value in again.items() if key not in times
    }
    for file in ("model/model.safetensors", "model/config.json", "model/tokenizer.json", "metrics.jsonl"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


@pytest.mark.parametrize("kind", ["masked_tokens", "replaced_tokens"])
def test_another_start_neither_learns_a_vocabulary_nor_tokenises(letters, kind, monkeypatch):
    config = pretrain(letters, kind, asked={"limit": 100})
    first = open_work(config)
    first.prepare()
    # a letter is what asks for the marks around it
    ids = Tokenizer.ids
    monkeypatch.setattr(Tokenizer, "ids", lambda self, text: ids(self, text) if len(text) == 1 else pytest.fail(text))
    monkeypatch.setattr(Tokenizer, "train_on", lambda *texts, **settings: pytest.fail("learned anew"))
    again = open_work(config)
    again.prepare()
    assert again.base.tokenizer.to_json() == first.base.tokenizer.to_json()
    assert torch.equal(again.rows.text[range(9)], first.rows.text[range(9)])


def test_it_learns_in_bf16_too(letters, tmp_path):
    asked = {"sharing": "none", "adversarial": True}
    found = run(
        pretrain(letters, "replaced_tokens", asked=asked, steps=2, evaluations=1, precision="bf16"), tmp_path / "run"
    )
    assert found["precision"] == "bf16"
    assert found["skipped"] == []


def test_two_stages_cost_less_than_both_networks_at_once(letters):
    counts = []
    for asked in ({}, {"two_stage": True}):
        config = pretrain(letters, "replaced_tokens", asked={"generator": 1.0, "sharing": "none", **asked}, steps=4)
        work = open_work(config)
        work.prepare().step()
        counts.append(work.flops())
    assert 0.4 < counts[1] / counts[0] < 0.8


# Its result is a base


@pytest.mark.parametrize("kind", ["bert", "electra"])
def test_a_second_text_begins_as_the_first_was_taught(kind, request):
    segments = peftlab.load(request.getfixturevalue(kind)).model.embedding.segments.weight
    assert segments.shape[0] == 2
    torch.testing.assert_close(segments[1], segments[0], rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["bert", "electra"])
def test_the_run_is_a_base_that_transformers_loads_too(kind, request):
    folder = request.getfixturevalue(kind)
    base = peftlab.load(folder)
    assert base.family == kind
    assert torch.equal(base.model.embedding.words.weight, peftlab.load(folder / "model").model.embedding.words.weight)
    assert base_fingerprint(folder) == base_fingerprint(folder / "model")
    classes = {"bert": transformers.BertForMaskedLM, "electra": transformers.ElectraForPreTraining}
    stock, facts = classes[kind].from_pretrained(folder / "model", output_loading_info=True)
    assert not any(facts[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    batch = base.encode(["a b c", "h i j a"])
    theirs = transformers.AutoTokenizer.from_pretrained(folder / "model")(["a b c", "h i j a"], padding=True)
    assert batch.ids.tolist() == theirs["input_ids"]
    with torch.no_grad():
        hidden = stock.base_model(batch.ids, attention_mask=batch.mask.long()).last_hidden_state
        torch.testing.assert_close(base.model(batch).hidden[batch.mask], hidden[batch.mask], rtol=0, atol=1e-5)
    if kind == "bert":
        ids = base.encode(" ".join("e" * 30)).ids
        ids[0, 5] = base.tokenizer.mask
        assert base.tokenizer.tokens([int(stock(ids).logits[0, 5].argmax())]) == ["e"]


@pytest.mark.parametrize("method", ["lora", "full", "scratch"])
def test_a_classifier_trains_on_it(electra, tmp_path, method):
    file = write_films(tmp_path / "films.csv")
    found = run(films(electra, file, method, steps=2, evaluations=1), tmp_path / "run")
    assert 0 <= found["accuracy"] <= 1
    assert open_finished(tmp_path / "run") is not None


def test_a_comparison_plans_its_runs_on_it(electra, tmp_path):
    jobs = Question([{"name": "sst2"}], methods=["full", "scratch"], base=str(electra), limit=100).jobs(tmp_path)
    assert {job.config.base for job in jobs} == {str(electra)}
    assert {job.config.method["name"] for job in jobs} == {"full", "scratch"}


def test_an_encoder_that_no_family_holds_is_a_base_all_the_same(letters, tmp_path):
    config = pretrain(letters, model=MODEL | {"residual": "pre"}, steps=2, evaluations=1)
    run(config, tmp_path / "run")
    assert peftlab.load(tmp_path / "run").family == "peftlab"
    file = write_films(tmp_path / "films.csv")
    run(films(tmp_path / "run", file, steps=2, evaluations=1), tmp_path / "films")
    assert open_finished(tmp_path / "films") is not None


# A base goes on


def test_a_base_goes_on_with_its_head(bert, letters, tmp_path):
    before = result(bert)["perplexity"]
    still = run(pretrain(letters, base=bert, steps=1, evaluations=1, lr=1e-12), tmp_path / "still")
    assert still["perplexity"] == pytest.approx(before, rel=1e-3), "its head came along"
    assert (tmp_path / "still" / "adapter" / "config.json").is_file()
    base = peftlab.load(tmp_path / "still")
    assert base.family == "bert"
    assert torch.allclose(base.model.embedding.words.weight, peftlab.load(bert).model.embedding.words.weight, atol=1e-9)


def test_a_discriminator_goes_on_and_a_bert_becomes_one(bert, electra, letters, tmp_path):
    for name, base in {"electra": electra, "bert": bert}.items():
        found = run(pretrain(letters, "replaced_tokens", base=base, steps=2, evaluations=1, lr=1e-12), tmp_path / name)
        assert (found["rtd_accuracy"] > 0.8) or name == "bert"
        assert peftlab.load(tmp_path / name).family == name


def test_a_tokenizer_may_be_given(letters, tmp_path):
    Tokenizer.train_on(["a b c d e f g h i j", "ab cd ef"], vocab_size=60).save(tmp_path / "tokenizer")
    config = pretrain(letters, asked={"tokenizer": str(tmp_path / "tokenizer")}, steps=1, evaluations=1)
    run(config, tmp_path / "run")
    theirs, ours = Tokenizer.load(tmp_path / "tokenizer"), peftlab.load(tmp_path / "run").tokenizer
    assert ours.to_json() == theirs.to_json()


# Mistakes


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("masked_tokens", {"method": {"name": "lora"}}, "lora adapts a base, and a .model. of one's own has none"),
        (
            "masked_tokens",
            {"base": "bert", "method": {"name": "lora"}},
            "trains every weight, and lora does not: use full",
        ),
        ("masked_tokens", {"model": MODEL | {"kind": "decoder"}}, "unknown kind in .model. 'decoder'"),
        ("masked_tokens", {"model": MODEL | {"max_length": 20}}, "model.max_length is 20 and masked_tokens.length 32"),
        ("masked_tokens", {"model": MODEL | {"vocab": 20}}, "unknown key of .model. for a encoder 'vocab'"),
        ("masked_tokens", {"lenght": 3}, "unknown key of .masked_tokens. .* did you mean 'length'"),
        ("masked_tokens", {"length": 9**5}, "has [0-9]+ tokens, fewer than a row of 59049 holds: give more text"),
        ("masked_tokens", {"name": "nowhere.txt"}, "neither a path that exists nor a hub id"),
        ("masked_tokens", {"tokenizer": "nowhere"}, "nowhere has none of tokenizer.json"),
        ("masked_tokens", {"share": 0.9}, "masked_tokens.share in the configuration is 0.9"),
        ("replaced_tokens", {"sharing": "all"}, "they share all weights only at 1"),
        ("replaced_tokens", {"sharing": "some"}, "replaced_tokens.sharing in the configuration is 'some'"),
        ("replaced_tokens", {"generator": 0.0}, "replaced_tokens.generator in the configuration is 0.0"),
        ("replaced_tokens", {"two_stage": True}, "needs generator = 1 and sharing = .none"),
        (
            "replaced_tokens",
            {"two_stage": True, "adversarial": True, "generator": 1, "sharing": "none"},
            "adversarial needs both networks at once",
        ),
        ("replaced_tokens", {"masked_tokens": {}}, "has .masked_tokens. and .replaced_tokens.: a run has one task"),
        ("masked_tokens", {"base": "gpt2"}, "base .* is of the kind Decoder: give a BERT, an ELECTRA"),
        ("masked_tokens", {"base": "mismatched"}, "has 90 tokens and its model 60: they do not belong together"),
        ("masked_tokens", {"base": "bert", "tokenizer": "other"}, "masked_tokens.tokenizer .* is not that of base"),
    ],
)
def test_mistakes_are_told_before_training(letters, bert, tmp_path, kind, content, message):
    sections = {"model", "base", "method", "masked_tokens", "replaced_tokens"}
    task = {"name": str(letters), "vocab": 40, "length": 32}
    task |= {key: value for key, value in content.items() if key not in sections}
    config = {key: value for key, value in content.items() if key in sections}
    bases = {"bert": bert, "gpt2": tmp_path / "gpt2", "mismatched": tmp_path / "mismatched"}
    wide = Tokenizer.train_on(["abcdefghijklmnopqrstuvwxyz " * 3, "hello never nearer", "river rain"], vocab_size=90)
    if task.get("tokenizer") == "other":
        wide.save(tmp_path / "other")
        task["tokenizer"] = str(tmp_path / "other")
    if "base" in config:
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        if config["base"] == "mismatched":
            wide = Tokenizer.train_on([" ".join(f"w{i}" for i in range(200))], vocab_size=90)
            transformers.BertModel(transformers.BertConfig(vocab_size=60, **sizes)).save_pretrained(bases["mismatched"])
            wide.save(bases["mismatched"])
        if config["base"] == "gpt2":
            bpe = Tokenizer.train_on(["a b c"], "bpe", vocab_size=270)
            gpt2 = transformers.GPT2Config(vocab_size=bpe.vocab_size, n_embd=16, n_layer=1, n_head=2)
            transformers.GPT2LMHeadModel(gpt2).save_pretrained(bases["gpt2"])
            bpe.save(bases["gpt2"])
        config["base"] = str(bases[config["base"]])
    else:
        config.setdefault("model", MODEL)
    with pytest.raises(UserError, match=message) as caught:
        run(make_config({kind: task, **config}), tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_a_pretrained_base_answers_nothing_and_is_not_exported(bert, letters, tmp_path):
    with pytest.raises(UserError, match="pretrained a base, which says nothing yet: teach it a task with base ="):
        open_finished(bert)
    with pytest.raises(UserError, match=r"has a model of its own and no base: .*model is what peftlab.load reads"):
        export_run(bert, tmp_path / "out", "merged")
    run(pretrain(letters, base=bert, steps=1, evaluations=1), tmp_path / "more")
    with pytest.raises(UserError, match=r"trained the base itself: .*adapter is what peftlab.load reads"):
        export_run(tmp_path / "more", tmp_path / "out", "merged")


# The configurations


def test_the_two_configurations_have_one_base_and_cost_the_same(letters, tmp_path):
    """About 4M parameters, and as many operations: what differs is the task alone."""
    costs, sizes = [], []
    for name in ("mlm", "electra"):
        config = read_config_file(CONFIGS / f"{name}-tiny.toml")
        section = "masked_tokens" if name == "mlm" else "replaced_tokens"
        asked = getattr(config, section).model_copy(update={"name": str(letters), "vocab": 40})
        work = open_work(config.model_copy(update={section: asked}))
        training = work.prepare()
        training.progress.tokens = config.train.steps * config.train.batch * asked.length
        spared = getattr(config, section).vocab - training.model.config.vocab  # the letters are fewer
        words = training.model.config.embedding_dim * spared
        sizes.append(sum(p.numel() for p in work.base.model.parameters()) + words)
        costs.append(work.flops() + 3 * 2 * words * work.rows.places * config.train.steps * config.train.batch)
    assert sizes[0] == sizes[1]
    assert 3.5e6 < sizes[0] < 4.5e6
    assert costs[0] == pytest.approx(costs[1], rel=0.01)
