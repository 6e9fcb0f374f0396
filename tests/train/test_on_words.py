"""Tagging and parsing from a configuration to a run's folder and back: small treebanks, files, mistakes."""

import bz2
import gzip
import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest
from small import films, left_alone_and_interrupted
from typer.testing import CliRunner

from peftlab.cli import app
from peftlab.data.conllu import Sentence, Tree, read_conllu, write_conllu
from peftlab.data.files import read_object
from peftlab.errors import UserError
from peftlab.train.artefact import open_run
from peftlab.train.config import Config, make_config
from peftlab.train.export import export_run
from peftlab.train.predict import answer_lines
from peftlab.train.reading import read_lines
from peftlab.train.run import open_work, run

WORDS = {"DET": ["the", "a", "every"], "NOUN": ["dog", "film", "house", "cat"], "VERB": ["sees", "likes", "finds"]}
SHAPE = ["DET", "NOUN", "VERB", "DET", "NOUN"]
TREE = Tree([2, 3, 0, 5, 3], ["det", "nsubj", "root", "det", "obj"])


def sentence(draw: random.Random) -> Sentence:
    return Sentence.of([draw.choice(WORDS[tag]) for tag in SHAPE]).with_tags(SHAPE).with_tree(TREE)


@pytest.fixture(scope="module")
def treebank(tmp_path_factory) -> Path:
    """Sentences of one shape, under a treebank's names."""
    folder, draw = tmp_path_factory.mktemp("treebank"), random.Random(0)
    for part, count in (("train", 64), ("dev", 10), ("test", 20)):
        write_conllu(folder / f"xx_small-ud-{part}.conllu", [sentence(draw) for _ in range(count)])
    return folder


@pytest.fixture(scope="module")
def entities(tmp_path_factory) -> Path:
    """A file of two columns in which persons have two words, the first I- of some to be repaired."""
    draw, lines = random.Random(0), []
    for i in range(60):
        first = "I-person" if i % 10 == 0 else "B-person"
        lines += [f"{draw.choice(WORDS['VERB'])}\tO", f"john\t{first}", "smith\tI-person", "here\tO", ""]
    path = tmp_path_factory.mktemp("names") / "names.conll"
    path.write_text("\n".join(lines) + "\n")
    return path


def asked(base: Path, section: str, name: Path, method: str = "lora", settings=(), **train) -> Config:
    short = {"steps": 80, "batch": 16, "lr": 3e-2, "head_lr": 3e-2, "evaluations": 2, "threads": 1, "precision": "fp32"}
    task = {"name": str(name)} | ({"arc": 16, "label": 8} if section == "parse" else {}) | dict(settings)
    return make_config({"base": str(base), section: task, "method": {"name": method}, "train": short | train})


@pytest.fixture(scope="module")
def tagger(tiny, treebank, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tagger"
    run(asked(tiny, "tag", treebank), folder)
    return folder


@pytest.fixture(scope="module")
def parser(tiny, treebank, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "parser"
    run(asked(tiny, "parse", treebank), folder)
    return folder


def test_a_tagger_learns_and_answers_as_it_was_tested(tagger, treebank):
    result = read_object(tagger / "result.json")
    assert result["accuracy"] > 0.95
    test = read_conllu(treebank / "xx_small-ud-test.conllu")
    given = [name for row in result["predictions"]["test"] for name in row]
    right = [name for s in test for name in s.tags()]
    assert result["accuracy"] == sum(a == b for a, b in zip(given, right, strict=True)) / 100
    counts = {"sentences": 20, "words": 100, "lost": 0, "blank": 0, "unseen": 0, "repaired": 0}
    assert result["counts"]["test"] == counts
    answers = list(answer_lines(tagger, iter(" ".join(s.words) for s in test)))
    assert [answer["tags"] for answer in answers] == result["predictions"]["test"]
    assert [answer["words"] for answer in answers] == [s.words for s in test]


def test_a_parser_learns_and_answers_as_it_was_tested(parser, treebank):
    result = read_object(parser / "result.json")
    assert result["las"] > 0.9
    assert result["uas"] >= result["las"]
    test = treebank / "xx_small-ud-test.conllu"
    right = sum(
        (a, b) == (c, d)
        for (heads, relations), s in zip(result["predictions"]["test"], read_conllu(test), strict=True)
        for a, b, c, d in zip(heads, relations, *s.tree(), strict=True)
    )
    assert result["las"] == right / 100
    answers = list(answer_lines(parser, read_lines(None, test, pair=False)))
    assert [[answer["heads"], answer["relations"]] for answer in answers] == result["predictions"]["test"]


def test_entities_are_scored_by_f1_and_repaired_tags_counted(tiny, entities, tmp_path):
    result = run(asked(tiny, "tag", entities), tmp_path / "run")
    assert {"accuracy", "precision", "recall", "f1"} <= result.keys()
    assert result["f1"] > 0.9
    counts = result["counts"]
    assert {name: part["sentences"] for name, part in counts.items()} == {"train": 49, "validation": 5, "test": 6}
    assert sum(part["repaired"] for part in counts.values()) == 6
    [answer] = answer_lines(tmp_path / "run", iter(["finds john smith here"]))
    assert answer["tags"] == ["O", "B-person", "I-person", "O"]


def write_parts(folder: Path, **tags: str) -> None:
    """A file of two columns for each part, with three sentences of these tags."""
    for part, row in tags.items():
        text = "".join(f"w{i}\t{tag}\n" for i, tag in enumerate(row.split())) + "\n"
        (folder / f"{part}.conll").write_text(3 * text)


def test_every_part_says_whether_tags_are_bio(tiny, tmp_path):
    write_parts(tmp_path, train="O O", dev="O B-x", test="O I-x")
    work = open_work(asked(tiny, "tag", tmp_path))
    assert (work.names, work.metric, work.task().bio) == (("O",), "f1", True)
    limited = open_work(asked(tiny, "tag", tmp_path, settings={"limit": 1, "test_limit": 1}))
    assert limited.metric == "f1"
    write_parts(tmp_path, train="O B-x", dev="O B-x", test="O S-x")
    with pytest.raises(UserError, match=r"test.conll, in the sentence from line 1: the tag 'S-x' is not O, B-type"):
        open_work(asked(tiny, "tag", tmp_path))


@pytest.mark.parametrize("section", ["tag", "parse"])
@pytest.mark.parametrize("method", ["full", "prefix", "prompt", "head"])
def test_every_kind_of_method_comes_back_from_its_folder(tiny, treebank, tmp_path, section, method):
    config = asked(tiny, section, treebank, method, steps=3, evaluations=1)
    result = run(config, tmp_path / "run")
    lines = (" ".join(s.words) for s in read_conllu(treebank / "xx_small-ud-test.conllu"))
    keys = ["tags"] if section == "tag" else ["heads", "relations"]
    found = [[answer[key] for key in keys] for answer in answer_lines(tmp_path / "run", lines)]
    assert found == [[row] if section == "tag" else list(row) for row in result["predictions"]["test"]]
    [base, _] = open_run(tmp_path / "run")
    assert base.model.adapters["mine"].head.kind == {"tag": "tagger", "parse": "parser"}[section]


def test_an_interrupted_run_ends_with_the_same_bits(tiny, treebank, tmp_path):
    config = asked(tiny, "parse", treebank, steps=8, evaluations=2, checkpoint=0)
    whole, again = left_alone_and_interrupted(config, tmp_path, at=5)
    assert (whole["curve"], whole["las"]) == (again["curve"], again["las"])
    files = [(tmp_path / name / "adapter/adapter_model.safetensors").read_bytes() for name in ("whole", "again")]
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("section", "given", "expected"), [("parse", {"head_lr": None}, 2e-3), ("tag", {"head_lr": 0.05}, 0.05)]
)
def test_the_head_has_a_rate_of_its_own(tiny, treebank, section, given, expected):
    training = open_work(asked(tiny, section, treebank, lr=0.01, **given)).prepare()
    head = {id(parameter) for parameter in training.model.head_parameters()}
    for group in training.optimizer.param_groups:
        of_head = {id(parameter) in head for parameter in group["params"]}
        assert group["peak"] == (expected if of_head == {True} else 0.01)
        assert len(of_head) == 1


def test_what_is_cut_off_is_wrong_and_counted(tiny, treebank, tmp_path):
    short = asked(tiny, "tag", treebank, settings={"max_length": 5, "limit": 20, "test_limit": 7}, steps=2)
    result = run(short, tmp_path / "run")
    assert result["counts"]["test"] == {"sentences": 7, "words": 35, "lost": 14, "blank": 0, "unseen": 0, "repaired": 0}
    assert result["counts"]["train"]["sentences"] == 20
    assert result["accuracy"] <= 21 / 35
    assert result["note"].endswith("; of 35 words of test 14 cut off")
    done = runner.invoke(app, ["train", "-", "--out", str(tmp_path / "run")], input=short.to_toml())
    assert re.search(r"accuracy 0\.\d{4} \(of 100 words of train 40 cut off; .*\), .* parameters trained", done.stdout)
    with pytest.warns(UserWarning, match=r"line 1: the sentence has more than 5 tokens: its last 2 words are not read"):
        [answer] = answer_lines(tmp_path / "run", iter(["the dog sees a cat"]))
    assert answer["tags"][3:] == ["_", "_"]


def test_a_tag_that_was_not_trained_on_is_counted_and_wrong(tiny, treebank, tmp_path):
    for part in ("train", "dev", "test"):
        text = (treebank / f"xx_small-ud-{part}.conllu").read_text()
        (tmp_path / f"{part}.conllu").write_text(text.replace("VERB", "AUX") if part == "test" else text)
    result = run(asked(tiny, "tag", tmp_path, steps=2), tmp_path / "run")
    assert result["counts"]["test"]["unseen"] == 20
    assert result["note"] == "of 100 words of test 20 with a label unseen in training"
    assert result["accuracy"] <= 0.8


def test_the_most_frequent_answer_is_what_counting_gives(tiny, treebank):
    test = read_conllu(treebank / "xx_small-ud-test.conllu")
    tagging, parsing = (open_work(asked(tiny, section, treebank)) for section in ("tag", "parse"))
    tags = Counter(tag for s in test for tag in s.tags())
    assert tagging.majority(tagging.data.tests["test"]) == max(tags.values()) / 100
    assert parsing.majority(parsing.data.tests["test"]) == 0.4  # two of five: a det of the next word


# The command line

runner = CliRunner()


def test_predict_prints_words_with_tags_or_json(tagger):
    done = runner.invoke(app, ["predict", str(tagger), "the dog sees a cat", "a film"])
    first, second = done.stdout.splitlines()
    assert first == "the/DET dog/NOUN sees/VERB a/DET cat/NOUN"
    assert second.split()[0] == "a/DET"
    done = runner.invoke(app, ["predict", str(tagger), "--json", "-"], input="the dog sees a cat\n")
    answer = json.loads(done.stdout)
    assert answer == {"words": ["the", "dog", "sees", "a", "cat"], "tags": SHAPE}


RICH = """# sent_id = 1
# text = the dogs see
1\tthe\tthe\tDET\tDT\t_\t0\t_\t_\t_
2-3\tdogsee\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
2\tdog\tdog\tNOUN\tNN\tNumber=Sing\t_\t_\t_\t_
2.1\tthat\tthat\tPRON\t_\t_\t_\t_\t0:root\t_
3\tsees\tsee\tVERB\tVBZ\t_\t_\t_\t_\t_
4\ta\ta\tDET\tDT\t_\t_\t_\t_\t_
5\tcat\tcat\tNOUN\tNN\t_\t_\t_\t_\tNote=x y
"""


def test_predict_writes_conllu_and_keeps_what_it_did_not_ask_for(parser, tmp_path):
    path = tmp_path / "rich.conllu"
    path.write_text(RICH)  # without the blank line at its end
    done = runner.invoke(app, ["predict", str(parser), "--file", str(path)])
    assert done.exit_code == 0, done.stderr
    (tmp_path / "out.conllu").write_text(done.stdout)
    [found] = read_conllu(tmp_path / "out.conllu")
    assert found.tree() == TREE
    before, after = ([line.split("\t") for line in text.splitlines()] for text in (RICH, done.stdout))
    assert after[-1] == [""]
    for old, new in zip(before, after[:-1], strict=True):
        changed = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        assert set(changed) <= ({6, 7} if old[0].isdigit() else set())
    from_text = runner.invoke(app, ["predict", str(parser), "the dog sees a cat"]).stdout
    (tmp_path / "text.conllu").write_text(from_text)
    assert read_conllu(tmp_path / "text.conllu")[0].tree() == TREE


LINES = [["the", "dog", "sees"], ["a", "cat"]]
FORMS = {
    "a.conll": "\n".join("".join(f"{word}\tO\n" for word in words) for words in LINES),
    "a.jsonl": "".join(json.dumps({"words": words}) + "\n" for words in LINES),
    "a.conllu": "".join(Sentence.of(words).text for words in LINES),
}
PACKED = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}


@pytest.mark.parametrize("packing", PACKED)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("kind", ["tagger", "parser"])
def test_predict_reads_what_train_reads(kind, name, packing, tmp_path, request):
    path = tmp_path / f"{name}{packing}"
    path.write_bytes(PACKED[packing](FORMS[name].encode()))
    folder = str(request.getfixturevalue(kind))
    done = runner.invoke(app, ["predict", folder, "--file", str(path), "--json"])
    alone = runner.invoke(app, ["predict", folder, *map(" ".join, LINES), "--json"])
    assert done.exit_code == 0, done.exception
    assert done.stdout == alone.stdout
    assert [json.loads(line)["words"] for line in done.stdout.splitlines()] == LINES


def test_predict_reads_conllu_from_standard_input(parser, tagger):
    done = runner.invoke(app, ["predict", str(parser)], input=RICH)
    assert done.stdout.splitlines()[1] == "# text = the dogs see"
    assert "2.1\tthat\tthat\tPRON" in done.stdout
    done = runner.invoke(app, ["predict", str(tagger)], input=RICH)
    assert done.stdout.split()[0] == "the/DET"
    done = runner.invoke(app, ["predict", str(parser)], input=RICH.replace("\n3\t", "\n4\t"))
    assert "standard input, line 7: its id is '4' where 3 is due" in str(done.exception)
    done = runner.invoke(app, ["predict", str(tagger), "--json"], input="# a comment?\nthe dog\n")
    assert [json.loads(line)["words"] for line in done.stdout.splitlines()] == [["#", "a", "comment?"], ["the", "dog"]]


def test_a_parser_keeps_the_ends_of_lines(parser, tmp_path):
    path = tmp_path / "rich.conllu"
    path.write_bytes(RICH.replace("\n", "\r\n").encode())
    [answer] = answer_lines(parser, read_lines(None, path, pair=False))
    assert answer["conllu"].count("\n") == answer["conllu"].count("\r\n") == RICH.count("\n") + 1


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b'{"words": ["a"]}\n{"words": ["a\\tb"]}\n', r"a.jsonl, line 2: it is not .* without tabs"),
        ("a.jsonl", b'{"text": "a b"}\n', r"a.jsonl, line 1: it is not {\"words\": \[…\]}"),
        ("a.conll", b"# 1\na\tO\n", r"a.conll, line 1: '# 1' is not a word and its tag"),
        ("a.txt.gz", gzip.compress(b"a b\n", mtime=0), r"a.txt.gz is packed: unpack it"),
        ("x" * 5000, None, r"x is missing: give a file"),
    ],
)
def test_a_file_that_predict_cannot_read_is_told(name, content, says, tagger, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = runner.invoke(app, ["predict", str(tagger), "--file", str(tmp_path / name)])
    assert isinstance(done.exception, UserError), done.exception
    assert re.search(says, str(done.exception))


def test_a_line_without_words_is_told_and_left_out(parser):
    with pytest.warns(UserWarning, match="line 2 has no words: it is left out"):
        answers = list(answer_lines(parser, iter(["the dog", "  ", "a cat sees"])))
    assert [len(answer["words"]) for answer in answers] == [2, 3]


@pytest.mark.parametrize("kind", ["tagger", "parser"])
def test_predict_draws_a_page(kind, tmp_path, request):
    page = tmp_path / "page.html"
    folder = request.getfixturevalue(kind)
    done = runner.invoke(app, ["predict", str(folder), "the <b>dog</b> sees a cat", "--html", str(page)])
    assert done.exit_code == 0, done.stderr
    text = page.read_text()
    assert "&lt;b&gt;dog&lt;/b&gt;" in text
    assert "<b>dog" not in text
    assert ("<mark" in text) == (kind == "tagger")
    assert text.count('class="arrow"') == (5 if kind == "parser" else 0)


@pytest.mark.parametrize("kind", ["tagger", "parser"])
@pytest.mark.parametrize("to", ["peft", "merged"])
def test_an_export_is_refused_in_one_sentence(kind, to, tmp_path, request):
    folder = request.getfixturevalue(kind)
    with pytest.raises(UserError, match=rf"--to {to}: a {kind}'s head is kept in our own format; as it is, load"):
        export_run(folder, tmp_path / "out", to)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tag": {"name": "TREEBANK", "column": "pos"}}, r"tag.column in the configuration is 'pos'"),
        ({"tag": {"name": "NAMES", "column": "xpos"}}, r"names.conll has one tag a word: leave out the column, 'xpos'"),
        ({"parse": {"name": "NAMES"}}, r"names.conll has no trees: its name must end in .conllu"),
        ({"parse": {"name": "TREEBANK", "arc": 0}}, r"parse.arc in the configuration is 0"),
        ({"tag": {"name": "ud-english-ewtt"}}, r"did you mean 'ud-english-ewt'"),
        ({"tag": {"name": "EMPTY"}}, r"there is no file .*train.conllu"),
        ({"tag": {}, "parse": {}}, r"has \[tag\] and \[parse\]: a run has one task"),
        ({"tag": {"name": "TREEBANK"}, "model": {"kind": "decoder"}}, r"a \[model\] of one's own is none"),
        ({"tag": {"name": "TREEBANK", "column": "xpos"}}, r"train.conllu, line 1: the word has no tag: column 5"),
    ],
)
def test_a_mistake_is_one_sentence(settings, says, tiny, treebank, entities, tmp_path):
    (tmp_path / "empty").mkdir()
    names = {"TREEBANK": str(treebank), "NAMES": str(entities), "EMPTY": str(tmp_path / "empty")}
    for section in settings.values():
        section.update({key: names.get(value, value) for key, value in section.items()})
    with pytest.raises(UserError, match=says):
        open_work(make_config({"base": str(tiny), **settings}))


def test_a_treebank_is_found_by_its_short_name(tiny, treebank, tmp_path, monkeypatch):
    (tmp_path / "ud-english-ewt").symlink_to(treebank)
    monkeypatch.setenv("PEFTLAB_DATA", str(tmp_path))
    assert len(open_work(asked(tiny, "tag", Path("ud-english-ewt"))).data.train) == 64
    says = r"unknown data 'wnut17'.* nor a hub id.*: put a folder of that name with train, dev .* \$PEFTLAB_DATA names"
    with pytest.raises(UserError, match=says):
        open_work(asked(tiny, "tag", Path("wnut17")))
    (tmp_path / "wnut17").symlink_to(treebank)
    assert open_work(asked(tiny, "tag", Path("wnut17"))).metric == "accuracy"
    for name in ("x" * 5000, "a\0b", ""):
        with pytest.raises(UserError, match="unknown data"):
            open_work(make_config({"base": str(tiny), "tag": {"name": name}}))


def test_a_classifier_reads_lines_and_draws_no_words(tiny, films_file, tmp_path):
    run(films(tiny, films_file), tmp_path / "run")
    for name, text in FORMS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    done = runner.invoke(app, ["predict", str(tmp_path / "run"), "--file", str(tmp_path / "a.jsonl"), "--json"])
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == FORMS["a.jsonl"].splitlines()
    done = runner.invoke(app, ["predict", str(tmp_path / "run"), "--file", str(tmp_path / "a.conllu"), "--json"])
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == ["the dog sees", "a cat"]
    done = runner.invoke(app, ["predict", str(tmp_path / "run"), "--file", str(tmp_path / "a.jsonl.gz")])
    assert "a.jsonl.gz is packed: unpack it" in str(done.exception)
    done = runner.invoke(app, ["predict", str(tmp_path / "run"), "a film", "--html", str(tmp_path / "page.html")])
    assert "--html draws what is said of words" in str(done.exception)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("\n3\t", "\n4\t", r"train.conllu, line 3: its id is '4' where 3 is due"),
        ("\t0\troot", "\t1\troot", r"train.conllu, line 1: a sentence begins that has no root"),
        ("\t5\tdet", "\t0\tdet", r"train.conllu, line 4: a second root, after word 3"),
        ("\t5\tdet", "\t9\tdet", r"train.conllu, line 4: its head '9' is not a token"),
        ("1\t", "1\t\t", r"train.conllu, line 1: it has 11 columns"),
    ],
)
def test_a_broken_line_is_told_by_file_and_line(old, new, says, tiny, treebank, tmp_path):
    for part in ("train", "dev", "test"):
        text = (treebank / f"xx_small-ud-{part}.conllu").read_text()
        (tmp_path / f"{part}.conllu").write_text(text.replace(old, new, 1) if part == "train" else text)
    (tmp_path / "parse.toml").write_text(f'base = "{tiny}"\n[parse]\nname = "{tmp_path}"\n')
    done = runner.invoke(app, ["train", str(tmp_path / "parse.toml"), "--out", str(tmp_path / "run")])
    assert isinstance(done.exception, UserError)
    assert re.search(says, str(done.exception)), done.exception
    assert not (tmp_path / "run").exists()


def test_a_word_that_becomes_no_subword_is_tagged_and_counted(tiny, treebank, tagger, tmp_path):
    for part in ("train", "dev", "test"):
        text = (treebank / f"xx_small-ud-{part}.conllu").read_text()
        (tmp_path / f"{part}.conllu").write_text(text.replace("\tdog\t", "\t\u200d\t") if part == "test" else text)
    result = run(asked(tiny, "tag", tmp_path, steps=2), tmp_path / "run")
    assert result["counts"]["test"]["blank"] == (tmp_path / "test.conllu").read_text().count("\u200d") > 0
    [answer] = answer_lines(tagger, iter(["the \u200d sees a cat"]))
    assert len(answer["tags"]) == 5
