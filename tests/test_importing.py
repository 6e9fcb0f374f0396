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
        ("0", "load", True, True),
        ("0", "UserError", False, True),
        ("import torch", "load", False, True),
        ("gc.disable()", "load", False, False),
    ],
)
def test_what_is_imported_is_not_searched(first, name, frozen, searches):
    command = [sys.executable, "-c", COUNT.format(first=first, name=name)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    count, enabled = done.stdout.split()
    assert (int(count) > 100_000) == frozen
    assert enabled == str(searches)


def test_a_failed_import_leaves_the_search_on(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    try:
        with pytest.raises(ImportError), unswept():
            raise ImportError
        assert gc.isenabled()
    finally:
        gc.unfreeze()
