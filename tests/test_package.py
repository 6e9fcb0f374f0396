"""What holds for the package as a whole: one direction of imports, a quick start, no pickle, a README that runs."""

import ast
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import peftlab

SOURCE = Path(peftlab.__file__).parent
README = Path(__file__).parents[1] / "README.md"
ORDER = [
    "native",
    "data",
    "layers",
    "models",
    "peft",
    "generate",
    "tasks",
    "train",
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
        allowed = {*ORDER[: ORDER.index(package) + 1], "errors", "processor"}
        for path in (SOURCE / package).rglob("*.py"):
            assert imported(path) <= allowed, f"{path.relative_to(SOURCE)} imports {imported(path) - allowed}"


PICKLES = {"pickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
CALLS = {"torch.load", "torch.save", "torch.jit.load", "np.load", "numpy.load", "pd.read_pickle"}


def test_no_pickle_is_read_or_written():
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & PICKLES, path
            assert not {*names, *([ast.unparse(node)] if isinstance(node, ast.Attribute) else [])} & CALLS, path


STREAMS = {
    "data/files.py": "it is the way to write",
    "data/wheel.py": "into a scratch folder, renamed when it is whole",
    "train/metrics.py": "metrics.jsonl, a line a step",
    "compare/grid.py": "log.txt, what a process says",
}


def writes(node: ast.AST) -> bool:
    """Whether a call opens a file to write to it, or writes one at once."""
    if not isinstance(node, ast.Call):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
    if called == "open":
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        texts = {arg.value for arg in given if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
        return any(text.strip("rbt") in ("w", "a", "x", "+", "w+", "a+", "x+") for text in texts)
    return isinstance(node.func, ast.Attribute) and called in ("write_text", "write_bytes", "touch")


def test_files_are_written_whole_except_for_streams():
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if any(map(writes, ast.walk(ast.parse(path.read_text()))))
    }
    assert found == STREAMS.keys()


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


@pytest.mark.usefixtures("minilm")
def test_the_first_block_of_the_readme_runs_and_gives_what_it_says(tmp_path, monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    block = next(block for block in blocks if 'peftlab.load("minilm")' in block)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(block, README, "exec"), names)
    base, batch, out, maps = (names[name] for name in ("base", "batch", "out", "maps"))
    config = base.config
    assert base.model.config is config
    tokens = [base.tokenizer.tokens(row[real]) for row, real in zip(batch.ids, batch.mask, strict=True)]
    assert tokens == [["[CLS]", "a", "sentence", "[SEP]"], ["[CLS]", "another", "[SEP]"]]
    B, T, D = 2, 4, config.dim
    assert batch.ids.shape == batch.mask.shape == (B, T)
    assert out.hidden.shape == (B, T, D)
    assert out.pooled.shape == (B, D)
    assert [weights.shape for weights in maps] == [(B, config.heads, T, T)] * config.layers
    model = transformers.AutoModel.from_pretrained(tmp_path / "folder").eval()
    theirs = model(input_ids=batch.ids, attention_mask=batch.mask.long())
    torch.testing.assert_close(theirs.last_hidden_state, out.hidden, rtol=0, atol=1e-5)
