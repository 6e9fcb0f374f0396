"""peftlab: a laboratory for the Transformer and its parameter-efficient fine-tuning.

    import peftlab

    base = peftlab.load("minilm")
    batch = base.encode(["a sentence", "another"])
    base.model(batch).hidden

Names are imported when they are first used: importing torch takes longer than most commands need.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peftlab.base import Base as Base
    from peftlab.base import load as load
    from peftlab.data.batch import Batch as Batch
    from peftlab.data.tokenizer import Tokenizer as Tokenizer
    from peftlab.errors import UserError as UserError
    from peftlab.models.encoder import Encoder as Encoder
    from peftlab.models.encoder import EncoderConfig as EncoderConfig
    from peftlab.trace import trace as trace

__version__ = "0.1.0"

WHERE = {
    "Base": "peftlab.base",
    "Batch": "peftlab.data.batch",
    "Encoder": "peftlab.models.encoder",
    "EncoderConfig": "peftlab.models.encoder",
    "Tokenizer": "peftlab.data.tokenizer",
    "UserError": "peftlab.errors",
    "load": "peftlab.base",
    "trace": "peftlab.trace",
}
__all__ = [*WHERE]


def __getattr__(name: str) -> Any:
    if name not in WHERE:
        raise AttributeError(f"module 'peftlab' has no attribute {name!r}")
    return getattr(importlib.import_module(WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *WHERE])
