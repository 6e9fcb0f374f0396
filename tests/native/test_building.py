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
def test_the_package_has_the_kernels_of_its_sources():
    assert building.library().is_file(), "run `python src/peftlab/native/building.py`, or install the package again"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for source in [*building.FOLDER.glob("*.c"), *building.FOLDER.glob("*.h")]:
        shutil.copy(source, tmp_path)
    return tmp_path


@possible
def test_other_sources_are_another_library(sources):
    assert building.library(sources).name == building.library().name
    first = building.build(sources)
    assert first is not None
    assert first.is_file()
    (sources / "product.c").write_text((sources / "product.c").read_text() + "/* changed */\n")
    assert not building.library(sources).is_file()
    second = building.build(sources)
    assert second is not None
    assert second.is_file()
    assert not first.exists()


@possible
def test_what_does_not_compile_leaves_no_library(sources, capsys):
    (sources / "product.c").write_text("no C at all")
    assert building.build(sources) is None
    assert "torch will compute everything" in capsys.readouterr().err
    assert not list(sources.glob("*.so"))


def test_without_a_compiler_there_are_no_kernels(sources, monkeypatch):
    monkeypatch.setattr(building.shutil, "which", lambda _: None)
    assert building.build(sources) is None
