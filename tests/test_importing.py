"""Python does not search what was imported for garbage, and searches everything else as before."""

import gc
import subprocess
import sys

import pytest

from peftlab.importing import unswept

COUNT = "import gc; {first}; import peftlab; peftlab.{name}; print(gc.get_freeze_count(), gc.isenabled())"


@pytest.mark.parametrize(
    ("first", "name", "frozen", "searches"),
    [
        ("0", "Encoder", True, True),
        ("0", "UserError", False, True),
        ("import torch", "Encoder", False, True),
        ("gc.disable()", "Encoder", False, False),
    ],
)
def test_what_is_imported_is_not_searched(first, name, frozen, searches):
    assert frozen_and_searching(first, name) == (frozen, searches)


def test_what_loading_a_base_imports_is_not_searched(minilm):
    assert frozen_and_searching("0", f"load({str(minilm)!r})") == (True, True)


def frozen_and_searching(first: str, name: str) -> tuple[bool, bool]:
    """Whether torch's objects are left out of the search in a new interpreter, and whether there is one."""
    command = [sys.executable, "-c", COUNT.format(first=first, name=name)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    count, enabled = done.stdout.split()
    return int(count) > 100_000, enabled == "True"


def test_a_failed_import_leaves_the_search_on(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    try:
        with pytest.raises(ImportError), unswept():
            raise ImportError
        assert gc.isenabled()
    finally:
        gc.unfreeze()
