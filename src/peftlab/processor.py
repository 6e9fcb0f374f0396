"""What a processor says of itself, and what of that does not hold: AMX, whose tiles a virtual machine may hide.

A hypervisor that passes AMX's flags on but answers no question about its tiles (CPUID's leaf 0x1D) makes oneDNN, which
torch computes with, work with tiles of no size: the first product in bf16 ends the process with an illegal
instruction. Linux tells both, the flags and the highest leaf. There oneDNN is told to do without, which is what the
package does when it is imported. Without tiles bf16 has half the speed of fp32 on a processor of Intel's (a Sapphire
Rapids, 2 threads, MiniLM's products: 165 against 320 GFLOP/s; an Emerald Rapids that hides the flags too: 184 and 314).
"""

import os
from itertools import takewhile
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
TILES = 0x1D
"""the leaf of CPUID that tells how large tiles are"""
WITHOUT_TILES = "AVX512_CORE_FP16"
"""what oneDNN calls the most that such a processor computes with otherwise"""


def facts() -> dict[str, str]:
    """What Linux tells of the first processor; elsewhere nothing."""
    if not CPUINFO.is_file():
        return {}
    with CPUINFO.open(encoding="utf-8") as lines:
        first = [line.partition(":") for line in takewhile(str.strip, lines)]  # an empty line, then the next processor
    return {name.strip(): value.strip() for name, _, value in first}


def tiles_hidden() -> bool:
    """Whether this processor claims to have AMX, and nobody can ask it for the size of a tile."""
    told = facts()
    return "amx_tile" in told.get("flags", "").split() and int(told.get("cpuid level", TILES)) < TILES


def intel() -> bool:
    """Whether this processor is Intel's."""
    return facts().get("vendor_id") == "GenuineIntel"


def do_without_hidden_tiles() -> None:
    """Before torch computes anything; who set oneDNN's variable has decided."""
    if tiles_hidden():
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", WITHOUT_TILES)
