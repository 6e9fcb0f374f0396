"""Loading a base: its files are hashed while torch is imported, where that is not there yet.

base = peftlab.load("minilm")
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from peftlab.data.sources import fetch_base, kept_base
from peftlab.importing import unswept

if TYPE_CHECKING:
    from peftlab.models.base import Base


def load(name: str | Path) -> Base:
    """A base by short name (`minilm`), folder, or hub id (`owner/name`), in evaluation mode."""
    with ThreadPoolExecutor(1) as beside:
        kept = beside.submit(kept_base, str(name))
        with unswept():
            from peftlab.models.base import open_base
    return open_base(name, kept.result() or fetch_base(str(name)))
