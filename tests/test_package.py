"""What holds for the package as a whole: one direction of imports, a quick start, no pickle."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

import peftlab

SOURCE = Path(peftlab.__file__).parent
ORDER = [
    "data",
    "layers",
    "models",
    "peft",
    "tasks",
    "train",
    "generate",
    "compare",
    "report",
    "experiments",
    "explore",
]


def imported(path: Path) -> set[str]:
    """The packages of ours that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found |= {name.split(".")[1] for name in names if name.startswith("peftlab.")}
    return found


def test_a_package_imports_only_from_those_before_it():
    packages = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()}
    assert packages <= set(ORDER)
    for package in packages:
        allowed = {*ORDER[: ORDER.index(package) + 1], "errors"}
        for path in (SOURCE / package).rglob("*.py"):
            assert imported(path) <= allowed, f"{path.relative_to(SOURCE)} imports {imported(path) - allowed}"


def test_no_pickle_is_read_or_written():
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not calls & {"torch.load", "torch.save"}, path
        modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert not modules & {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}, path


def seconds(*command: str) -> float:
    """The best of three, because the machine does other things too."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


def test_the_import_takes_under_two_seconds_and_help_under_one():
    assert seconds("-c", "import peftlab") < 2
    assert seconds("-m", "peftlab", "--help") < 1


def test_every_public_name_can_be_had():
    for name in peftlab.__all__:
        assert callable(getattr(peftlab, name))
        assert callable(getattr(peftlab, name)), "the second time it is the same"
        assert name in dir(peftlab)
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = peftlab.lod
