"""What the tasks of a model that writes share: one of one's own with a vocabulary that it learns, or a base.

    [model]                    base = "folder of a Marian, a BART, a GPT-2 or a run's model"
    kind = "seq2seq"           [method]
    …                          name = "lora"

A base keeps its tokenizer and its marks, and is adapted by any method.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from peftlab.data.tokenizer import Tokenizer
from peftlab.data.tokens import learn_vocabulary
from peftlab.errors import UserError, unknown
from peftlab.layers.embedding import Embedding
from peftlab.models.base import Base, load
from peftlab.models.model import Model
from peftlab.models.own import KINDS, OWN, make_model
from peftlab.models.writer import Marks
from peftlab.train.artefact import adapt
from peftlab.train.config import LanguageModel, Translate
from peftlab.train.precision import pick_device
from peftlab.train.work import Work


class Writing(Work):
    """A task of a model that writes."""

    kinds: ClassVar[tuple[str, ...]]
    """of `models/own.py` that can do it, the usual one first"""
    bases: ClassVar[str]
    """what is adapted to it, for messages"""

    @abstractmethod
    def marks(self, tokenizer: Tokenizer) -> Marks:
        """What a model of one's own lives by, with this vocabulary."""

    def vocabulary(self, texts: Sequence[str], size: int, lowercase: bool) -> Tokenizer:
        """Of a model of one's own."""
        return learn_vocabulary(texts, "bpe", size, lowercase)

    def open(self, asked: Translate | LanguageModel, texts: Sequence[str], setting: str, length: int) -> Base:
        """What is to be trained. A model of one's own learns its vocabulary from the texts, and has positions for as
        many tokens as the setting asks for; a base may have fewer (`room`).
        """
        if self.config.model is None:
            base = load(self.config.base)
            if not isinstance(base.model, tuple(KINDS[kind][0] for kind in self.kinds)):
                kind = type(base.model).__name__
                raise UserError(f"base {base.name!r} is of the kind {kind}: give {self.bases}, or a [model] to train")
            return adapt(base, self.config.build_method())
        settings = {"kind": self.kinds[0], **self.config.model}
        if settings["kind"] not in self.kinds:
            raise unknown("kind in [model]", str(settings["kind"]), self.kinds)
        tokenizer = self.vocabulary(texts, asked.vocab, asked.lowercase)
        model = make_model(settings, tokenizer.vocab_size, self.marks(tokenizer))
        if model.max_length is not None and model.max_length < length:
            lengths = f"model.max_length is {model.max_length} and {setting} {length}"
            raise UserError(f"{lengths}: the model needs as many positions as a text may have tokens")
        return Base("model", model.to(pick_device()), tokenizer, OWN, {})


def room(model: Model, most: int) -> int:
    """How many tokens a text may have: `most`, or fewer where the model has no more positions for them."""
    return min([most, *(module.room for module in model.modules() if isinstance(module, Embedding))])
