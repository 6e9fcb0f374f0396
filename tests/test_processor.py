"""A processor that claims tiles which it hides is found out by what Linux tells of it, and bf16 runs on any."""

import subprocess
import sys

import pytest
import torch

from peftlab import native, processor
from peftlab.train.precision import pick_precision

INTEL = """processor\t: 0
vendor_id\t: GenuineIntel
cpuid level\t: {level}
power management:
flags\t\t: fpu {flags}

processor\t: 1
flags\t\t: amx_tile
"""
"""as Linux tells it, the second processor after an empty line"""


@pytest.mark.parametrize(
    ("level", "flags", "hidden"),
    [(28, "avx512_bf16 amx_bf16 amx_tile", True), (32, "amx_bf16 amx_tile", False), (13, "avx2", False)],
)
def test_tiles_that_nobody_can_ask_for_are_hidden(tmp_path, monkeypatch, level, flags, hidden):
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    assert not processor.tiles_hidden()  # where there is no such file
    processor.CPUINFO.write_text(INTEL.format(level=level, flags=flags))
    assert processor.tiles_hidden() is hidden
    processor.do_without_hidden_tiles()
    assert (processor.os.environ.get("ONEDNN_MAX_CPU_ISA") is not None) is hidden


def test_bf16_is_not_chosen_where_tiles_are_hidden(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr("peftlab.train.precision.intel", lambda: True)
    for integers in (False, True):
        monkeypatch.setattr(native, "INTEGERS", integers)
        for hidden, precision in ((True, "int16" if integers else "fp32"), (False, "bf16")):
            monkeypatch.setattr("peftlab.train.precision.tiles_hidden", lambda hidden=hidden: hidden)
            assert pick_precision("auto", torch.device("cpu")) == precision
            assert pick_precision("bf16", torch.device("cpu")) == "bf16"


@pytest.mark.parametrize(("intels", "precision"), [(True, "fp32"), (False, "bf16")])
def test_bf16_without_tiles_is_for_others_than_intel(monkeypatch, intels, precision):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(native, "INTEGERS", False)
    monkeypatch.setattr("peftlab.train.precision.intel", lambda: intels)
    assert pick_precision("auto", torch.device("cpu")) == precision


@pytest.mark.parametrize(("vendor", "intels"), [("GenuineIntel", True), ("AuthenticAMD", False)])
def test_whose_a_processor_is(tmp_path, monkeypatch, vendor, intels):
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    assert not processor.intel()  # where there is no such file
    processor.CPUINFO.write_text(INTEL.format(level=13, flags="avx2").replace("GenuineIntel", vendor))
    assert processor.intel() is intels


def test_a_product_in_bf16_does_not_end_the_process():
    code = "import peftlab, torch; x = torch.ones(64, 64).bfloat16(); print(float((x @ x)[0, 0]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "64.0\n")
