"""The kernels are built with the package, and those of other sources are not loaded."""

import platform
import shutil
import sys
from pathlib import Path

import pytest

from peftlab.native import building

possible = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or shutil.which("cc") is None,
    reason="the kernels are for Linux on x86-64, and need a C compiler",
)


@possible
@pytest.mark.parametrize("kind", building.KINDS)
def test_the_package_has_the_kernels_of_its_sources(kind):
    there = building.library(kind).is_file()
    assert there, "run `python src/peftlab/native/building.py`, or install the package again"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for source in [*building.FOLDER.glob("*.c"), *building.FOLDER.glob("*.h")]:
        shutil.copy(source, tmp_path)
    return tmp_path


@possible
def test_other_sources_are_another_library(sources):
    first = building.build(sources)
    assert [file.name for file in first] == [building.library(kind).name for kind in building.KINDS]
    assert all(file.is_file() for file in first)
    (sources / "product.c").write_text((sources / "product.c").read_text() + "/* changed */\n")
    assert not any(building.library(kind, sources).is_file() for kind in building.KINDS)
    second = building.build(sources)
    assert len(second) == len(first)
    assert all(file.is_file() for file in second)
    assert not any(file.exists() for file in first)


@possible
def test_what_does_not_compile_leaves_no_library(sources, capsys):
    (sources / "product.c").write_text("no C at all")
    assert building.build(sources) == []
    assert "torch will compute everything" in capsys.readouterr().err
    assert not list(sources.glob("*.so"))


@possible
def test_a_compiler_that_does_not_know_a_kind_builds_the_other(sources, monkeypatch):
    monkeypatch.setitem(building.KINDS, "avx512", ["-march=x86-64-v99"])
    assert [file.name for file in building.build(sources)] == [building.library("avx2").name]


def test_without_a_compiler_there_are_no_kernels(sources, monkeypatch):
    monkeypatch.setattr(building.shutil, "which", lambda _: None)
    assert building.build(sources) == []
