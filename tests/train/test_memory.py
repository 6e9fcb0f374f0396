"""Where the memory of large tensors comes from: asked of a process of its own, whose C library is told."""

import platform
import subprocess
import sys

import pytest

CODE = """
import re
from pathlib import Path
import torch
from peftlab.train.memory import keep_freed, return_freed

def in_the_store(size):
    place = torch.empty(size, dtype=torch.uint8).data_ptr()
    [ends] = re.findall(r"(\\w+)-(\\w+) .*\\[heap\\]", Path("/proc/self/maps").read_text())
    low, high = (int(end, 16) for end in ends)
    return low <= place < high

assert not in_the_store(50 << 20)
keep_freed()
assert in_the_store(50 << 20)
return_freed()
assert not in_the_store(50 << 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")
def test_what_a_step_frees_is_kept_however_large_and_given_back_where_memory_runs_out():
    subprocess.run([sys.executable, "-c", CODE], check=True)
