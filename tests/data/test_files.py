"""Writing that is whole or not there, and the manifest."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from peftlab.data.files import (
    MANIFEST,
    check_manifest,
    make_folder,
    manifest,
    read_object,
    replace_file,
    sha256,
    write_bytes,
    write_manifest,
    write_text,
)
from peftlab.errors import UserError


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    write_bytes(tmp_path / "bytes", b"\x00\xff")
    write_text(tmp_path / "text", "naïve\n")
    assert (tmp_path / "bytes").read_bytes() == b"\x00\xff"
    assert (tmp_path / "text").read_bytes() == "naïve\n".encode()
    assert names(tmp_path) == {"bytes", "text"}


def test_a_failure_in_the_middle_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def interrupted() -> None:
        with replace_file(path) as temporary:
            temporary.write_bytes(b"half of the ne")
            assert path.read_bytes() == b"old"
            assert names(tmp_path) == {"file", temporary.name}
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == {"file"}


def test_a_failing_rename_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == {"file"}


def test_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def logged_fsync(handle: int) -> None:
        events.append("folder" if os.path.samestat(os.fstat(handle), tmp_path.stat()) else "file")
        fsync(handle)

    def logged_replace(source: Path, target: Path) -> None:
        events.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "replace", logged_replace)
    write_bytes(path, b"new")
    assert events == (["file", "rename", "folder"] if os.name == "posix" else ["file", "rename"])


def test_a_written_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write_bytes(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_sha256_is_that_of_hashlib(tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(data)
    assert sha256(tmp_path / "file") == hashlib.sha256(data).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "part").mkdir()
    (tmp_path / "a.json").write_bytes(b"{}")
    (tmp_path / "part/b.bin").write_bytes(b"\x01")
    write_manifest(tmp_path, ["part/b.bin", "a.json"])
    return tmp_path


def test_the_manifest_states_and_checks_every_named_file(folder: Path) -> None:
    expected = {"a.json": hashlib.sha256(b"{}").hexdigest(), "part/b.bin": hashlib.sha256(b"\x01").hexdigest()}
    assert json.loads((folder / MANIFEST).read_text()) == {"sha256": expected}
    assert check_manifest(folder) == expected


def test_a_folder_without_a_manifest_vouches_for_nothing(tmp_path: Path) -> None:
    assert check_manifest(tmp_path) == {}


def test_a_changed_file_is_named(folder: Path) -> None:
    (folder / "part/b.bin").write_bytes(b"\x02")
    with pytest.raises(UserError, match=r"b\.bin does not match its SHA-256 .*: it was changed or damaged"):
        check_manifest(folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "a.json").unlink()
    with pytest.raises(UserError, match=r"a\.json is missing"):
        check_manifest(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"sha256": 1}', '{"sha256": ["ab", 1]}', "\xff"])
def test_a_damaged_manifest_is_named(folder: Path, text: str) -> None:
    (folder / MANIFEST).write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=rf"{MANIFEST} is not a manifest"):
        check_manifest(folder)


def test_every_bit_and_every_byte_of_a_manifest_counts(folder: Path) -> None:
    whole = (folder / MANIFEST).read_bytes()
    places = range(len(whole))
    flipped = [whole[:i] + bytes([whole[i] ^ 1 << bit]) + whole[i + 1 :] for i in places for bit in range(8)]
    for damaged in (*flipped, *(whole[:end] for end in places)):
        (folder / MANIFEST).unlink()  # a file written over an old one is slow on ext4
        (folder / MANIFEST).write_bytes(damaged)
        with pytest.raises(UserError):
            check_manifest(folder)
    (folder / MANIFEST).write_bytes(whole)
    check_manifest(folder)


@pytest.mark.parametrize("name", ["../outside", "part/../../outside", "/outside", "a\0b", "a\nb", "\ud800", "x" * 300])
def test_a_manifest_vouches_for_its_own_folder_only(folder: Path, name: str) -> None:
    (folder.parent / "outside").write_bytes(b"")
    name = name.replace("/outside", f"{folder.parent}/outside") if name.startswith("/") else name
    write_bytes(folder / MANIFEST, manifest({name: hashlib.sha256(b"").hexdigest()}))
    with pytest.raises(UserError, match=r"which is no file beside it|is missing") as caught:
        check_manifest(folder)
    assert str(caught.value).isprintable()


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "outside").read_bytes() == b"old"
    assert (tmp_path / "link").read_bytes() == b"new"
    assert not (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "file", "file/below", "\ud800"])
def test_a_folder_that_cannot_be_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match=r"can't be made a folder|is a file: give a folder"):
        make_folder(tmp_path / name)
    with pytest.raises(UserError, match="is missing"):
        read_object(tmp_path / name / "config.json")
    assert names(tmp_path) == {"file"}
