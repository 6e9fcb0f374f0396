"""Building the kernels: `hatch_build.py` does it when the package is installed, and after a change of the C files

    python src/peftlab/native/building.py

They are for x86-64 processors under Linux, once with AVX2 and once with AVX-512: which of the two a processor has is
found when they are loaded. A library's name tells the sources that it was built from, so that one of other sources is
never loaded.
"""

import hashlib
import platform
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
FLAGS = [
    *("-std=gnu11", "-O3", "-fopenmp", "-shared", "-fPIC", "-fvisibility=hidden"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra"),
]
KINDS = {
    "avx512": ["-march=x86-64-v4", "-mavx512vnni", "-mprefer-vector-width=512"],
    "avx2": ["-march=x86-64-v3"],
}
"""the kinds of processors, the better one first, and what the compiler is told of them"""


def library(kind: str, folder: Path = FOLDER) -> Path:
    """The file of the sources in a folder for a kind of processor, whether it is there or not."""
    digest = hashlib.sha256(" ".join(FLAGS + KINDS[kind]).encode())
    for source in sorted([*folder.glob("*.c"), *folder.glob("*.h")]):
        digest.update(source.read_bytes())
    return folder / f"kernels-{kind}-{digest.hexdigest()[:16]}.so"


def build(folder: Path = FOLDER) -> list[Path]:
    """Compile the sources of a folder, in the place of what was built there; what could be built."""
    for old in folder.glob("kernels-*.so"):
        old.unlink()
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if platform.machine() != "x86_64" or sys.platform != "linux" or compiler is None:
        return []
    return [file for kind in KINDS if (file := compiled(compiler, kind, folder)) is not None]


def compiled(compiler: str, kind: str, folder: Path) -> Path | None:
    """The library for a kind of processor; None where the compiler does not get there."""
    sources, file = sorted(str(source) for source in folder.glob("*.c")), library(kind, folder)
    command = [compiler, *FLAGS, *KINDS[kind], *sources, "-lm", "-o", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.stderr:
        print(done.stderr, file=sys.stderr)
    if done.returncode:
        print(f"the kernels for {kind} were not built: without any, torch will compute everything", file=sys.stderr)
        file.unlink(missing_ok=True)
        return None
    return file


if __name__ == "__main__":
    sys.exit(not build())
