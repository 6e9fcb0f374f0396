"""A language model from a configuration to a run's folder and back: a text that goes round, a base, and mistakes."""

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from small import left_alone_and_interrupted
from typer.testing import CliRunner

import peftlab
from peftlab.cli import app
from peftlab.data.batch import Batch
from peftlab.data.text import Text
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.generate.search import Sample, write
from peftlab.models.base import Base
from peftlab.models.own import make_model
from peftlab.models.writer import Marks
from peftlab.tasks.language_model import LanguageModel, pack, perplexities
from peftlab.train.artefact import open_run
from peftlab.train.asking import ask
from peftlab.train.config import Config, make_config, read_config_file
from peftlab.train.export import export_run
from peftlab.train.looking import look
from peftlab.train.predict import answer_lines, characters, open_finished, spoken
from peftlab.train.run import open_work, run

MODEL = {
    "kind": "decoder",
    "dim": 32,
    "layers": 2,
    "heads": 2,
    "inner": 64,
    "residual": "pre",
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "max_length": 64,
}
LETTERS = "abcdefghij"


@pytest.fixture(scope="module")
def letters(tmp_path_factory) -> Path:
    """Letters, each followed by the next of ten that go round."""
    file, draw = tmp_path_factory.mktemp("letters") / "letters.txt", random.Random(0)
    with file.open("w") as out:
        for _ in range(1500):
            start, count = draw.randrange(10), draw.randint(5, 12)
            print(" ".join(LETTERS[(start + i) % 10] for i in range(count)), file=out)
    return file


def going_round(
    letters: Path, model=MODEL, language_model=(), base: Path | None = None, method="lora", **train
) -> Config:
    task = {"name": str(letters), "vocab": 300, "length": 32, "max_new": 20, "temperature": 0.1} | dict(language_model)
    settings = {"steps": 150, "batch": 16, "lr": 5e-3, "threads": 1, "evaluations": 3, "precision": "fp32"} | train
    what = {"model": model} if base is None else {"base": str(base), "method": {"name": method}}
    return make_config({"language_model": task, "train": settings, **what})


@pytest.fixture(scope="module")
def trained(letters, tmp_path_factory) -> Path:
    """A model of one's own that knows how the letters go on."""
    folder = tmp_path_factory.mktemp("runs") / "own"
    run(going_round(letters), folder)
    return folder


@pytest.fixture(scope="module")
def gpt2(letters, tmp_path_factory) -> Path:
    """The folder of a random GPT-2 with a tokenizer."""
    folder, tokenizer = (
        tmp_path_factory.mktemp("gpt2"),
        Tokenizer.train_on([letters.read_text()], "bpe", vocab_size=300),
    )
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 48, "initializer_range": 0.1}
    marks = {"bos_token_id": tokenizer.eos, "eos_token_id": tokenizer.eos}
    transformers.set_seed(0)
    transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=tokenizer.vocab_size, **marks, **sizes)
    ).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


# A model of one's own


def test_a_small_text_is_learned_in_seconds(trained):
    result = json.loads((trained / "result.json").read_text())
    # unknown are a line's first letter, one of ten, and its length, one of eight; all else is certain
    least = math.exp(75 * math.log(10 * 8) / result["tests"]["test"]["tokens"])
    assert 0.95 * least < result["perplexity"] < 1.2 * least
    assert result["validation"] == pytest.approx(1 / result["perplexity"], rel=0.1)
    sizes = result["tests"]["test"]
    assert result["word_perplexity"] == pytest.approx(result["perplexity"] ** (sizes["tokens"] / sizes["words"]))
    for line in ("a b c", "h i"):
        [answer] = answer_lines(trained, iter([line]))
        whole = (line + answer["continuation"]).split()
        assert len(whole) > len(line.split())
        assert "".join(whole) in LETTERS * 3


def test_an_interrupted_training_ends_with_the_same_bits(letters, tmp_path):
    config = going_round(letters, MODEL | {"dropout": 0.1}, {"limit": 200}, steps=9, evaluations=3, checkpoint=0)
    whole, again = left_alone_and_interrupted(config, tmp_path, at=5)
    for key in ("curve", "predictions", "perplexity"):
        assert whole[key] == again[key]
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "again")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("asked", [{}, {"units": "bytes"}, {"lowercase": True}], ids=str)
def test_another_start_neither_learns_a_vocabulary_nor_tokenises(letters, asked, monkeypatch):
    config = going_round(letters, language_model={"limit": 100, **asked})
    first = open_work(config)
    rows = first.prepare().data
    monkeypatch.setattr(Tokenizer, "ids", lambda self, text: pytest.fail(text))
    monkeypatch.setattr(Tokenizer, "train_on", lambda *texts, **settings: pytest.fail("learned anew"))
    again = open_work(config)
    assert torch.equal(again.prepare().data.tokens, rows.tokens)
    assert again.base.tokenizer.to_json() == first.base.tokenizer.to_json()
    assert [part.rows for part in again.tests.values()] == [part.rows for part in first.tests.values()]


def test_a_tokenizer_may_be_given(letters, tmp_path):
    for name, texts in {"one": ["a b c d"], "other": ["a b c d", "ab cd ef ab cd ef"]}.items():
        Tokenizer.train_on(texts, "bpe", vocab_size=270).save(tmp_path / name)
    asked = {"tokenizer": str(tmp_path / "tokenizer"), "limit": 100}
    config = going_round(letters, language_model=asked, steps=1, evaluations=1)
    (tmp_path / "tokenizer").symlink_to(tmp_path / "one")
    run(config, tmp_path / "run")
    assert peftlab.load(tmp_path / "run" / "model").tokenizer.to_json() == Tokenizer.load(tmp_path / "one").to_json()
    before = open_work(config).hashes()
    (tmp_path / "tokenizer").unlink()
    (tmp_path / "tokenizer").symlink_to(tmp_path / "other")
    assert open_work(config).hashes() != before, "a run does not go on with another"


def test_a_base_may_be_given_its_own_tokenizer(letters, gpt2):
    asked = {"tokenizer": str(gpt2), "limit": 100}
    work = open_work(going_round(letters, base=gpt2, language_model=asked))
    work.prepare()
    assert work.base.tokenizer.to_json() == Tokenizer.load(gpt2).to_json()


REFORMER = {
    "kind": "reformer",
    "dim": 32,
    "layers": 2,
    "heads": 2,
    "inner": 64,
    "attention": ["local", "lsh"],
    "chunk": 16,
    "local_chunk": 16,
    "rounds": 2,
    "dropout": 0.0,
    "max_length": 128,
}


def test_bytes_are_learned_by_a_reformer_over_several_chunks(tmp_path):
    """Words that go round, some of whose letters take several bytes."""
    file, whole = tmp_path / "words.txt", "été 漢字 <s> 😀 "
    file.write_text(f"{whole * 8}\n" * 60)
    few = {"steps": 40, "batch": 8, "lr": 1e-2, "evaluations": 1}
    asked = {"units": "bytes", "length": 128, "max_new": 2 * len(whole.encode())}
    result = run(going_round(file, REFORMER, asked, **few), tmp_path / "run")
    line = (whole * 8).strip()
    assert result["tests"]["test"]["tokens"] == 3 * (len(line.encode()) + 1), "each byte, and the ends of three lines"
    assert result["perplexity"] < 3
    base, _ = open_run(tmp_path / "run")
    assert base.tokenizer.to_json() == Tokenizer.of_bytes().to_json()
    assert base.tokenizer.decode(base.tokenizer.ids(line)) == line
    [answer] = answer_lines(tmp_path / "run", iter([whole * 2]))
    assert set(answer["continuation"]) <= set(whole), "whole characters, one byte after the other"
    assert answer["continuation"]


def test_the_reformer_of_bytes_has_as_many_positions_as_it_reads():
    config = read_config_file(Path(__file__).parents[2] / "configs" / "reformer-bytes.toml")
    model = make_model(config.model, Tokenizer.of_bytes().vocab_size, Marks(None, 2, 1))
    assert config.language_model.units == "bytes"
    assert model.max_length == config.language_model.length
    assert 3e6 < sum(parameter.numel() for parameter in model.parameters()) < 4e6


# Going on with a text


@pytest.mark.parametrize("line", ["a b c", "", "漢 x", "q"])
def test_what_is_streamed_is_what_is_written(trained, line):
    continuer = open_finished(trained)
    continuer.asked = continuer.asked.model_copy(update={"temperature": 3.0, "top_p": 1.0})  # it writes odd bytes, too
    base = continuer.base
    pieces = list(continuer.pieces(line, 1))
    ids = [base.tokenizer.eos, *base.tokenizer.ids(line)]
    batch = Batch(torch.tensor([ids]), torch.ones(1, len(ids)))
    [[best]] = write(base.model, batch, Sample(temperature=3.0, top_p=1.0), max_new=20)
    assert "".join(pieces) == base.tokenizer.decode(best.tokens).rstrip("\N{REPLACEMENT CHARACTER}")
    assert len(pieces) > 1


def test_only_whole_characters_come(trained):
    tokenizer = open_run(trained)[0].tokenizer
    ids = tokenizer.ids("a漢 é\U0001f600")
    assert list(characters(tokenizer, iter(ids))) == ["a", "漢", " ", "é", "\U0001f600"]
    assert list(characters(tokenizer, iter(ids[:-1]))) == ["a", "漢", " ", "é"], "what has no end is left out"
    broken = [*tokenizer.ids("a"), *tokenizer.ids("漢")[:1], *tokenizer.ids("b")]
    assert "".join(characters(tokenizer, iter(broken))) == tokenizer.decode(broken) == "a\N{REPLACEMENT CHARACTER}b"


def test_each_piece_is_there_before_the_next_is_written(trained, monkeypatch):
    """Standard output gets a token when it is written, not when all are."""
    seen = []
    step = type(open_run(trained)[0].model).next

    def counted(model, tokens, memory):
        seen.append(len(pieces))
        return step(model, tokens, memory)

    pieces: list[str] = []
    monkeypatch.setattr("peftlab.models.decoder.Decoder.next", counted)
    for piece in spoken(trained, iter(["a b c"])):
        pieces.append(piece)
    assert pieces[0] == "a b c"
    assert pieces[-1] == "\n"
    assert seen == sorted(seen)
    assert seen[-1] > seen[0] + 3


def test_the_command_line_goes_on_with_texts(trained):
    command = [sys.executable, "-m", "peftlab", "predict", str(trained)]
    [answer] = answer_lines(trained, iter(["a b c"]))
    assert CliRunner().invoke(app, ["predict", str(trained), "a b c"]).stdout == f"a b c{answer['continuation']}\n"
    lines = ["c d", "", "a b " * 40, "h"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, input="\n".join(lines) + "\n")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["text"] for each in found] == lines
    assert all(each.keys() == {"text", "continuation"} for each in found)
    assert [each["continuation"] for each in found[:2]] == [
        each["continuation"] for each in answer_lines(trained, iter(lines[:2]))
    ]
    assert found[1]["continuation"], "of nothing a new line is made"
    tokens = 1 + len(open_run(trained)[0].tokenizer.ids(lines[2]))
    assert f"line 3 has {tokens} tokens and the model reads 16 before it writes" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# A base that is adapted


def perplexity(base: Base, letters: Path) -> float:
    """Of a base as it is, on the test part: the last 5 % of the lines."""
    lines = letters.read_text().splitlines()[-75:]
    packed = pack(base.tokenizer, Text(lines, list(range(75))), min(32, base.room), base.model.marks)
    judged = ask(base.model, packed, LanguageModel().judge, "fp32")
    return perplexities(judged, len(packed.tokens) - 1, packed.words)["perplexity"]


@pytest.mark.parametrize("method", ["lora", "adapter", "prefix", "prompt", "p_tuning", "bitfit", "full"])
def test_a_base_is_adapted_saved_and_opened_again(letters, gpt2, tmp_path, method):
    few = {"lr": 1e-2, "steps": 12, "batch": 8, "evaluations": 1}
    config = going_round(letters, base=gpt2, method=method, language_model={"limit": 150, "max_new": 8}, **few)
    before = (gpt2 / "model.safetensors").read_bytes()
    result = run(config, tmp_path / "run")
    assert (gpt2 / "model.safetensors").read_bytes() == before
    assert result["perplexity"] < perplexity(peftlab.load(gpt2), letters), "it learned something"
    file = "model.safetensors" if method == "full" else "adapter_model.safetensors"
    assert (tmp_path / "run" / "adapter" / file).is_file()
    assert (result["trainable"] == result["base_parameters"]) == (method == "full")
    base, _ = open_run(tmp_path / "run")
    assert perplexity(base, letters) == pytest.approx(result["perplexity"], rel=1e-4), "it is what was tested"
    [answer] = answer_lines(tmp_path / "run", iter(["a b c"]))
    assert answer.keys() == {"text", "continuation"}


def test_a_merged_run_is_a_gpt2_of_transformers(letters, gpt2, tmp_path):
    few = {"lr": 1e-2, "steps": 5, "batch": 8, "evaluations": 1}
    run(going_round(letters, base=gpt2, language_model={"limit": 150}, **few), tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "merged", "merged")
    stock = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "merged").eval()
    base, _ = open_run(tmp_path / "run")
    batch = base.encode(["a b c d", "h"])
    with torch.no_grad():
        theirs = stock(input_ids=batch.ids, attention_mask=batch.mask.long()).logits
        ours, bare = base.model(batch).logits, peftlab.load(gpt2).model(batch).logits
    torch.testing.assert_close(theirs[batch.mask], ours[batch.mask], rtol=0, atol=1e-4)
    assert not torch.allclose(bare[batch.mask], ours[batch.mask], rtol=0, atol=1e-2)
    with pytest.raises(
        UserError, match=r"can't be exported with --to peft: .* our own format; as it is, use --to merged"
    ):
        export_run(tmp_path / "run", tmp_path / "peft", "peft")


def test_a_run_s_model_is_a_base_for_another(letters, trained, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("".join(f"{line[::-1]}\n" for line in letters.read_text().splitlines()[:200]))
    few = {"lr": 1e-2, "steps": 5, "batch": 8, "evaluations": 1}
    result = run(going_round(other, base=trained / "model", **few), tmp_path / "run")
    assert result["trainable"] < result["base_parameters"]
    base, _ = open_run(tmp_path / "run")
    assert base.family == "peftlab"
    assert base.model.active == ("mine",)
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").is_file()
    export_run(tmp_path / "run", tmp_path / "merged", "merged")
    merged = peftlab.load(tmp_path / "merged")
    batch = base.encode(["a b c"])
    torch.testing.assert_close(merged.model(batch).logits, base.model(batch).logits, rtol=0, atol=1e-4)
    with pytest.raises(UserError, match=r"has a model of its own and no base: .*model is what peftlab.load reads"):
        export_run(trained, tmp_path / "nowhere", "merged")


# Mistakes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": MODEL, "method": {"name": "lora"}}, "lora adapts a base, and a .model. of one's own has none: use"),
        ({"model": MODEL | {"kind": "rnn"}}, "unknown kind in .model. 'rnn': .there are decoder"),
        ({"model": MODEL | {"max_length": 20}}, "model.max_length is 20 and language_model.length 32"),
        ({"model": MODEL, "language_model": {"length": 9999}}, "model.max_length is 64 and language_model.length 9999"),
        (
            {"model": MODEL | {"max_length": 9**6}, "language_model": {"length": 9**6}},
            "fewer than language_model.length",
        ),
        ({"model": MODEL, "language_model": {"lenght": 3}}, "unknown key of .language_model. .* did you mean 'length'"),
        ({"model": MODEL, "language_model": {"name": "nowhere.txt"}}, "neither a path that exists nor a hub id"),
        ({"model": MODEL, "language_model": {"units": "byte"}}, "language_model.units in the configuration is 'byte'"),
        ({"model": MODEL, "language_model": {"top_p": 0}}, "language_model.top_p in the configuration is 0"),
        ({"model": MODEL, "translate": {}}, "has .translate. and .language_model.: a run has one task"),
        ({"base": "tiny"}, "base '.*' is of the kind Encoder: give a GPT-2 .* or a .model. to train"),
        ({"base": "gpt2", "method": {"name": "head"}}, "head trains nothing of a model without a head"),
        ({"model": MODEL, "language_model": {"tokenizer": "nowhere"}}, "nowhere has none of tokenizer.json"),
        (
            {"model": MODEL, "language_model": {"tokenizer": "gpt2", "units": "bytes"}},
            "language_model has units and a tokenizer, which has its own: leave one of them out",
        ),
        ({"model": MODEL, "language_model": {"tokenizer": "tiny"}}, "this tokenizer has no marks for start and end"),
        (
            {"base": "gpt2", "language_model": {"tokenizer": "tiny"}},
            "language_model.tokenizer .* is not that of base '.*': leave it out",
        ),
        ({"base": "mismatched"}, "the tokenizer of base '.*' has 27[0-9] tokens and its model 200: they do not belong"),
    ],
)
def test_mistakes_are_told_before_training(letters, gpt2, tiny, tmp_path, settings, message):
    bases = {"gpt2": str(gpt2), "tiny": str(tiny), "mismatched": str(tmp_path / "mismatched")}
    task = {"name": str(letters), "vocab": 300, "length": 32}
    content = {**settings, "language_model": task | settings.get("language_model", {})}
    asked = content["language_model"]
    asked |= {"tokenizer": bases.get(asked["tokenizer"], asked["tokenizer"])} if "tokenizer" in asked else {}
    if content.get("base") == "mismatched":
        sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 2, "eos_token_id": 2}
        small = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=200, **sizes))
        small.save_pretrained(bases["mismatched"])
        Tokenizer.load(gpt2).save(bases["mismatched"])
    if "base" in content:
        content["base"] = bases[content["base"]]
    with pytest.raises(UserError, match=message) as caught:
        run(make_config(content), tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_a_language_model_has_no_page_of_its_attention(trained):
    with pytest.raises(UserError, match="is a language model, whose attention has no page"):
        look(trained, iter(["a b c"]))
