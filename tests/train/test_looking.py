"""Where a finished run looks: the weights are the model's own, and each stands beside the token that it belongs to."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from small import films

from peftlab.data.batch import Batch, Pair
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.train.artefact import open_run
from peftlab.train.config import make_config
from peftlab.train.looking import look, readable
from peftlab.train.predict import answer_lines, open_finished
from peftlab.train.run import run

TEXTS = ["a wonderful film", "no fun at all, and filmmaking without wit"]
SEQ2SEQ = {"kind": "seq2seq", "dim": 32, "layers": 2, "heads": 4, "inner": 32, "dropout": 0.0, "init_std": 0.3}
RECURRENT = {"kind": "rnn", "dim": 32}


@pytest.fixture(scope="module")
def finished(tiny, films_file, tmp_path_factory):
    """Runs of a few steps, made when they are asked for: of a method, or of a model that translates."""
    made: dict[str, Path] = {}

    def finish(what: str | dict) -> Path:
        if (key := str(what)) not in made:
            made[key] = tmp_path_factory.mktemp("run") / "run"
            short = {"steps": 2, "evaluations": 1}
            config = (
                films(tiny, films_file, what, **short) if isinstance(what, str) else turning(made[key].parent, what)
            )
            run(config, made[key])
        return made[key]

    return finish


def turning(folder: Path, model: dict):
    """Letters, and the same from the last to the first."""
    lines = [f"{a} {b} {c}" for a in "abcde" for b in "fghij" for c in "klmno"]
    for part in ("train", "val", "test"):
        (folder / f"{part}.in").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{part}.out").write_text("".join(f"{line[::-1]}\n" for line in lines))
    task = {"name": str(folder), "direction": "in-out", "vocab": 300, "beam": 1, "test_limit": 2, "max_length": 30}
    train = {"steps": 40, "batch": 16, "lr": 5e-3, "threads": 1, "evaluations": 1, "precision": "fp32"}
    return make_config({"model": model, "translate": task, "train": train})


def test_a_base_that_was_not_changed_looks_where_stock_does(finished, tiny):
    model = transformers.BertModel.from_pretrained(tiny, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    for text, seen in zip(TEXTS, look(finished("head"), iter(TEXTS)), strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            expected = model(**inputs, output_attentions=True).attentions
        [maps] = seen.maps
        assert maps.rows == maps.columns == tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
        assert len(maps.layers) == len(expected)
        for weights, reference in zip(maps.layers, expected, strict=True):
            torch.testing.assert_close(weights, reference[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("method", "virtual"), [("lora", 0), ("prompt", 20), ("prefix", 20)])
def test_a_classifier_looks_as_its_model_does(finished, method, virtual):
    folder = finished(method)
    base = open_finished(folder).base  # with LoRA merged, whose sums differ in their last bits
    pairs = [*TEXTS, ("a wonderful film", "great fun for all")]
    found = look(folder, iter(pairs))
    assert [seen.answer["label"] for seen in found] == [each["label"] for each in answer_lines(folder, iter(pairs))]
    for text, seen in zip(pairs, found, strict=True):
        [answer] = answer_lines(folder, iter([text]))
        assert seen.answer == answer
        batch = base.encode([text])
        with torch.no_grad():
            expected = base.model(batch, attention=True).attention
        [maps] = seen.maps
        assert maps.title == "to itself"
        assert len(maps.rows) == len(maps.columns) == batch.ids.shape[1]
        for weights, reference in zip(maps.layers, expected, strict=True):
            assert torch.equal(weights, reference[0])
            assert weights.shape == (2, len(maps.rows), virtual + len(maps.columns))
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))


def test_a_translator_looks_as_its_model_does_and_each_row_is_named_by_what_it_writes(finished):
    folder = finished(SEQ2SEQ)
    base, _ = open_run(folder)
    model, tokenizer = base.model, base.tokenizer
    texts = ["a f k", "e j o"]
    found = look(folder, iter(texts))
    for text, seen in zip(texts, found, strict=True):
        assert [seen.answer] == list(answer_lines(folder, iter([text])))
        cross, own, source = seen.maps
        assert [maps.title for maps in seen.maps] == ["decoder to source", "decoder to itself", "encoder to itself"]
        ids = [model.marks.start, *tokenizer.ids(text), model.marks.end]
        assert cross.columns == source.rows == source.columns == readable(tokenizer, ids)
        assert own.rows == own.columns == ["<s>", *cross.rows[:-1]]
        written = [model.marks.start]  # without a beam it writes the likeliest token each time: so can we
        with torch.no_grad():
            for _ in cross.rows:
                pair = Pair(*(Batch(torch.tensor([row]), torch.ones(1, len(row))) for row in (ids, written)))
                out = model(pair, attention=True)
                out.logits[..., model.marks.pad] = -torch.inf
                written.append(int(out.logits[0, -1].argmax()))
        assert cross.rows == readable(tokenizer, written[1:])
        for maps, expected in ((cross, out.cross), (own, out.attention), (source, out.source)):
            for weights, reference in zip(maps.layers, expected, strict=True):
                torch.testing.assert_close(weights, reference[0], rtol=0, atol=1e-6)
                torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
        assert torch.equal(own.layers[0], own.layers[0].tril())


def test_a_recurrent_model_shows_its_one_head_or_says_that_it_has_none(finished):
    [seen] = look(finished(RECURRENT), iter(["a f k"]))
    [maps] = seen.maps
    assert maps.title == "decoder to source"
    assert [layer.shape for layer in maps.layers] == [(1, len(maps.rows), len(maps.columns))]
    torch.testing.assert_close(maps.layers[0].sum(-1), torch.ones(1, len(maps.rows)))
    with pytest.raises(UserError, match="this model has no attention to show"):
        look(finished(RECURRENT | {"attention": "none"}), iter(["a f k"]))


def test_a_text_without_words_has_nothing_to_look_at(finished):
    with pytest.warns(UserWarning, match="line 2 is empty"):
        first, second = look(finished(RECURRENT), iter(["a", "  "]))
    assert first.maps
    assert second.maps == []
    assert second.answer == {"text": "  ", "translation": ""}


def test_tokens_are_written_as_a_reader_knows_them(minilm):
    bpe = Tokenizer.train_on(["two red shirts"] * 9, "bpe", vocab_size=300)
    ids = bpe.encode(["two 漢 ü"]).ids[0].tolist()
    assert readable(bpe, ids) == ["<s>", "two", "·", "…", "…", "漢", "·", "…", "ü", "</s>"]
    assert readable(bpe, bpe.ids(" two")) == ["·", "two"]
    wordpiece = Tokenizer.load(minilm)
    assert readable(wordpiece, wordpiece.ids("tokenization, don't")) == ["token", "##ization", ",", "don", "'", "t"]


def test_more_texts_than_anybody_looks_at_are_refused_before_a_run_is_opened():
    endless = iter(lambda: "a text", None)
    with pytest.raises(UserError, match="attention is shown for at most 20 texts, and there are more"):
        look(Path("nowhere"), endless)


def test_the_command_line_answers_as_before_and_writes_the_page(finished, tmp_path):
    folder = finished("lora")
    command = [sys.executable, "-m", "peftlab", "predict", str(folder), *TEXTS, "--json", "--attention", "in/page.html"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    for line, answer in zip(lines, answer_lines(folder, iter(TEXTS)), strict=True):
        assert (line["text"], line["label"]) == (answer["text"], answer["label"])
        assert line["logits"] == pytest.approx(answer["logits"], abs=1e-5)
    page = (tmp_path / "in" / "page.html").read_text(encoding="utf-8")
    assert all(text in page for text in TEXTS)
