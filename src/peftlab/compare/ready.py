"""The base of a comparison, in the process that its runs are forked from: they have it without reading it.

That process imports this file before the first run (`PRELOADED` in grid.py); its environment tells which folder
the base is in. A run that finds another hash than this one's base has, as in a later comparison, reads its own.
"""

from __future__ import annotations

import os

import torch

from peftlab.errors import UserError
from peftlab.models.base import Loaded, base_fingerprint, load

VARIABLE = "PEFTLAB_READY"
"""of the environment: the base's folder"""


def read(folder: str | None) -> Loaded | None:
    """The base of a folder; None where there is none, of which a run will tell."""
    if folder is None:
        return None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # others would not be there in a run
    try:
        return Loaded(load(folder), base_fingerprint(folder))
    except (UserError, OSError, RuntimeError, MemoryError):
        return None
    finally:
        torch.set_num_threads(threads)


READY = read(os.environ.pop(VARIABLE, None))
