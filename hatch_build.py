"""Builds the kernels in C when the package is built, where that is possible (src/peftlab/native/building.py).

Without a C compiler, or on another kind of machine, the package has none and torch computes everything.
"""

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Kernels(BuildHookInterface):
    """Called by hatchling for wheels and for editable installations."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the files of a package are gathered."""
        script = Path(self.root, "src", "peftlab", "native", "building.py")
        if self.target_name == "wheel" and (libraries := runpy.run_path(str(script))["build"]()):
            build_data["artifacts"] += [str(library.relative_to(self.root)) for library in libraries]
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
