"""What a run says while it trains: `metrics.jsonl`, a line a step; on request TensorBoard's files; whoever listens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peftlab.data.files import write_text
from peftlab.errors import UserError

Tell = Callable[[dict[str, Any]], None]


class Metrics:
    """Called with each line. A run that goes on keeps the lines of the steps `done` and of those `evaluated`."""

    def __init__(self, folder: Path, done: int, evaluated: int, tell: Tell, tensorboard: bool = False) -> None:
        path = folder / "metrics.jsonl"
        lines = [(line, json.loads(line)) for line in whole_lines(path)]
        write_text(
            path, "".join(line for line, told in lines if told["step"] <= (evaluated if "score" in told else done))
        )
        self.file = path.open("a", encoding="utf-8")
        self.tell = tell
        self.board = board(folder / "tensorboard", done) if tensorboard else None

    def __call__(self, line: dict[str, Any]) -> None:
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()
        for name in ("loss", "score"):
            if self.board is not None and name in line:
                self.board.add_scalar(name, line[name], line["step"])
        self.tell(line)

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        if self.board is not None:
            self.board.close()


def whole_lines(path: Path) -> list[str]:
    """The lines that were written to their end."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    return [line for line in lines if line.endswith("}\n")]


def board(folder: Path, done: int) -> Any:
    """TensorBoard's writer."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("train.tensorboard needs the package tensorboard: pip install 'peftlab[tensorboard]'") from None
    return SummaryWriter(str(folder), purge_step=done + 1)
