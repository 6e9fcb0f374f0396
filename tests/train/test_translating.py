"""Translation from a configuration to a run's folder and back: texts that are turned round, and mistakes."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import transformers
from small import left_alone_and_interrupted

from peftlab.data.files import read_object
from peftlab.data.parallel import Pairs
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.models.base import load
from peftlab.tasks.translate import Translate, encode
from peftlab.train.artefact import open_run
from peftlab.train.config import Config, make_config
from peftlab.train.predict import answer_lines
from peftlab.train.run import run

MODEL = {
    "kind": "seq2seq",
    "dim": 64,
    "layers": 2,
    "heads": 4,
    "inner": 128,
    "position": "sinusoidal",
    "embedding_scale": True,
    "residual": "pre",
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "init_std": 0.1,
}
RECURRENT = {"kind": "rnn", "dim": 32, "cell": "lstm"}


@pytest.fixture(scope="module")
def letters(tmp_path_factory) -> Path:
    """Letters, and the same from the last to the first."""
    folder, draw = tmp_path_factory.mktemp("letters"), random.Random(0)
    for part, count in (("train", 8000), ("val", 100), ("test", 200)):
        rows = [[draw.choice("abcdefghij") for _ in range(draw.randint(3, 8))] for _ in range(count)]
        (folder / f"{part}.in").write_text("".join(" ".join(row) + "\n" for row in rows))
        (folder / f"{part}.out").write_text("".join(" ".join(reversed(row)) + "\n" for row in rows))
    return folder


def turning(letters: Path, model=MODEL, translate=(), **train) -> Config:
    task = {"name": str(letters), "direction": "in-out", "vocab": 300, "smoothing": 0.0, "beam": 1}
    settings = {"steps": 800, "batch": 64, "lr": 3e-3, "threads": 1, "evaluations": 4, "precision": "fp32"}
    return make_config({"model": model, "translate": task | dict(translate), "train": settings | train})


def test_a_transformer_learns_to_turn_texts_round(letters, tmp_path):
    start = time.process_time()  # not by the clock: it would measure what else the machine does
    result = run(turning(letters), tmp_path / "run")
    assert time.process_time() - start < 60
    expected = (letters / "test.out").read_text().splitlines()
    assert [text.strip() for text in result["predictions"]["test"]] == expected
    assert result["bleu"] == pytest.approx(100)
    assert result["tests"]["test"]["bleu_signature"].startswith("nrefs:1|case:mixed")
    answers = list(answer_lines(tmp_path / "run", iter(["a b c", "j i h g"])))
    assert [answer["translation"].strip() for answer in answers] == ["c b a", "g h i j"]


@pytest.mark.parametrize("model", [MODEL | {"dropout": 0.1, "dim": 32}, RECURRENT, RECURRENT | {"sampling": 0.3}])
def test_an_interrupted_training_ends_with_the_same_bits(letters, tmp_path, model):
    config = turning(letters, model, {"test_limit": 5}, steps=12, evaluations=3, checkpoint=0)
    whole, again = left_alone_and_interrupted(config, tmp_path, at=7)
    for key in ("curve", "predictions", "bleu"):
        assert whole[key] == again[key]
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "again")]
    assert weights[0] == weights[1]


def test_a_run_is_a_base_that_loads(letters, tmp_path):
    run(turning(letters, RECURRENT, {"test_limit": 2}, steps=2, evaluations=1), tmp_path / "run")
    base = load(tmp_path / "run" / "model")
    assert base.model.config.cell == "lstm"
    again = tmp_path / "again"
    base.save(again)
    assert (again / "model.safetensors").read_bytes() == (tmp_path / "run/model/model.safetensors").read_bytes()
    assert read_object(again / "config.json") == read_object(tmp_path / "run/model/config.json")


# A base that is adapted


@pytest.fixture(scope="module")
def stock(letters, tmp_path_factory):
    """The folders of a random Marian and a random BART with a tokenizer."""
    tokenizer = Tokenizer.train_on([(letters / "train.in").read_text()], "bpe", vocab_size=300)
    marks = {"pad_token_id": tokenizer.pad, "eos_token_id": tokenizer.eos, "bos_token_id": tokenizer.bos}
    both = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in STACK.items()}
    both |= {"vocab_size": tokenizer.vocab_size, "d_model": 32, "max_position_embeddings": 40, "init_std": 0.1, **marks}
    transformers.set_seed(0)
    models = {
        "marian": transformers.MarianMTModel(transformers.MarianConfig(**both, decoder_start_token_id=tokenizer.pad)),
        "bart": transformers.BartForConditionalGeneration(
            transformers.BartConfig(**both, decoder_start_token_id=tokenizer.eos)
        ),
    }
    folders = {}
    for name, model in models.items():
        folders[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(folders[name])
        tokenizer.save(folders[name])
    return folders


STACK = {"layers": 2, "attention_heads": 2, "ffn_dim": 64}
FEW = {"steps": 12, "batch": 16, "lr": 1e-2, "threads": 1, "evaluations": 2, "precision": "fp32"}


def adapting(letters: Path, base: Path, method: str, **translate) -> Config:
    task = {"name": str(letters), "direction": "in-out", "beam": 2, "test_limit": 4, "limit": 300} | translate
    return make_config({"base": str(base), "translate": task, "method": {"name": method}, "train": FEW})


@pytest.mark.parametrize("family", ["marian", "bart"])
@pytest.mark.parametrize("method", ["lora", "adapter", "prefix", "prompt", "full"])
def test_a_base_is_adapted_saved_and_opened_again(letters, stock, tmp_path, family, method):
    before = (stock[family] / "model.safetensors").read_bytes()
    result = run(adapting(letters, stock[family], method), tmp_path / "run")
    assert (stock[family] / "model.safetensors").read_bytes() == before
    assert result["curve"][-1]["loss"] < result["curve"][0]["loss"]
    file = "model.safetensors" if method == "full" else "adapter_model.safetensors"
    assert (tmp_path / "run" / "adapter" / file).is_file()
    assert (result["trainable"] == result["base_parameters"]) == (method == "full")
    lines = (letters / "test.in").read_text().splitlines()[:4]
    answers = [answer["translation"] for answer in answer_lines(tmp_path / "run", iter(lines))]
    assert answers == [" ".join(text.splitlines()) for text in result["predictions"]["test"]]


@torch.no_grad()
def test_what_a_base_is_given_is_what_transformers_gives_it(letters, stock):
    """Their tokenizer marks the source; labels are a marked target, and the model shifts them behind its start."""
    pairs = Pairs(["a b c", "d"], ["C b a", "D e f g"], [1, 2])
    for folder in stock.values():
        base, theirs = load(folder), transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        encoded = theirs(pairs.sources, return_tensors="pt", padding=True)
        labels = theirs(pairs.targets, return_tensors="pt", padding=True).input_ids
        labels = labels.masked_fill(labels == theirs.pad_token_id, -100)
        pair, ours = encode(base.tokenizer, pairs, 30, base.model.marks).batch([0, 1])
        assert torch.equal(pair.source.ids, encoded["input_ids"])
        assert torch.equal(ours, labels)
        expected = float(model(**{key: encoded[key] for key in ("input_ids", "attention_mask")}, labels=labels).loss)
        assert float(Translate().loss(base.model, pair, ours)) == pytest.approx(expected, rel=1e-4)
        lowered = encode(base.tokenizer, pairs, 30, base.model.marks, lowercase=True)
        assert (
            lowered.targets[0] == encode(base.tokenizer, Pairs(["a"], ["c b a"], [1]), 30, base.model.marks).targets[0]
        )


def test_an_interrupted_adaptation_ends_with_the_same_bits(letters, stock, tmp_path):
    config = adapting(letters, stock["marian"], "lora")
    whole, again = left_alone_and_interrupted(config, tmp_path, at=7)
    assert (whole["curve"], whole["predictions"]) == (again["curve"], again["predictions"])
    files = [(tmp_path / name / "adapter" / "adapter_model.safetensors").read_bytes() for name in ("whole", "again")]
    assert files[0] == files[1]


def test_a_run_s_model_is_a_base_for_another(letters, tmp_path):
    run(turning(letters, MODEL | {"dim": 32}, {"test_limit": 2}, steps=3, evaluations=1), tmp_path / "own")
    result = run(adapting(letters, tmp_path / "own" / "model", "lora"), tmp_path / "run")
    lines = (letters / "test.in").read_text().splitlines()[:4]
    answers = [answer["translation"] for answer in answer_lines(tmp_path / "run", iter(lines))]
    assert answers == [" ".join(text.splitlines()) for text in result["predictions"]["test"]]
    base, _ = open_run(tmp_path / "run")
    assert (base.family, base.model.active) == ("peftlab", ("mine",))
    recurrent = turning(letters, RECURRENT, {"test_limit": 2}, steps=2, evaluations=1)
    run(recurrent, tmp_path / "recurrent")
    result = run(adapting(letters, tmp_path / "recurrent" / "model", "bitfit"), tmp_path / "adapted")
    assert 0 < result["trainable"] < result["base_parameters"]
    assert len(list(answer_lines(tmp_path / "adapted", iter(lines)))) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": MODEL, "method": {"name": "lora"}}, "lora adapts a base, and a .model. of one's own has none: use"),
        ({"base": "tiny"}, "base '.*' is of the kind Encoder: give a Marian, a BART .*, or a .model. to train"),
        ({"model": MODEL | {"kind": "decoder"}}, "unknown kind in .model. 'decoder': .*there are seq2seq, rnn"),
        ({"model": {"kind": "rnnn"}}, "unknown kind in .model. 'rnnn': did you mean 'rnn'"),
        ({"model": {"kind": "rnn", "dimm": 3}}, "unknown key of .model. for a rnn 'dimm': did you mean 'dim'"),
        ({"model": {"kind": "seq2seq", "dim": 32}}, "can't be .* missing 3 required"),
        ({"model": MODEL | {"heads": 5}}, "5 heads do not divide a width of 64"),
        ({"model": MODEL | {"max_length": 20}}, "model.max_length is 20 and translate.max_length 128"),
        ({"model": MODEL, "translate": {"nmae": "x"}}, "unknown key of .translate. .* 'nmae': did you mean 'name'"),
        ({"model": MODEL, "translate": {"name": "nowhere.en,nowhere.de"}}, "there is no file nowhere.en"),
    ],
)
def test_mistakes_are_told_before_training(letters, tiny, tmp_path, settings, message):
    task = {"name": str(letters), "direction": "in-out", "vocab": 300}
    content = {"translate": task, "method": {"name": "full"}, **settings}
    if "base" in content:
        content["base"] = str(tiny)
    with pytest.raises(UserError, match=message):
        run(make_config(content), tmp_path / "run")


def test_every_line_gets_an_answer_and_every_problem_its_line(letters, tmp_path):
    run(turning(letters, RECURRENT, {"test_limit": 2, "max_length": 20}, steps=2, evaluations=1), tmp_path / "run")
    lines = [b"a b c"] * 600 + [b"", "ж 漢 \U0001f600".encode(), b"a \xff b", b"a " * 50, b"   "] + [b"c d"] * 10
    command = [sys.executable, "-m", "peftlab", "predict", str(tmp_path / "run")]
    done = subprocess.run(command, input=b"\n".join(lines) + b"\n", capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    out = done.stdout.decode().splitlines()
    assert len(out) == len(lines)
    assert out[600] == out[604] == ""
    said = done.stderr.decode()
    for problem in ("line 601 is empty", "line 603 is not UTF-8", "line 604 has 52 tokens", "line 605 is empty"):
        assert problem in said
    assert len(said.splitlines()) == 4
    found = subprocess.run([*command, "--json", "a b"], capture_output=True, text=True)
    assert json.loads(found.stdout).keys() == {"text", "translation"}
