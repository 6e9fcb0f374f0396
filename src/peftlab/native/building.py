"""Building the kernels: `hatch_build.py` does it when the package is installed, and after a change of the C files

    python src/peftlab/native/building.py

They are for x86-64 processors with AVX2 under Linux. The library's name tells the sources that it was built from, so
that one of other sources is never loaded.
"""

import hashlib
import platform
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
FLAGS = [
    *("-std=gnu11", "-O3", "-march=x86-64-v3", "-fopenmp", "-shared", "-fPIC", "-fvisibility=hidden"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra"),
]


def library(folder: Path = FOLDER) -> Path:
    """The file of the sources in a folder, whether it is there or not."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for source in sorted([*folder.glob("*.c"), *folder.glob("*.h")]):
        digest.update(source.read_bytes())
    return folder / f"kernels-{digest.hexdigest()[:16]}.so"


def build(folder: Path = FOLDER) -> Path | None:
    """Compile the sources of a folder, in the place of what was built there; None where that is not possible."""
    for old in folder.glob("kernels-*.so"):
        old.unlink()
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if platform.machine() != "x86_64" or sys.platform != "linux" or compiler is None:
        return None
    sources = sorted(str(source) for source in folder.glob("*.c"))
    file = library(folder)
    done = subprocess.run([compiler, *FLAGS, *sources, "-lm", "-o", str(file)], capture_output=True, text=True)
    if done.stderr:
        print(done.stderr, file=sys.stderr)
    if done.returncode:
        print("the kernels were not built: torch will compute everything", file=sys.stderr)
        file.unlink(missing_ok=True)
        return None
    return file


if __name__ == "__main__":
    sys.exit(build() is None)
