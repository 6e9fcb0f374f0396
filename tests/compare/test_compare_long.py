"""A comparison on long documents with a Reformer as its base, our own or a published one; and what it can't carry."""

import csv
import json
import random
from pathlib import Path

import pytest
import transformers

from peftlab.compare import grid
from peftlab.compare.compare import Question, compare
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.models.own import make, save_own
from peftlab.train.artefact import open_run
from peftlab.train.config import make_config
from peftlab.train.run import run

WORDS = ["film", "scene", "actor", "minute", "plot", "music"]
LENGTH = 2048
SMALL = {"dim": 16, "layers": 2, "heads": 2, "inner": 32, "chunk": 64, "rounds": 1, "max_length": LENGTH}


@pytest.fixture(scope="module")
def documents(tmp_path_factory) -> Path:
    """Of 1,500 words and more, the verdict near the end."""
    path, draw = tmp_path_factory.mktemp("documents") / "documents.csv", random.Random(0)
    with path.open("w", newline="") as out:
        lines = csv.writer(out)
        lines.writerow(["review", "verdict"])
        for i in range(24):
            verdict = ("good", "bad")[i % 2]
            text = " ".join(draw.choices(WORDS, k=1500 + 10 * i))
            lines.writerow([f"{text} {verdict} {i}", verdict])
    return path


def tokenizer() -> Tokenizer:
    return Tokenizer.train_on([" ".join([*WORDS, "good bad 0123456789"])], vocab_size=80)


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Path:
    """The folder of a Reformer of our own that reads."""
    folder, words = tmp_path_factory.mktemp("own"), tokenizer()
    save_own(make({"kind": "reformer_encoder", **SMALL}, {"vocab": words.vocab_size, "pad": words.pad}), folder)
    words.save(folder)
    return folder


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """The same as `transformers` writes it."""
    folder, words = tmp_path_factory.mktemp("published"), tokenizer()
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "attention_head_size": 8, "feed_forward_size": 32}
    positions = {"axial_pos_shape": (32, 64), "axial_pos_embds_dim": (8, 8), "max_position_embeddings": LENGTH}
    kinds = {"attn_layers": ["local", "lsh"], "num_hashes": 1, "num_buckets": 32, "is_decoder": False}
    marks = {"vocab_size": words.vocab_size, "pad_token_id": words.pad}
    transformers.set_seed(0)
    config = transformers.ReformerConfig(**sizes, **positions, **kinds, **marks)
    transformers.ReformerModel(config).save_pretrained(folder)
    words.save(folder)
    return folder


def question(base: Path, file: Path, **choices) -> Question:
    task = {"name": str(file), "text": "review", "label": "verdict"}
    defaults = {"methods": ["lora", "full"], "seeds": 1, "steps": 2, "batch": 2, "base": str(base), "workers": 2}
    return Question([task], **(defaults | choices), overrides=[f"task.max_length={LENGTH}"])


@pytest.mark.slow
def test_methods_are_compared_on_long_documents(own, documents, tmp_path):
    comparison = compare(question(own, documents), tmp_path)
    assert [run.method for run in comparison.runs] == ["lora", "full"]
    for found in comparison.runs:
        assert found.status != "failed", found.note
        result = json.loads((Path(found.run) / "result.json").read_text())
        assert result["tokens_second"] * result["ms_step"] / 1e3 >= 2 * 1500, "nothing of two rows was cut off"


@pytest.mark.parametrize("kind", ["own", "published"])
@pytest.mark.parametrize(
    ("method", "pool"),
    [(name, "mean") for name in ("lora", "adapter", "prompt", "p_tuning", "bitfit", "full")] + [("lora", "first")],
)
def test_a_run_on_a_reformer_comes_back_from_its_folder(request, documents, tmp_path, kind, method, pool):
    base = request.getfixturevalue(kind)
    task = {"name": str(documents), "text": "review", "label": "verdict", "max_length": LENGTH}
    train = {"steps": 1, "batch": 2, "threads": 1, "evaluations": 1, "pool": pool}
    config = {"base": str(base), "task": task, "method": {"name": method}, "train": train}
    result = run(make_config(config), tmp_path / "run")
    assert 0 <= result["accuracy"] <= 1
    base, _ = open_run(tmp_path / "run")
    assert base.model(base.encode(["a good film"])).logits.shape == (1, 2)


def test_what_a_base_cannot_carry_is_told_before_anything_runs(own, documents, tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "start", lambda *_: pytest.fail("a run was started"))
    with pytest.raises(UserError) as caught:
        compare(question(own, documents, methods=["lora", "prefix", "full"], budget="seconds=9"), tmp_path)
    assert str(caught.value) == (
        f"base {own} can't carry prefix (prefix needs a kv site: this model has head, linear, norm, sublayer, tokens):"
        " leave out what it can't, by --methods lora,full"
    )
    with pytest.raises(UserError, match=r"can't carry prefix .* by --methods .*lora"):
        compare(question(own, documents, methods=None), tmp_path)
    with pytest.raises(UserError, match="by --methods full,head"):
        compare(question(own, documents, methods=["prefix"]), tmp_path)


def test_a_base_that_writes_is_told_too(documents, tmp_path):
    words = tokenizer()
    given = {"vocab": words.vocab_size, "pad": words.pad}
    save_own(make({"kind": "reformer", **SMALL}, given), tmp_path / "base")
    words.save(tmp_path / "base")
    with pytest.raises(UserError, match="is a ReformerDecoder, which has no place for a head: give an encoder"):
        compare(question(tmp_path / "base", documents), tmp_path / "out")
