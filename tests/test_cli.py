"""The command line as a user meets it: a process, its output, its exit code."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from peftlab import Encoder, EncoderConfig, cli
from peftlab.data.files import MANIFEST
from peftlab.data.sources import BASES, DATASETS
from peftlab.data.tokenizer import Tokenizer
from peftlab.models.base import Base
from peftlab.peft import METHODS
from peftlab.tasks import TASKS


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "peftlab", *arguments]
    return subprocess.run(command, capture_output=True, text=True, input=stdin, timeout=120)


def test_help_teaches():
    done = run("--help")
    assert done.returncode == 0
    assert "peftlab trace" in done.stdout
    assert "standard input" in run("trace", "--help").stdout


def test_ls_has_a_line_for_everything_with_a_name():
    listed: dict[str, dict[str, str]] = {}
    for line in run("ls").stdout.splitlines():
        if not line.startswith(" "):
            section = listed[line.strip()] = {}
        else:
            name, about = line.split(maxsplit=1)
            section[name] = about
    there = {"bases": BASES, "data sets": DATASETS, "methods": METHODS, "tasks": TASKS}
    assert {title: list(lines) for title, lines in listed.items()} == {title: list(has) for title, has in there.items()}
    assert [name for lines in listed.values() for name, about in lines.items() if len(about.split()) < 2] == []
    assert {"minilm", "reviews", "sst2", "mnli", "qnli"} <= {*BASES, *DATASETS}


def test_trace_names_every_dimension(minilm):
    done = run("trace", "A sentence is followed.", "--base", str(minilm))
    assert done.returncode == 0, done.stderr
    for piece in (
        "token 7 · width 384",
        "head 12 · query 7 · key 7",
        "inner width 1536",
        "[CLS] a sentence is followed . [SEP]",
        "blocks 1 … 5",
    ):
        assert piece in done.stdout
    assert run("trace", "-", "--base", str(minilm), stdin="A sentence is followed.\n").stdout == done.stdout


def test_trace_shows_every_block_on_request(minilm):
    done = run("trace", "one", "--pair", "two", "--base", str(minilm), "--full")
    assert "5.ff.down" in done.stdout
    assert "blocks 1" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trace", "x", "--base", "minilmm"], "did you mean 'minilm'"),
        (["trace", "x", "--base", "."], "config.json is missing"),
        (["trace", "long " * 600], "602"),
        (["trace", "-"], "empty"),
        (["tracee", "x"], "tracee"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_two(arguments, message, minilm):
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


# — a base that is damaged —


@pytest.fixture
def saved(tmp_path) -> Path:
    """A small base as `Base.save` leaves it, in a folder that is worked in."""
    tokenizer = Tokenizer.train_on(["a base that someone damaged"], vocab_size=60)
    config = EncoderConfig(vocab=tokenizer.vocab_size, dim=8, layers=1, heads=2, inner=8, max_length=16)
    Base("small", Encoder(config), tokenizer, "bert", {}).save(tmp_path / "saved")
    return tmp_path / "saved"


def unsigned(folder: Path) -> Path:
    """Without its manifest, as other libraries save it; gives the weights."""
    (folder / MANIFEST).unlink()
    return folder / "model.safetensors"


def configured(folder: Path, **changes) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | changes))


def truncated(folder: Path) -> None:
    path = unsigned(folder)
    path.write_bytes(path.read_bytes()[:-1])


def tampered_header(folder: Path) -> None:
    path = unsigned(folder)
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"F64"', 1))


def tampered_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def tampered_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_bytes((folder / MANIFEST).read_bytes()[:-3])


def unfitting_config(folder: Path) -> None:
    unsigned(folder)
    configured(folder, hidden_size=16)


def unknown_architecture(folder: Path) -> None:
    unsigned(folder)
    configured(folder, model_type="berta")


def fewer_words_than_the_tokenizer_has(folder: Path) -> None:
    path = unsigned(folder)
    tensors = load_file(path)
    tensors["embeddings.word_embeddings.weight"] = tensors["embeddings.word_embeddings.weight"][:3].clone()
    save_file(tensors, path)
    configured(folder, vocab_size=3)


def pickled(folder: Path) -> None:
    unsigned(folder).rename(folder / "pytorch_model.bin")


def without_weights(folder: Path) -> None:
    unsigned(folder).unlink()


def without_tokenizer(folder: Path) -> None:
    unsigned(folder)
    (folder / "tokenizer.json").unlink()


def without_a_named_file(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def gone(folder: Path) -> None:
    shutil.rmtree(folder)


def contents(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def run_inside(monkeypatch, *arguments: str) -> int | str | None:
    """The same without a process of its own, which would import torch anew; gives the exit code."""
    monkeypatch.setattr(sys, "argv", ["peftlab", *arguments])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


def test_a_base_that_is_whole_is_traced(saved, monkeypatch, capfd):
    assert run_inside(monkeypatch, "trace", "a base", "--base", str(saved)) == 0
    assert "[CLS] a base [SEP]" in capfd.readouterr().out


DAMAGES = {
    truncated: "model.safetensors is not a whole safetensors file",
    tampered_header: "model.safetensors is not a whole safetensors file",
    tampered_weights: "model.safetensors does not match its SHA-256",
    tampered_manifest: f"{MANIFEST} is not a manifest",
    unfitting_config: "its config.json asks for",
    unknown_architecture: "did you mean 'bert'",
    fewer_words_than_the_tokenizer_has: "is outside the vocabulary: ids go from 0 to 2",
    pickled: "pytorch_model.bin is a pickle",
    without_weights: "model.safetensors is missing",
    without_tokenizer: "has none of tokenizer.json",
    without_a_named_file: f"tokenizer.json is missing, and {MANIFEST} names it",
    gone: "is neither a path that exists nor a hub id",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_base_is_one_sentence_and_nothing_is_written(damage, saved, monkeypatch, capfd):
    damage(saved)
    monkeypatch.chdir(saved.parent)
    before = contents(saved.parent)
    assert run_inside(monkeypatch, "trace", "a base", "--base", str(saved)) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("peftlab: ")
    assert DAMAGES[damage] in err
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert contents(saved.parent) == before


def test_an_argument_that_is_not_utf8_is_told_as_what_it_is(saved, monkeypatch, capfd):
    argument = b"caf\xe9".decode(errors="surrogateescape")  # as Python reads the byte of another encoding
    assert run_inside(monkeypatch, "trace", argument, "--base", str(saved)) == 2
    assert r"texts[0] is 'caf\udce9': it holds half of a surrogate pair, which no text has" in capfd.readouterr().err
    assert run_inside(monkeypatch, "trace", "a base", "--pair", argument, "--base", str(saved)) == 2
    assert "it holds half of a surrogate pair" in capfd.readouterr().err
