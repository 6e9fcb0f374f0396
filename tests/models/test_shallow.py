"""A base of which the first blocks are used alone: as `transformers` has it, saved, trained and opened again."""

import pytest
import torch
import transformers
from typer.testing import CliRunner

import peftlab
from peftlab.cli import app
from peftlab.data.conllu import Sentence, Tree, read_conllu, write_conllu
from peftlab.errors import UserError
from peftlab.train.artefact import open_run
from peftlab.train.config import make_config
from peftlab.train.predict import answer_lines
from peftlab.train.run import run

TEXTS = ["the dog sees a film", "a house"]


@pytest.fixture(scope="module")
def treebank(tmp_path_factory):
    folder = tmp_path_factory.mktemp("treebank")
    given = Sentence.of(["the", "dog", "sees", "a", "film"]).with_tags(["DET", "NOUN", "VERB", "DET", "NOUN"])
    tree = Tree([2, 3, 0, 5, 3], ["det", "nsubj", "root", "det", "obj"])
    for part, count in (("train", 24), ("dev", 4), ("test", 4)):
        write_conllu(folder / f"{part}.conllu", [given.with_tree(tree)] * count)
    return folder


def test_the_first_blocks_are_what_transformers_says_of_them(tiny, tmp_path):
    base = peftlab.load(tiny)
    layers = base.config.layers - 1
    assert layers >= 1
    stock = transformers.AutoModel.from_pretrained(tiny).eval()
    base.shallow(layers)
    assert base.config.layers == layers
    batch = base.encode(TEXTS)
    with torch.no_grad():
        ours = base.model(batch).hidden
        theirs = stock(batch.ids, attention_mask=batch.mask.long(), output_hidden_states=True).hidden_states[layers]
    real = batch.mask
    torch.testing.assert_close(ours[real], theirs[real], rtol=0, atol=1e-5)
    base.save(tmp_path / "short")
    again = transformers.AutoModel.from_pretrained(tmp_path / "short").eval()
    with torch.no_grad():
        found = again(batch.ids, attention_mask=batch.mask.long()).last_hidden_state
    torch.testing.assert_close(ours[real], found[real], rtol=0, atol=1e-5)


@pytest.mark.parametrize("layers", [0, 9])
def test_a_number_that_there_is_not_is_refused(tiny, layers):
    with pytest.raises(UserError, match=f"layers is {layers} and there are"):
        peftlab.load(tiny).shallow(layers)


def test_a_model_without_blocks_is_refused():
    rnn = peftlab.models.base.Base("mine", object(), None, "none", {})
    with pytest.raises(UserError, match="no blocks can be left out"):
        rnn.shallow(1)


@pytest.mark.parametrize("section", ["tag", "parse"])
@pytest.mark.parametrize("method", ["lora", "prefix", "full"])
def test_a_run_on_the_first_block_comes_back_from_its_folder(tiny, treebank, tmp_path, section, method):
    task = {"name": str(treebank), "layers": 1} | ({"arc": 8, "label": 4} if section == "parse" else {})
    train = {"steps": 6, "batch": 8, "evaluations": 1, "threads": 1, "lr": 1e-2}
    content = {"base": str(tiny), section: task, "method": {"name": method}, "train": train}
    result = run(make_config(content, "test"), tmp_path / "run")
    base, _ = open_run(tmp_path / "run")
    assert len(base.model.blocks) == 1
    answers = list(answer_lines(tmp_path / "run", iter(read_conllu(treebank / "test.conllu"))))
    (tested,) = result["predictions"].values()
    said = [answer["tags"] if section == "tag" else (answer["heads"], answer["relations"]) for answer in answers]
    assert said == [row if section == "tag" else tuple(map(list, row)) for row in tested]


def test_compare_refuses_a_number_that_there_is_not_before_it_starts(tiny, treebank, tmp_path):
    told = ["compare", "--parse", str(treebank), "--base", str(tiny), "--set", "parse.layers=9"]
    done = CliRunner().invoke(app, [*told, "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, UserError)
    assert "layers is 9" in str(done.exception)
    assert not list(tmp_path.rglob("result.json"))
