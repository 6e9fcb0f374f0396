"""Files that are whole or not there: atomic writing, SHA-256, and the manifest that vouches for a folder.

A reader never sees half a file, because what is written stands under a temporary name until it is complete and on the
disk. The manifest is written last, so a folder whose manifest holds is a folder whose writing ended.

    write_text(folder / "config.toml", text)
    with replace_file(folder / "adapter.safetensors") as temporary:
        save_file(tensors, temporary)
    write_manifest(folder, ["config.toml", "adapter.safetensors"])
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from peftlab.errors import UserError

MANIFEST = "peftlab-manifest.json"
DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG}
"""what the system says when a disk is full, read-only or broken"""
UNFINISHED = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
"""the name of a file while it is written"""
UMASK = os.umask(0)
os.umask(UMASK)


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it becomes `path` when the block ends, and vanishes if the block fails."""
    # In the same folder, because a rename is atomic only within one file system; not `mkstemp`, whose files no one else
    # may read.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        if os.name == "posix":
            temporary.chmod(0o666 & ~UMASK)  # a library may have made it for this user alone
        flush(temporary, os.O_RDWR)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":  # elsewhere a folder cannot be opened, and a rename needs no flush of its own
        flush(path.parent, os.O_RDONLY)


def remove_unfinished(folder: Path) -> None:
    """Remove the files, also those of folders inside, that a killed process was writing; of those that nobody else
    writes to now.
    """
    for path in folder.rglob(".*.tmp"):
        if UNFINISHED.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write the whole file, or leave what was there."""
    try:
        with replace_file(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        why = error.strerror or str(error)
        raise OSError(error.errno, f"{why}, {len(data):,} bytes are needed", str(path)) from error


@contextlib.contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """A disk that fails while something is written is told in one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK:
            raise
        path = error.filename or folder
        raise UserError(f"{path} could not be written: {error.strerror}; what was there before is as it was") from None


def write_text(path: Path, text: str) -> None:
    """Write the whole file as UTF-8, or leave what was there."""
    write_bytes(path, text.encode())


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, where they are not there yet."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UserError(f"{path} is a file: give a folder to save to") from None
    except (OSError, ValueError) as error:  # too long, a NUL, a file above it, not allowed
        raise UserError(f"{str(path)!r} can't be made a folder: {getattr(error, 'strerror', error)}") from None


def is_file(path: Path) -> bool:
    """Whether there is such a file; what can't be a path at all, such as one too long, is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_inside(name: str) -> bool:
    """Whether a name from a file stays in the folder that it is looked up in, and can stand in a message."""
    path = Path(name)
    return name.isprintable() and not path.is_absolute() and ".." not in path.parts


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_object(path: Path, missing: str = "") -> dict[str, Any]:
    """The JSON object in a file; `missing` says what the file is for, where it is not there."""
    if not is_file(path):
        raise UserError(f"{path} is missing{missing and ': '}{missing}")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} holds a {type(value).__name__}, not an object of settings")
    return value


def write_manifest(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Write down the SHA-256 of each named file of the folder, and return them; to be called last."""
    hashes = {name: sha256(folder / name) for name in sorted(names)}
    write_bytes(folder / MANIFEST, manifest(hashes))
    return hashes


def manifest(hashes: dict[str, str]) -> bytes:
    """The one way to write them down, so that no bit of a manifest can change unnoticed."""
    return (json.dumps({"sha256": hashes}, indent=2, sort_keys=True) + "\n").encode()


def check_manifest(folder: Path) -> dict[str, str]:
    """The files that the folder's manifest names, each found to match its SHA-256; none if there is no manifest."""
    path = folder / MANIFEST
    if not is_file(path):
        return {}
    try:
        hashes = read_object(path).get("sha256")
    except UserError:
        hashes = None
    if not isinstance(hashes, dict) or path.read_bytes() != manifest(hashes):
        raise UserError(f"{path} is not a manifest: it was changed or damaged; fetch or save the folder again")
    check_hashes(folder, hashes, MANIFEST)
    return hashes


def check_hashes(folder: Path, hashes: Any, by: str) -> None:
    """Each file of the folder has the SHA-256 that `by`, a file beside it, states."""
    if not isinstance(hashes, dict):
        raise UserError(f"{folder / by} does not state the SHA-256 of the files beside it: save the folder again")
    for name, expected in hashes.items():
        if not is_inside(name):
            raise UserError(f"{folder / by} names {name!r:.100}, which is no file beside it")
        if not is_file(folder / name):
            raise UserError(f"{folder / name} is missing, and {by} names it; fetch or save it again")
        if sha256(folder / name) != expected:
            raise UserError(
                f"{folder / name} does not match its SHA-256 in {by}: it was changed or damaged; fetch or save it again"
            )


def flush(path: Path, mode: int) -> None:
    """Ask the system to bring what was written to the disk."""
    handle = os.open(path, mode)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
