"""A run from end to end on a small file: its folder, its repeatability, and what it is good for afterwards."""

import json
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from small import BAD, GOOD, bits, films, write_films

import peftlab
from peftlab import cli, native
from peftlab.data.examples import Examples
from peftlab.data.files import write_manifest
from peftlab.errors import UserError
from peftlab.tasks.classify import Classify, encode
from peftlab.train import predict
from peftlab.train import run as run_module
from peftlab.train.artefact import open_run
from peftlab.train.classifying import load_data
from peftlab.train.config import make_config
from peftlab.train.loop import backward
from peftlab.train.precision import pick_device, pick_precision
from peftlab.train.predict import Labeller, answer_lines, answers
from peftlab.train.reading import read_lines
from peftlab.train.run import run, settle

STEPS = {"steps": 12, "batch": 8, "evaluations": 2, "threads": 1}


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """Sixty rows that a few steps can learn."""
    return write_films(tmp_path_factory.mktemp("data") / "films.csv")


def config(file: Path, method: str, **train):
    task = {"name": str(file), "text": "review", "label": "verdict"}
    return make_config({"task": task, "method": {"name": method}, "train": STEPS | train})


TIMES = ("peak_memory", "ms_step", "tokens_second", "seconds")


def timeless(folder: Path) -> dict:
    result = json.loads((folder / "result.json").read_text())
    return {key: value for key, value in result.items() if key not in TIMES}


def test_the_same_seed_gives_the_same_bits_and_another_does_not(file, tmp_path):
    for folder in ("a", "b"):
        run(config(file, "lora"), tmp_path / folder)
    assert timeless(tmp_path / "a") == timeless(tmp_path / "b")
    for name in ("adapter/adapter_model.safetensors", "metrics.jsonl", "config.toml"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    run(config(file, "lora", seed=1), tmp_path / "c")
    assert timeless(tmp_path / "c")["curve"] != timeless(tmp_path / "a")["curve"]


def test_a_finished_run_is_recognised_and_another_is_not_overwritten(file, tmp_path):
    first = run(config(file, "head"), tmp_path / "a")
    before = (tmp_path / "a" / "result.json").stat().st_mtime_ns
    assert run(config(file, "head"), tmp_path / "a") == first
    assert (tmp_path / "a" / "result.json").stat().st_mtime_ns == before
    with pytest.raises(UserError, match=r"holds a run of another configuration: there train.seed is 0, here 1"):
        run(config(file, "head", seed=1), tmp_path / "a")


def truncate(base: Path) -> None:
    weights = base / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def tamper(base: Path) -> None:
    write_manifest(base, ["config.json", "model.safetensors"])
    edit(base / "config.json", lambda content: content.update(hidden_act="relu"))


def edit(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


SPOILED = {
    "truncated": (truncate, "model.safetensors is not a whole safetensors file"),
    "tampered": (tamper, "config.json does not match its SHA-256"),
    "unfit": (lambda base: edit(base / "config.json", lambda c: c.update(hidden_size=32)), "config.json asks for"),
    "unknown": (lambda base: edit(base / "config.json", lambda c: c.update(model_type="bort")), "did you mean 'bert'"),
    "bare": (lambda base: (base / "config.json").unlink(), "config.json is missing"),
    "first step": (
        lambda base: edit(base / "tokenizer.json", lambda c: c["model"]["vocab"].update(film=40_000)),
        "token id 40000 is outside the vocabulary",
    ),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_base_that_fails_leaves_the_folder_to_the_right_one(how, tiny, films_file, tmp_path):
    spoil, message = SPOILED[how]
    spoil(Path(shutil.copytree(tiny, tmp_path / "base")))
    with pytest.raises(UserError, match=message):
        run(films(tmp_path / "base", films_file, steps=3, evaluations=1), tmp_path / "run")
    right = films(tiny, films_file, steps=3, evaluations=1)
    for folder in ("run", "fresh"):
        run(right, tmp_path / folder)
    assert bits(tmp_path / "run") == bits(tmp_path / "fresh")


@pytest.mark.parametrize("left", ["checkpoints/step-00000003-0", "adapter", "model", "result.json"])
def test_a_configuration_is_replaced_only_where_it_is_alone(left, tiny, films_file, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    first, other = (films(tiny, films_file, threads=None, seed=seed) for seed in (0, 1))
    (tmp_path / "config.toml").write_text(settle(first, tmp_path).to_toml())
    (tmp_path / "metrics.jsonl").write_text("")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert settle(first, tmp_path).train.threads == 3  # the same goes on as it began
    assert settle(other, tmp_path).train.threads == 2
    (tmp_path / left).mkdir(parents=True)
    with pytest.raises(UserError, match=r"there train.seed is 0, here 1; choose another --out, or delete it"):
        settle(other, tmp_path)


def test_a_configuration_that_was_written_by_hand_stays(tiny, films_file, tmp_path):
    asked = films(tiny, films_file)
    (tmp_path / "config.toml").write_text("# mine\n" + asked.to_toml())
    with pytest.raises(UserError, match="holds a run of another configuration"):
        run(asked, tmp_path)
    assert (tmp_path / "config.toml").read_text().startswith("# mine")


def test_a_run_that_another_process_leaves_meanwhile_stays(tiny, films_file, tmp_path, monkeypatch):
    """Between the look at a folder and its lock."""
    other = films(tiny, films_file, seed=1).completed().to_toml()

    @contextmanager
    def locked(folder):
        (folder / "config.toml").write_text(other)
        (folder / "checkpoints" / "step-00000003-0").mkdir(parents=True)
        yield

    monkeypatch.setattr(run_module, "locked", locked)
    with pytest.raises(UserError, match=r"there train.seed is 1, here 0"):
        run(films(tiny, films_file), tmp_path / "run")
    assert (tmp_path / "run" / "config.toml").read_text() == other


def test_a_size_that_can_not_be_is_one_line_and_its_folder_is_free(tmp_path, monkeypatch, capsys):
    (tmp_path / "text.txt").write_text("a small text of a few words\n" * 40)
    sizes = 'kind = "decoder"\ndim = 8\nlayers = 1\nheads = 2\nmax_length = 16'
    task = f'[language_model]\nname = "{tmp_path}/text.txt"\nunits = "bytes"\nlength = 16'
    (tmp_path / "run.toml").write_text(f"{task}\n[model]\n{sizes}\n[train]\nsteps = 2\nevaluations = 1\nthreads = 1")
    command = ["peftlab", "train", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), "--set"]
    monkeypatch.setattr(sys, "argv", [*command, "model.inner=-3"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "peftlab: inner is -3: it must be a whole number of at least 1, or 0 for none\n"
    monkeypatch.setattr(sys, "argv", [*command, "model.inner=16"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert (tmp_path / "run" / "result.json").is_file()


def test_a_step_in_parts_has_the_same_gradient(minilm):
    base = peftlab.load(minilm)  # in evaluation mode: no dropout, so that the parts can be equal to the whole
    peftlab.attach(base.model, "mine", peftlab.BitFit(), head=peftlab.Classifier(labels=2))
    peftlab.freeze(base.model)
    examples = Examples([*GOOD, *BAD], [1] * 5 + [0] * 5, list(range(10)))
    data = encode(base.tokenizer, examples, 32)
    trainable = [parameter for parameter in base.model.parameters() if parameter.requires_grad]
    losses, gradients = [], []
    for parts in (1, 3):
        losses.append(backward(base.model, Classify(), data, range(10), parts, "fp32"))
        gradients.append([parameter.grad for parameter in trainable])
        for parameter in trainable:
            parameter.grad = None
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for whole, part in zip(*gradients, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("method", ["lora", "full", "prompt"])
def test_an_opened_run_predicts_what_it_predicted(method, file, tmp_path):
    result = run(config(file, method, lr=1e-3), tmp_path / "run")
    base, settings = open_run(tmp_path / "run")
    test = load_data(settings).tests["test"]
    found = list(answer_lines(tmp_path / "run", iter(test.texts)))
    assert [result["labels"].index(answer["label"]) for answer in found] == result["predictions"]["test"]
    for answer in found:
        assert sum(answer["probabilities"].values()) == pytest.approx(1)
        assert answer["label"] == max(answer["probabilities"], key=answer["probabilities"].get)
    assert base.model.active == ("mine",)
    answering = predict.open_finished(tmp_path / "run").base.model
    assert not any(parameter.requires_grad for parameter in answering.parameters())  # the kernels keep what is frozen


@pytest.mark.skipif(not native.INTEGERS, reason="no run is trained in int16 on this processor")
def test_a_run_in_int16_answers_in_it_and_elsewhere_in_fp32(file, tmp_path, monkeypatch):
    run(config(file, "lora", lr=1e-3, precision="int16"), tmp_path / "run")
    lines = [f"a film number {i}, and a good one to see" for i in range(40)]
    found = {}
    for integers in (True, False):
        monkeypatch.setattr(native, "INTEGERS", integers)
        trained = predict.open_finished(tmp_path / "run")
        assert trained.precision == ("int16" if integers else "fp32")
        found[integers] = torch.tensor([answer["logits"] for answer in answers(trained, iter(lines))])
    assert not torch.equal(found[True], found[False])
    torch.testing.assert_close(found[True], found[False], rtol=0, atol=5e-3)


def test_a_run_that_trains_all_weights_answers_in_the_precision_that_it_was_trained_and_tested_in(file, tmp_path):
    result = run(config(file, "full", lr=1e-3, steps=1), tmp_path / "run")
    assert result["precision"] == pick_precision("auto", pick_device())
    answering = predict.open_finished(tmp_path / "run").precision
    assert answering == ("int16" if result["precision"] == "int16" else "fp32")


def test_the_first_lines_are_answered_soon_and_many_at_once(monkeypatch):
    class Counting(Labeller):
        reads = 8

        def __init__(self):
            self.asked = []

        def answer(self, lines, before):
            self.asked.append((before, len(lines)))
            return iter([{"text": line} for line in lines])

    monkeypatch.setattr(predict, "CHUNK", 2)
    labeller, lines = Counting(), iter(map(str, range(23)))
    found = answers(labeller, lines)
    assert (next(found), next(lines)) == ({"text": "0"}, "2"), "no more is read than the first answers need"
    assert [answer["text"] for answer in found] == ["1", *map(str, range(3, 23))]
    assert labeller.asked == [(0, 2), (2, 4), (6, 8), (14, 8)]


def test_the_command_line_trains_and_predicts(file, tmp_path):
    (tmp_path / "run.toml").write_text(config(file, "lora", steps=3, evaluations=1).to_toml())
    command = [sys.executable, "-m", "peftlab"]
    done = subprocess.run([*command, "train", "run.toml", "--out", "run"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
    done = subprocess.run(
        [*command, "predict", "run", "--json"], cwd=tmp_path, capture_output=True, text=True, input="a film\nanother\n"
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["text"] for line in lines] == ["a film", "another"]
    assert all(set(line) == {"text", "label", "probabilities", "logits"} for line in lines)
    wrong = subprocess.run([*command, "predict", "nowhere", "x"], cwd=tmp_path, capture_output=True, text=True)
    assert (wrong.returncode, "Traceback" in wrong.stderr) == (2, False)
    assert "is not a finished run" in wrong.stderr


def test_pairs_and_files_are_read(tmp_path):
    (tmp_path / "lines.txt").write_text("a\tb\nc\td\n")
    assert list(read_lines(None, tmp_path / "lines.txt", pair=True)) == [("a", "b"), ("c", "d")]
    with pytest.raises(UserError, match="line 1 has 1 texts"):
        list(read_lines(["a b"], None, pair=True))
    with pytest.raises(UserError, match=r"lines.txt are given: give one of them"):
        list(read_lines(["a"], tmp_path / "lines.txt", pair=False))
