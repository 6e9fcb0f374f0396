"""A side as a process of its own, which takes a turn when it is asked; both ends of the pipe.

The child is `python -m benchmarks.side TOLD`, with the row's name, the side, and its settings as JSON. It says a line
when it is ready, and one for each line that comes in: the `Turn`.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.contestant import Turn, loaded_memory, memory
from benchmarks.row import Row, Settings

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
QUIET = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TOKENIZERS_PARALLELISM": "true"}
"""also that a tokenizer may have as many threads as the rest, whoever forked it"""


class Side:
    """The parent's end."""

    def __init__(self, row: Row, point: Mapping[str, Any], side: str, settings: Settings) -> None:
        told = {"module": row.module, "side": side, "asked": row.told(point, settings), "settings": asdict(settings)}
        self.about = f"{row.name}, {side}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.side", json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
            env=os.environ | dict.fromkeys(THREADS, str(settings.threads)) | QUIET,
        )

    def wait(self) -> None:
        """Until it is built and warm; nothing of that is raced, so all sides may do it at once."""
        self.answer()

    def answer(self) -> Any:
        """The next line that it says."""
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            sys.exit(f"{self.about}: the process ended with code {self.process.wait()}")
        return json.loads(line)

    def turn(self) -> Turn:
        """Let it take a turn, while all others wait."""
        assert self.process.stdin is not None
        self.process.stdin.write("turn\n")
        self.process.stdin.flush()
        return Turn(**self.answer())

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.communicate()


def main() -> None:
    told = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed here is no answer
    contestant = importlib.import_module(f"benchmarks.rows.{told['module']}").build(
        told["side"], told["asked"], Settings(**told["settings"])
    )
    loaded = loaded_memory(contestant.model)
    contestant.warm_up()
    print(json.dumps("ready"), file=answers, flush=True)
    for _ in sys.stdin:
        turn = contestant.turn()
        print(json.dumps(asdict(replace(turn, memory=memory("VmHWM") - loaded))), file=answers, flush=True)


if __name__ == "__main__":
    main()
