"""peftlab: a laboratory for the Transformer and its parameter-efficient fine-tuning.

    import peftlab

    base = peftlab.load("minilm")
    batch = base.encode(["a sentence", "another"])
    base.model(batch).hidden

Names are imported when they are first used: importing torch takes longer than most commands need.
"""

import importlib
from typing import TYPE_CHECKING, Any

from peftlab.importing import unswept
from peftlab.processor import do_without_hidden_tiles

if TYPE_CHECKING:
    from peftlab.data.batch import Batch as Batch
    from peftlab.data.tokenizer import Tokenizer as Tokenizer
    from peftlab.errors import UserError as UserError
    from peftlab.loading import load as load
    from peftlab.models.base import Base as Base
    from peftlab.models.encoder import Encoder as Encoder
    from peftlab.models.encoder import EncoderConfig as EncoderConfig
    from peftlab.models.heads import Classifier as Classifier
    from peftlab.models.parser import Parser as Parser
    from peftlab.models.tagger import Tagger as Tagger
    from peftlab.peft import Adapter as Adapter
    from peftlab.peft import BitFit as BitFit
    from peftlab.peft import Full as Full
    from peftlab.peft import Head as Head
    from peftlab.peft import LoRA as LoRA
    from peftlab.peft import Prefix as Prefix
    from peftlab.peft import Prompt as Prompt
    from peftlab.peft import PTuning as PTuning
    from peftlab.peft import Scratch as Scratch
    from peftlab.peft import SlowStart as SlowStart
    from peftlab.peft.attach import activate as activate
    from peftlab.peft.attach import attach as attach
    from peftlab.peft.attach import combine as combine
    from peftlab.peft.attach import detach as detach
    from peftlab.peft.attach import fold as fold
    from peftlab.peft.attach import freeze as freeze
    from peftlab.peft.attach import merge as merge
    from peftlab.peft.attach import unmerge as unmerge
    from peftlab.peft.describe import describe as describe
    from peftlab.peft.formats import load_adapter as load_adapter
    from peftlab.peft.formats import save_adapter as save_adapter
    from peftlab.tracing import trace as trace

__version__ = "0.1.0"

WHERE = {
    "Adapter": "peftlab.peft",
    "Base": "peftlab.models.base",
    "Batch": "peftlab.data.batch",
    "BitFit": "peftlab.peft",
    "Classifier": "peftlab.models.heads",
    "Encoder": "peftlab.models.encoder",
    "EncoderConfig": "peftlab.models.encoder",
    "Full": "peftlab.peft",
    "Head": "peftlab.peft",
    "LoRA": "peftlab.peft",
    "PTuning": "peftlab.peft",
    "Parser": "peftlab.models.parser",
    "Prefix": "peftlab.peft",
    "Prompt": "peftlab.peft",
    "Scratch": "peftlab.peft",
    "SlowStart": "peftlab.peft",
    "Tagger": "peftlab.models.tagger",
    "Tokenizer": "peftlab.data.tokenizer",
    "UserError": "peftlab.errors",
    "activate": "peftlab.peft.attach",
    "attach": "peftlab.peft.attach",
    "combine": "peftlab.peft.attach",
    "describe": "peftlab.peft.describe",
    "detach": "peftlab.peft.attach",
    "fold": "peftlab.peft.attach",
    "freeze": "peftlab.peft.attach",
    "load": "peftlab.loading",
    "load_adapter": "peftlab.peft.formats",
    "merge": "peftlab.peft.attach",
    "save_adapter": "peftlab.peft.formats",
    "trace": "peftlab.tracing",
    "unmerge": "peftlab.peft.attach",
}
__all__ = [*WHERE]

do_without_hidden_tiles()


def __getattr__(name: str) -> Any:
    if name not in WHERE:
        raise AttributeError(f"module 'peftlab' has no attribute {name!r}")
    with unswept():
        module = importlib.import_module(WHERE[name])
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *WHERE])
