"""Python does not search what was imported for garbage, and searches everything else as before."""

import gc
import subprocess
import sys

import pytest

from peftlab.importing import unswept

COUNT = "import gc, sys; {first}; import peftlab; peftlab.load; print(gc.get_freeze_count(), gc.isenabled())"


@pytest.mark.parametrize(
    ("first", "frozen", "searches"), [("0", True, True), ("import torch", False, True), ("gc.disable()", False, False)]
)
def test_what_is_imported_is_not_searched(first, frozen, searches):
    done = subprocess.run([sys.executable, "-c", COUNT.format(first=first)], capture_output=True, text=True, check=True)
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
