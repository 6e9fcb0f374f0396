"""A finished run elsewhere: in `sentence-transformers`, `transformers` and stock `peft`, and what can't go there."""

import re
from pathlib import Path

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from small import write_films

import peftlab
from peftlab.errors import UserError
from peftlab.train.artefact import ADAPTER
from peftlab.train.config import make_config
from peftlab.train.export import export_run
from peftlab.train.predict import answer_lines, open_finished
from peftlab.train.run import run

TEXTS = ["a wonderful film", "a dull film", "hm", "it goes on and on and " * 8]
MAX_LENGTH = 24
"""shorter than the last text"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A function that gives the folder of a short run, made once for all tests of this file."""
    file, made = write_films(tmp_path_factory.mktemp("data") / "films.csv"), {}
    task = {"name": str(file), "text": "review", "label": "verdict", "max_length": MAX_LENGTH}
    short = {"steps": 4, "batch": 8, "evaluations": 1, "threads": 1, "precision": "fp32"}  # as the others compute

    def folder_of(name: str, pool: str = "mean", **settings) -> Path:
        key = (name, pool, *settings.items())
        if key not in made:
            made[key] = tmp_path_factory.mktemp(name) / "run"
            train = short | {"pool": pool, "lr": 1e-3 if name == "full" else 1e-2}
            run(make_config({"task": task, "method": {"name": name} | settings, "train": train}), made[key])
        return made[key]

    return folder_of


def logits(run: Path) -> torch.Tensor:
    found = torch.tensor([answer["logits"] for answer in answer_lines(run, iter(TEXTS))])
    assert found.std() > 1e-3
    return found


def tokens(folder: Path):
    options = {"padding": True, "truncation": True, "max_length": MAX_LENGTH, "return_tensors": "pt"}
    return transformers.AutoTokenizer.from_pretrained(folder)(TEXTS, **options)


@pytest.mark.parametrize(("name", "merges"), [("lora", True), ("bitfit", True), ("adapter", False), ("full", True)])
def test_predict_merges_what_it_can_and_answers_the_same(name, merges, finished):
    trained = open_finished(finished(name))
    model, found = trained.base.model, logits(finished(name))
    assert model.merged == ((ADAPTER,) if merges else ())
    if merges:
        peftlab.unmerge(model, ADAPTER)
    beside = torch.tensor([answer["logits"] for answer in trained.answer(TEXTS, 0)])
    torch.testing.assert_close(found, beside, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["lora", "bitfit", "full", "head"])
def test_a_merged_run_is_a_sentence_transformer_that_gives_logits(name, finished, tmp_path):
    export_run(finished(name), tmp_path / "merged", "merged")
    model = SentenceTransformer(str(tmp_path / "merged"), device="cpu")
    there = model.encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(there, logits(finished(name)), rtol=0, atol=1e-4)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "merged")
    assert (config.id2label, config.label2id) == ({0: "bad", 1: "good"}, {"bad": 0, "good": 1})
    peftlab.load(tmp_path / "merged")  # as a base, its manifest included


def test_an_adapter_of_a_run_gives_the_logits_with_stock_peft_and_its_head_beside(finished, minilm, tmp_path):
    folder = tmp_path / "peft"
    export_run(finished("lora"), folder, "peft")
    model = peft.PeftModel.from_pretrained(transformers.AutoModel.from_pretrained(minilm), folder).eval()
    encoded, head = tokens(minilm), load_file(folder / "2_Dense" / "model.safetensors")
    with torch.no_grad():
        hidden, mask = model(**encoded).last_hidden_state, encoded["attention_mask"][..., None]
    mean = (hidden * mask).sum(1) / mask.sum(1)
    there = mean @ head["linear.weight"].T + head["linear.bias"]
    torch.testing.assert_close(there, logits(finished("lora")), rtol=0, atol=1e-4)
    base = peftlab.load(minilm)
    peftlab.load_adapter(base, folder, name="again")
    assert base.model.adapters["again"].head == peftlab.Classifier(labels=("bad", "good"), pool="mean")


def test_a_run_that_reads_the_first_token_is_a_classifier_of_transformers(finished, minilm, tmp_path):
    for to in ("peft", "merged"):
        export_run(finished("lora", pool="first"), tmp_path / to, to)
    auto = transformers.AutoModelForSequenceClassification
    merged = auto.from_pretrained(tmp_path / "merged").eval()
    stock = peft.PeftModel.from_pretrained(auto.from_pretrained(minilm, num_labels=2), tmp_path / "peft").eval()
    expected = logits(finished("lora", pool="first"))
    for model in (merged, stock):
        with torch.no_grad():
            there = model(**tokens(tmp_path / "merged")).logits
        torch.testing.assert_close(there, expected, rtol=0, atol=1e-4)
    assert merged.config.id2label == {0: "bad", 1: "good"}


STOCK_PROMPT = {"name": "prompt", "layout": "peft", "tokens": 3}


@pytest.mark.parametrize(
    ("settings", "to", "reason", "instead"),
    [
        ({"name": "full"}, "peft", "full puts nothing into the base that an adapter could hold", "use --to merged"),
        ({"name": "head"}, "peft", "head puts nothing into the base that an adapter could hold", "use --to merged"),
        ({"name": "bitfit"}, "peft", "stock peft has no bitfit", "use --to merged"),
        ({"name": "adapter"}, "peft", "stock peft has no adapter", "load RUN/adapter with peftlab.load_adapter"),
        ({"name": "adapter"}, "merged", "adapter is no change of the base's weights", "load RUN/adapter with"),
        (
            {"name": "prompt"},
            "peft",
            'train with layout = "peft" and pool = "first"',
            "load RUN/adapter with peftlab.load_adapter",
        ),
        ({"name": "prefix"}, "merged", "prefix is no change of the base's weights", "load RUN/adapter with"),
        (STOCK_PROMPT, "peft", 'train with pool = "first"', "load RUN/adapter with peftlab.load_adapter"),
        (STOCK_PROMPT | {"pool": "first"}, "merged", "prompt is no change of the base's weights", "use --to peft"),
    ],
)
def test_what_has_no_place_elsewhere_is_told_with_what_to_do_instead(settings, to, reason, instead, finished, tmp_path):
    folder = finished(**settings)
    with pytest.raises(UserError, match=re.escape(f"can't be exported with --to {to}: ")) as caught:
        export_run(folder, tmp_path / "out", to)
    told = str(caught.value).replace(str(folder), "RUN")
    assert reason in told
    assert f"; as it is, {instead}" in told
    assert "\n" not in told
    assert not (tmp_path / "out").exists()
