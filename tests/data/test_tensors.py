"""Safetensors files that lie about themselves, and what the library lets pass."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from peftlab.data.tensors import LARGEST_HEADER, Tensors, weight_files
from peftlab.errors import UserError

ONE = b'"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}'


def write(path: Path, header: bytes, data: bytes = bytes(16)) -> Path:
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def read(folder: Path, *files: str) -> dict[str, torch.Tensor]:
    tensors = Tensors(folder, files)
    return {name: tensors.read(name) for name in tensors}


def refused(folder: Path, *files: str) -> str:
    with pytest.raises(UserError) as caught:
        read(folder, *files)
    message = str(caught.value)
    assert message.isprintable()
    return message


# safetensors 0.8 reads each of these; what it refuses itself is in tests/peft/test_damaged.py
LET_PASS = {
    "a name twice": (ONE + b"," + ONE, "has a name twice"),
    "a name twice, spelt in two ways": (ONE + b"," + ONE.replace(b"a", rb"\u0061", 1), "has a name twice"),
    "a line break in a name": (ONE.replace(b"a", rb"a\nb", 1), "has a name that can't be printed"),
    "a terminal's escape in a name": (ONE.replace(b"a", rb"\u001b[2J", 1), "has a name that can't be printed"),
    "a long header": (ONE + b" " * LARGEST_HEADER, "its header would have 1,000,055 bytes"),
}


@pytest.mark.parametrize(("entries", "message"), LET_PASS.values(), ids=LET_PASS)
def test_what_the_library_lets_pass_is_refused(entries: bytes, message: str, tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", b"{" + entries + b"}")
    assert message in refused(tmp_path, "x.safetensors")


def test_the_same_without_its_fault_is_read(tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", b"{" + ONE + b" " * 1000 + b"}")
    assert torch.equal(read(tmp_path, "x.safetensors")["a"], torch.zeros(4))


@pytest.mark.parametrize("depth", [500, 100_000])
def test_a_deep_header_is_refused(depth: int, tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", b"{" + ONE[:-1] + b',"z":' + b"[" * depth + b"]" * depth + b"}}")
    refused(tmp_path, "x.safetensors")


def test_what_the_library_says_becomes_one_short_line(tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", b"{" + ONE.replace(b"F32", rb"F\n\u001b" + b"3" * 5000) + b"}")
    assert len(refused(tmp_path, "x.safetensors")) < 500 + len(str(tmp_path))


KINDS = {"F4": 4, "F6_E2M3": 6, "F8_E4M3": 8, "F8_E8M0": 8, "I8": 8, "BOOL": 8, "C64": 64}


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_are_no_weights_are_refused(kind: str, tmp_path: Path) -> None:
    header = {"a": {"dtype": kind, "shape": [48 * 8 // KINDS[kind]], "data_offsets": [0, 48]}}
    write(tmp_path / "x.safetensors", json.dumps(header).encode(), bytes(48))
    assert "a in " in refused(tmp_path, "x.safetensors")


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_weights_are_read_as_fp32(kind: torch.dtype, tmp_path: Path) -> None:
    tensor = torch.randn(3, 2).to(kind)
    save_file({"a": tensor}, tmp_path / "x.safetensors")
    assert torch.equal(read(tmp_path, "x.safetensors")["a"], tensor.float())


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    for name in ("1.safetensors", "2.safetensors"):
        save_file({"a": torch.zeros(1)}, tmp_path / name)
    assert "has the tensor a, which another file" in refused(tmp_path, "1.safetensors", "2.safetensors")


SHARDS = [
    "../x.safetensors",
    "/x.safetensors",
    "x/y.safetensors",
    "x\\y.safetensors",
    "x\0.safetensors",
    "x\n.safetensors",
    "x" * 300 + ".safetensors",
    ".safetensors",
    "x.bin",
    "",
    5,
    None,
    [],
    {},
]


@pytest.mark.parametrize("name", SHARDS, ids=lambda name: repr(name)[:20])
def test_a_shard_that_is_not_beside_its_index_is_refused(name: Any, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    folder.mkdir()
    save_file({"a": torch.zeros(1)}, tmp_path / "x.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(UserError, match=r"a shard is a \.safetensors file beside it") as caught:
        weight_files(folder)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"weight_map": []}', "\xff", "[" * 100_000])
def test_an_index_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"model\.safetensors\.index\.json"):
        weight_files(tmp_path)
