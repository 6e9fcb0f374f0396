"""How long a command waits before it does anything: a new interpreter each time.

Ours is `peftlab --help`, `import peftlab`, or loading the base and a first prediction; the peer's is to import
`transformers` and `peft` and to load the same base, without a prediction.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from benchmarks.contestant import Contestant, Repeated
from benchmarks.row import Settings

PREDICT = """
import peftlab
base = peftlab.load({base!r})
peftlab.attach(base.model, "mine", peftlab.Head(), head=peftlab.Classifier(labels=2))
base.model(base.encode("a good film")).logits.tolist()
"""
PEER = """
import transformers, peft
transformers.AutoTokenizer.from_pretrained({folder!r})
transformers.AutoModelForSequenceClassification.from_pretrained({folder!r}, num_labels=2)
"""


def build(side: str, asked: dict[str, Any], settings: Settings) -> Contestant:
    """`asked["command"]` is ours."""
    from peftlab.data.sources import fetch_base

    ours = {
        "help": ["-m", "peftlab", "--help"],
        "import": ["-c", "import peftlab"],
        "predict": ["-c", PREDICT.format(base=settings.base)],
    }
    peer = ["-c", PEER.format(folder=str(fetch_base(settings.base)))]
    command = [sys.executable, *(ours[asked["command"]] if side == "ours" else peer)]
    return Repeated(lambda: subprocess.run(command, check=True, capture_output=True))
