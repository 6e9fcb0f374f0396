"""Damaged and hostile files, names and settings: refused in one sentence, and nothing is changed, written or run."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from examples import METHODS, shake, small
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import peftlab
from peftlab.compare.grid import plan
from peftlab.data.files import MANIFEST, manifest, sha256
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.models.base import Base
from peftlab.peft.probe import TEXTS
from peftlab.train.config import read_config

MODEL, CONFIG, SIDECAR = "adapter_model.safetensors", "adapter_config.json", "peftlab.json"
KINDS = {  # with stock's tensors, with files beside them, with our own, and with an encoder that stock has no place for
    "lora": (peftlab.LoRA(rank=2), peftlab.Classifier(labels=2)),
    "mean": (peftlab.LoRA(rank=2), peftlab.Classifier(labels=2, pool="mean")),
    "houlsby": (METHODS["houlsby"], None),
    "p-tuning": (peftlab.PTuning(tokens=2, encoder="lstm", hidden=6, layout="peft"), peftlab.Classifier(labels=2)),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Base:
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("\n".join(TEXTS))
    tokenizer = Tokenizer.train(text, vocab_size=90)
    return Base("small", small(vocab=tokenizer.vocab_size, max_length=96), tokenizer, "bert", {})


@pytest.fixture(scope="module")
def saved(base, tmp_path_factory) -> dict[str, Path]:
    """A folder of each kind of adapter, and one of the base."""
    folder = tmp_path_factory.mktemp("saved")
    for kind, (method, head) in KINDS.items():
        peftlab.attach(base.model, "mine", method, head=head)
        for addition in base.model.additions("mine").values():
            shake(addition.parameters())
        peftlab.save_adapter(base, "mine", folder / kind)
        peftlab.detach(base.model, "mine")
    base.save(folder / "base")
    return {kind: folder / kind for kind in (*KINDS, "base")}


@contextmanager
def copied(folder: Path) -> Iterator[Path]:
    """A copy to damage: hypothesis draws many from one fixture."""
    with tempfile.TemporaryDirectory() as place:
        yield Path(shutil.copytree(folder, Path(place, "copy")))


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def flip(path: Path, bit: int) -> None:
    """One bit of a file, counted from its start."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def vouch(folder: Path) -> None:
    """A manifest for the files as they are now, as whoever changed them would write it."""
    hashes = {name: sha256(folder / name) for name in files(folder) if name != MANIFEST}
    (folder / MANIFEST).write_bytes(manifest(hashes))


def refused(call) -> str:
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def refused_adapter(base: Base, folder: Path) -> str:
    """The sentence; the model is what it was."""
    before = {key: tensor.clone() for key, tensor in base.model.state_dict().items()}
    message = refused(lambda: peftlab.load_adapter(base, folder, name="mine"))
    after = base.model.state_dict()
    assert (base.model.adapters, base.model.active, base.model.training) == ({}, (), False)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)
    return message


def load_and_detach(base: Base, folder: Path) -> None:
    peftlab.load_adapter(base, folder, name="mine")
    peftlab.detach(base.model, "mine")


# — damage —


def test_what_is_whole_is_loaded(base, saved):
    for kind in KINDS:
        with copied(saved[kind]) as folder:
            vouch(folder)
            assert (folder / MANIFEST).read_bytes() == (saved[kind] / MANIFEST).read_bytes()
            load_and_detach(base, folder)
    assert peftlab.load(saved["base"]).config == base.config


@pytest.mark.parametrize("kind", [*KINDS, "base"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_one_flipped_bit_or_a_lost_end_of_any_file_is_told(kind, base, saved, data):
    name = data.draw(st.sampled_from(files(saved[kind])), "file")
    size = (saved[kind] / name).stat().st_size
    with copied(saved[kind]) as folder:
        if data.draw(st.booleans(), "flipped"):
            flip(folder / name, data.draw(st.integers(0, 8 * size - 1), "bit"))
        else:
            with (folder / name).open("r+b") as file:
                file.truncate(data.draw(st.integers(0, size - 1), "end"))
        message = refused(lambda: peftlab.load(folder)) if kind == "base" else refused_adapter(base, folder)
    assert name in message or name == MANIFEST


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_one_flipped_bit_of_a_weight_is_told_even_if_the_manifest_is_written_anew(kind, base, saved, data):
    name = data.draw(st.sampled_from([name for name in files(saved[kind]) if name.endswith(".safetensors")]), "file")
    content = (saved[kind] / name).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    number = data.draw(st.integers(0, (len(content) - start) // 4 - 1), "number")
    bit = data.draw(st.integers(0, 31), "bit")  # from the lowest of the mantissa to the sign
    with copied(saved[kind]) as folder:
        flip(folder / name, 8 * start + 32 * number + bit)
        vouch(folder)
        refused_adapter(base, folder)


def test_a_changed_weight_is_told_even_if_all_hashes_are_written_anew(base, saved):
    with copied(saved["lora"]) as folder:
        tensors = load_file(folder / MODEL)
        next(iter(tensors.values())).add_(0.5)
        save_file(tensors, folder / MODEL, metadata={"format": "pt"})
        sidecar = json.loads((folder / SIDECAR).read_text())
        sidecar["sha256"][MODEL] = sha256(folder / MODEL)
        (folder / SIDECAR).write_text(json.dumps(sidecar))
        vouch(folder)
        assert "gives another output for its probes" in refused_adapter(base, folder)


def paths(value, path=()) -> Iterator[tuple]:
    """Where the values of a JSON object are."""
    yield path
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from paths(part, (*path, key))


ODD = [None, True, -1, 0, 1.0, 1.5, 10**9, 10**30, float("nan"), "", "x", "../x", [], [[]], {}, {"x": 1}, ["x"] * 50]


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_odd_values_in_an_adapter_s_json_raise_nothing_else(base, saved, data):
    with copied(saved[data.draw(st.sampled_from(list(KINDS)), "kind")]) as folder:
        name = data.draw(st.sampled_from([name for name in files(folder) if name.endswith(".json")]), "file")
        content = json.loads((folder / name).read_text())
        *path, last = data.draw(st.sampled_from([path for path in paths(content) if path]), "place")
        place = content
        for key in path:
            place = place[key]
        place[last] = data.draw(st.sampled_from(ODD), "value")
        (folder / name).write_text(json.dumps(content))
        if name != MANIFEST:
            vouch(folder)
        with suppress(UserError):
            load_and_detach(base, folder)
        assert (base.model.adapters, base.model.active) == ({}, ())


# — hostile files —


def entry(start: int, end: int, shape: list[int], kind: str = "F32") -> dict:
    return {"dtype": kind, "shape": shape, "data_offsets": [start, end]}


def hostile(header, length: int | None = None, data: bytes = bytes(16)) -> bytes:
    """A safetensors file with any header, which may state any length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


LARGE = "more than there is room for"
ONE = {"a": entry(0, 16, [4])}
TEXT = json.dumps(ONE).encode()
HOSTILE = {
    "a header of 2**63 bytes": hostile(ONE, length=2**63),
    "a header that grows when it is read": hostile(TEXT[:-2] + b', "x": [' + b"[]," * 330_000 + b"[]]}"),
    "a header beyond the end": hostile(ONE, length=1000),
    "overlapping offsets": hostile({"a": entry(0, 12, [3]), "b": entry(8, 16, [2])}),
    "one place for two": hostile({"a": entry(0, 16, [4]), "b": entry(0, 16, [4])}),
    "negative offsets": hostile({"a": entry(-8, 8, [4])}),
    "offsets the wrong way round": hostile({"a": entry(16, 0, [4])}),
    "offsets beyond the end": hostile({"a": entry(0, 2**40, [2**38])}),
    "a hole": hostile({"a": entry(0, 4, [1]), "b": entry(8, 16, [2])}),
    "bytes that belong to nothing": hostile({"a": entry(0, 8, [2])}),
    "a type of another size": hostile({"a": entry(0, 16, [4], "F16")}),
    "a type that is none": hostile({"a": entry(0, 16, [4], "F33")}),
    "a shape that overflows": hostile({"a": entry(0, 16, [2**62, 2**62])}),
    "a name twice": hostile(TEXT[:-1] + b"," + TEXT[1:]),
    "a field twice": hostile(TEXT.replace(b'"dtype"', b'"dtype": "F32", "dtype"')),
    "NaN": hostile(TEXT.replace(b"[4]", b"[NaN]")),
    "half a header": hostile(TEXT[:-9]),
    "no text": hostile(b"\xff" * 50),
    "a list": hostile([ONE]),
    "null": hostile(b"null"),
    "nothing": b"",
    LARGE: hostile({"a": entry(0, 2**30, [2**28])}, data=b""),  # its gigabyte of zeros takes no place on the disk
}


class Payload:
    """What pickle calls when it is read."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):
        return Path.touch, (self.canary,)


CHILD = """
import json, resource, sys, time
import peftlab
from peftlab.errors import UserError

def attempt(load):
    start = time.process_time()
    try:
        load()
        said = "nothing was raised"
    except UserError as error:
        said = f"UserError: {error}"
    except BaseException as error:
        said = repr(error)
    return said, time.process_time() - start

good, adapter, bases, adapters = sys.argv[1:]
base = peftlab.load(good)
peftlab.load_adapter(base, adapter, name="good")  # what a first call needs is not the file's fault
if sys.platform == "linux":  # elsewhere there is no such limit
    held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + 200_000_000,) * 2)
for folder in json.loads(bases):
    print(json.dumps([folder, *attempt(lambda: peftlab.load(folder))]))
for folder in json.loads(adapters):
    print(json.dumps([folder, *attempt(lambda: peftlab.load_adapter(base, folder, name="mine"))]))
"""


def test_hostile_files_are_refused_at_once_without_much_memory_and_nothing_in_them_runs(saved, tmp_path):
    canary = tmp_path / "canary"
    torch.save({"weight": Payload(canary)}, tmp_path / "zip")
    pickles = {"a pickle": pickle.dumps(Payload(canary)), "a pickle in a zip": (tmp_path / "zip").read_bytes()}
    pickle.loads(pickles["a pickle"])
    assert canary.exists(), "had it run, it would show"
    canary.unlink()

    contents = HOSTILE | {"a header of 101 MB": hostile(TEXT + b" " * 101_000_000)} | pickles
    for case, content in contents.items():
        (tmp_path / case).write_bytes(content)
    os.truncate(tmp_path / LARGE, len(HOSTILE[LARGE]) + 2**30)
    folders: dict[str, list[str]] = {"base": [], "lora": []}
    for kind, config, model, old in (
        ("base", "config.json", "model.safetensors", "pytorch_model.bin"),
        ("lora", CONFIG, MODEL, "adapter_model.bin"),
    ):
        for case, name in [*((case, model) for case in contents), *((case, old) for case in pickles)]:
            folder = tmp_path / kind / f"{case} as {name}"
            folder.mkdir(parents=True)
            shutil.copy(saved[kind] / config, folder)
            (folder / name).symlink_to(tmp_path / case)
            folders[kind].append(str(folder))
    run = subprocess.run(
        [sys.executable, "-c", CHILD, saved["base"], saved["lora"], *map(json.dumps, folders.values())],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert [folder for folder, *_ in lines] == [*folders["base"], *folders["lora"]]
    for folder, said, seconds in lines:
        expected = "is a pickle" if folder.endswith(".bin") else "is not a whole safetensors file"
        assert said.startswith(f"UserError: {folder}/"), (folder, said)
        assert expected in said
        assert LARGE in folder or "memory" not in said.lower(), "it was refused, not given up"
        assert seconds < 1, (folder, seconds)
    assert not canary.exists()


# — hostile names and settings —

NAMES = ["../x", "/tmp/x", "a/b", "a\\b", "a\0b", "a\nb", "x" * 300, "..", ".", "", " ", "a.b", "\ud800"]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name)[:12])
def test_a_hostile_name_is_refused_wherever_one_is_given(name, base, saved, tmp_path):
    peftlab.attach(base.model, "mine", peftlab.LoRA(rank=2))
    try:
        refused(lambda: peftlab.attach(base.model, name, peftlab.LoRA(rank=2)))
        refused(lambda: peftlab.combine(base.model, name, {"mine": 1.0}))
        refused(lambda: peftlab.load_adapter(base, saved["lora"], name=name))
        refused(lambda: peftlab.save_adapter(base, name, tmp_path / "adapter"))
        refused(lambda: base.save(tmp_path / "base", head=name))
        assert list(base.model.adapters) == ["mine"]
        assert files(tmp_path) == []
    finally:
        peftlab.detach(base.model, "mine")


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "file", "file/below", "\ud800"], ids=lambda name: repr(name)[:12])
def test_a_folder_that_cannot_be_is_refused(name, base, tmp_path):
    (tmp_path / "file").write_bytes(b"as it was")
    peftlab.attach(base.model, "mine", peftlab.LoRA(rank=2))
    try:
        refused(lambda: peftlab.save_adapter(base, "mine", tmp_path / name))
    finally:
        peftlab.detach(base.model, "mine")
    refused_adapter(base, tmp_path / name)
    refused(lambda: peftlab.load(tmp_path / name))
    assert files(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"as it was"


def test_links_in_a_folder_do_not_lead_out_of_it(base, saved, tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(b"as it was")
    for kind in ("lora", "base"):
        folder = tmp_path / kind
        folder.mkdir()
        for name in files(saved[kind]):
            (folder / name).symlink_to(outside)
    peftlab.load_adapter(base, saved["lora"], name="mine")
    try:
        peftlab.save_adapter(base, "mine", tmp_path / "lora")
        base.save(tmp_path / "base")
    finally:
        peftlab.detach(base.model, "mine")
    assert outside.read_bytes() == b"as it was"
    for kind in ("lora", "base"):
        assert not any(path.is_symlink() for path in (tmp_path / kind).iterdir())
        assert (tmp_path / kind / MANIFEST).read_bytes() == (saved[kind] / MANIFEST).read_bytes()


SIZES = ["lora.rank", "adapter.width", "adapter.reduction", "prompt.tokens", "p_tuning.tokens", "p_tuning.hidden"]


@pytest.mark.parametrize("setting", [*SIZES, "prefix.length", "prefix.mlp"])
@pytest.mark.parametrize("value", ["-1", "0", "1000000000", "nan", "true", "'8'"])
def test_a_size_beyond_reason_is_refused(setting, value):
    method, key = setting.split(".")
    assert f"{key} is " in refused(lambda: read_config(f"[method]\nname = '{method}'\n{key} = {value}"))


@pytest.mark.parametrize("place", ["", "[task]", "[train]", "[method]\nname = 'lora'"])
@pytest.mark.parametrize("key", ["bogus", "'../x'", '"a\\nb"', '"a\\u0000b"', "x" * 300])
def test_unknown_keys_of_a_configuration_are_refused(place, key):
    assert "unknown " in refused(lambda: read_config(f"{place}\n{key} = 1"))


@pytest.mark.parametrize("task", ["../../x", "/etc/passwd", "..", "a/../../b.csv", "x.csv"])
def test_the_runs_of_a_comparison_stay_in_its_folder(task, tmp_path):
    (job,) = plan(["lora"], "task", [{"name": task}], 1, tmp_path, {})
    assert job.folder.resolve().parent == tmp_path / "runs"
    assert "unknown method" in refused(lambda: plan(["../x"], "task", [{"name": task}], 1, tmp_path, {}))
    assert files(tmp_path) == []
