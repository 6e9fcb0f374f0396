"""The tokenizer that a task on raw text is given: a [model] has it in the place of a vocabulary that it learns."""

from __future__ import annotations

import hashlib

from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.models.base import Base


def tokenizer_hash(folder: str | None) -> tuple[str, ...]:
    """Of the tokenizer, where one is given."""
    return () if folder is None else (hashlib.sha256(Tokenizer.load(folder).to_json().encode()).hexdigest(),)


def check_tokenizer(section: str, folder: str | None, base: Base) -> None:
    """A base goes on with its own, which another must not contradict and its model must have room for."""
    if folder is not None and Tokenizer.load(folder).to_json() != base.tokenizer.to_json():
        raise UserError(f"{section}.tokenizer {folder} is not that of base {base.name!r}: leave it out")
    if base.tokenizer.vocab_size > base.config.vocab:
        sizes = f"{base.tokenizer.vocab_size:,} tokens and its model {base.config.vocab:,}"
        raise UserError(f"the tokenizer of base {base.name!r} has {sizes}: they do not belong together")
