"""Importing torch in three quarters of the time, its end included.

While its half a million objects are made, Python looks for garbage among them again and again, and once more among all
of them when the process ends; hardly any is there. Here it does not look then, nor later, until somebody tells it to
(`gc.unfreeze`).
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unswept() -> Iterator[None]:
    """What is imported inside is not searched for garbage; where torch is there already, or nobody searches, nothing is
    done.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if "torch" in sys.modules:
            gc.freeze()
        gc.enable()
