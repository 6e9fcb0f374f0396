"""The shape trace against the model's own configuration and the order in which its parts act."""

import sys

import pytest

import peftlab
from peftlab.cli import main
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.models.base import Base
from peftlab.models.decoder import Decoder, DecoderConfig
from peftlab.models.encoder import Encoder, EncoderConfig
from peftlab.models.reformer import ReformerConfig, ReformerEncoder
from peftlab.models.rnn import RecurrentConfig, RecurrentSeq2Seq
from peftlab.models.seq2seq import Seq2Seq, seq2seq_config
from peftlab.models.vit import ViT, ViTConfig
from peftlab.tracing import Step, shorten, trace

SMALL = {"dim": 16, "layers": 3, "heads": 4, "inner": 24}
TEXTS = ["a sentence", ("a premise", "a hypothesis")]
ATTENTION = ["self.q", "self.k", "self.v", *["self"] * 6, "self.o", "self"]


@pytest.fixture(scope="module")
def tokenizer(minilm) -> Tokenizer:
    return Tokenizer.load(minilm)


def small(tokenizer, kind=Encoder, **choices) -> Base:
    config = {Encoder: EncoderConfig, Decoder: DecoderConfig}[kind]
    model = kind(config(vocab=tokenizer.vocab_size, **{**SMALL, **choices})).eval()
    return Base("small", model, tokenizer, "peftlab", {})


def said(steps: list[Step], where: str) -> list[str]:
    return [step.what for step in steps if step.place == where]


def check_sizes(steps: list[Step], base: Base, text: str | tuple[str, str]) -> None:
    """Every dimension has the size that the configuration gives it."""
    c, T = base.config, base.encode([text]).ids.shape[1]
    size = {"batch": 1, "token": T, "query": T, "key": T, "width": c.dim, "embedding width": c.embedding_dim}
    size |= {"head": c.heads, "head width": c.dim // c.heads, "inner width": c.inner, "vocabulary": c.vocab}
    for step in steps:
        assert step.shape == tuple(size[name] for name in step.dims), step


def test_every_step_is_named_and_every_block_is_there(minilm):
    base = peftlab.load(minilm)
    steps = trace(base, TEXTS[1])
    check_sizes(steps, base, TEXTS[1])
    blocks = [[step.where for step in steps if step.layer == layer] for layer in range(6)]
    assert blocks == [[*ATTENTION, "ff.up", "ff.down", "ff"]] * 6
    short = shorten(steps)
    assert len(short) == len(steps) - 5 * len(blocks[0]) + 1
    assert said(short, "blocks 1 … 5") == ["the same, 5 times"]


@pytest.mark.parametrize("text", TEXTS, ids=["text", "pair"])
def test_a_text_and_a_pair_pass_the_same_parts_of_a_small_encoder(tokenizer, text):
    base = small(tokenizer, layers=2, pooler=True)
    steps = trace(base, text)
    check_sizes(steps, base, text)
    embedding = [f"embedding.{part}" for part in ("words", "segments", "positions", "norm")]
    first = [f"0.{where}" for where in [*ATTENTION, "ff.up", "ff.down", "ff"]]
    last = ["block 1", "pooler", "output.hidden"]
    assert [step.place for step in shorten(steps)] == ["tokens", *embedding, *first, *last]
    assert said(shorten(steps), "block 1") == ["the same again"]
    assert said(steps, "0.self.q") == ["queries Q = x·Wqᵀ + b"]
    heads = [step for step in steps if step.place == "0.self"]
    assert [step.what[0] for step in heads[:3]] == ["Q", "K", "V"]
    assert [step.dims[2] for step in heads[:3]] == ["query", "key", "key"]


@pytest.mark.parametrize("kind", [Encoder, Decoder])
def test_before_the_sublayers_the_norms_are_shown_and_the_embedding_has_none(tokenizer, kind):
    base = small(tokenizer, kind, residual="pre")
    steps = trace(base, TEXTS[0])
    check_sizes(steps, base, TEXTS[0])
    assert said(steps, "embedding.norm") == []
    assert said(steps, "embedding") == ["their sum"]
    block = ["self.norm", *ATTENTION, "ff.norm", "ff.up", "ff.down", "ff"]
    assert [step.where for step in steps if step.layer == 2] == block
    assert said(steps, "0.self.norm") == said(steps, "0.ff.norm") == ["norm(x)"]
    assert [said(steps, f"0.self.{part}")[0].split(" = ")[1] for part in "qkv"] == [
        f"norm(x)·W{part}ᵀ + b" for part in "qkv"
    ]
    assert said(steps, "0.ff.up") == ["norm(x)·W₁ᵀ + b"]
    assert said(steps, "0.ff") == ["x + f(norm(x))"]
    last = ["norm", "output.hidden", *(["output.scores"] if kind is Decoder else [])]
    assert [step.place for step in steps][-len(last) :] == last
    assert ("masked" in " ".join(said(steps, "0.self"))) == (kind is Decoder)


@pytest.mark.parametrize(
    ("residual", "words"), [("post", "x + f(x)"), ("pre", "x + f(x)"), ("none", "f(x)")], ids=lambda value: value
)
def test_without_norms_none_is_told(tokenizer, residual, words):
    steps = trace(small(tokenizer, residual=residual, norm="none", embedding_dim=8), TEXTS[0])
    assert not [step for step in steps if "norm" in step.what or "norm" in step.where]
    assert said(steps, "0.self")[-1] == said(steps, "2.ff")[-1] == words
    assert [step.dims[2] for step in steps if step.place == "embedding"] == ["embedding width"]


def test_queries_of_a_weighted_score_are_told_with_their_matrix(tokenizer):
    steps = trace(small(tokenizer, score="weighted"), TEXTS[0])
    queries, _, _, scores, *_ = said(steps, "0.self")
    assert queries.startswith("Q·W ")
    assert scores == "scores = Q·W·Kᵀ"
    assert said(trace(small(tokenizer), TEXTS[0]), "0.self")[0].startswith("Q in heads")


def test_what_a_model_does_without_is_not_told(tokenizer):
    steps = trace(small(tokenizer, segments=0, position="none", inner=0, layers=1, pooler=True), TEXTS[1])
    places = ["embedding.words", "embedding.norm", *[f"0.{where}" for where in ATTENTION], "pooler"]
    assert [step.place for step in steps] == ["tokens", *places, "output.hidden"]
    assert shorten(steps) == steps


def test_no_hook_is_left_behind(tokenizer):
    base = small(tokenizer)
    trace(base, TEXTS[0])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in base.model.modules())


def writer(kind: str, vocab: int) -> Seq2Seq | RecurrentSeq2Seq:
    if kind == "Seq2Seq":
        return Seq2Seq(seq2seq_config(start=1, end=2, vocab=vocab, **SMALL))
    return RecurrentSeq2Seq(RecurrentConfig(vocab=vocab, dim=16))


@pytest.mark.parametrize("kind", ["Seq2Seq", "RecurrentSeq2Seq"])
def test_an_encoder_decoder_is_refused_in_a_sentence(tokenizer, kind, tmp_path, monkeypatch, capsys):
    Base("s2s", writer(kind, tokenizer.vocab_size), tokenizer, "peftlab", {}).save(tmp_path / "s2s")
    monkeypatch.setattr(sys, "argv", ["peftlab", "trace", "a sentence", "--base", str(tmp_path / "s2s")])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert f"is a {kind}, which can't be traced: give an encoder or a decoder" in err


@pytest.mark.parametrize(
    ("kind", "config"),
    [(ReformerEncoder, ReformerConfig(vocab=50, **SMALL)), (ViT, ViTConfig(image=8, patch=4, **SMALL))],
    ids=["reformer", "vit"],
)
def test_models_without_a_table_of_scores_or_without_texts_are_refused(tokenizer, kind, config):
    with pytest.raises(UserError, match=f"small is a {kind.__name__}, which can't be traced: give an encoder"):
        trace(Base("small", kind(config), tokenizer, "peftlab", {}), TEXTS[0])


@pytest.mark.parametrize("text", ["no " * 7, ("no", "no " * 5)], ids=["text", "pair"])
def test_a_text_that_is_too_long_is_told_how_short_it_must_be(tokenizer, text):
    base = small(tokenizer, max_length=8)
    given = "text" if isinstance(text, str) else "pair"
    with pytest.raises(UserError, match=f"the {given} has 9 tokens with its marks: shorten it to 8, the most that sma"):
        trace(base, text)
    assert len(trace(base, "no " * 6)) == len(trace(base, ("no", "no " * 4)))
