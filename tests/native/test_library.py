"""Which kernels are loaded, and those of the kind that this processor would not be given."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from peftlab.native import building, library

SKYLAKE = "avx2 fma bmi2 avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("flags", "wanted", "kind"),
    [
        (f"{SKYLAKE} avx512_vnni", None, "avx512"),
        (f"{SKYLAKE} avx512_vnni", "", "avx512"),
        (f"{SKYLAKE} avx512_vnni", "1", "avx512"),
        (f"{SKYLAKE} avx512_vnni", "avx2", "avx2"),
        (f"{SKYLAKE} avx512_vnni", "0", None),
        (SKYLAKE, None, "avx2"),
        (SKYLAKE, "avx512", None),
        ("avx2 fma bmi2", None, "avx2"),
        ("avx2", None, None),
    ],
)
def test_the_best_kind_that_a_processor_can_run(tmp_path, monkeypatch, flags, wanted, kind):
    monkeypatch.setattr(library, "library", lambda name: tmp_path / name)
    monkeypatch.setattr(library, "facts", lambda: {"flags": flags})
    monkeypatch.delenv("PEFTLAB_NATIVE", raising=False)
    if wanted is not None:
        monkeypatch.setenv("PEFTLAB_NATIVE", wanted)
    assert library.find() == (None, None)  # none is built
    for name in building.KINDS:
        (tmp_path / name).touch()
    assert library.find() == (kind, None if kind is None else tmp_path / kind)


@pytest.mark.slow
@pytest.mark.skipif(library.KIND != "avx512", reason="the tests beside this one are those of AVX2")
def test_those_for_avx2_are_as_right():
    tests = "native/test_native.py", "native/test_int16.py", "layers/test_one_query.py", "layers/test_one_step.py"
    paths = [str(Path(__file__).parents[1] / name) for name in tests]
    command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", "-rs", *paths]
    done = subprocess.run(command, env={**os.environ, "PEFTLAB_NATIVE": "avx2"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "SKIPPED" not in done.stdout, done.stdout  # as they all would be without these kernels
