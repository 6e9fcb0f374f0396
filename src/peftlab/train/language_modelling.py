"""Training a language model: on lines of text, one of one's own or a base such as GPT-2 with an adapter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from peftlab.data.text import Text, load_text
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.models.writer import Marks
from peftlab.tasks.language_model import LanguageModel, Packed, pack, perplexities
from peftlab.tasks.next_token import marks
from peftlab.train.asking import ask
from peftlab.train.config import Config
from peftlab.train.loop import Training
from peftlab.train.stop import Stop
from peftlab.train.vocabulary import check_tokenizer, tokenizer_hash
from peftlab.train.writing import Writing, room


class LanguageModelling(Writing):
    """How texts go on."""

    kinds = ("decoder", "reformer")
    bases = "a GPT-2 or Reformer, or a language model that a run trained"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert config.language_model is not None
        self.asked = config.language_model
        if self.asked.units is not None and self.asked.tokenizer is not None:
            raise UserError("language_model has units and a tokenizer, which has its own: leave one of them out")
        data = load_text(self.asked.name)
        tests = {name: part[: self.asked.test_limit] for name, part in data.tests.items()}
        self.data = replace(data, train=data.train[: self.asked.limit], tests=tests)
        self.name = data.name

    def hashes(self) -> tuple[str, ...]:
        return self.data.fingerprint(), *self.base_hash(), *tokenizer_hash(self.asked.tokenizer)

    def marks(self, tokenizer: Tokenizer) -> Marks:
        return replace(marks(tokenizer), start=None)

    def vocabulary(self, texts: Sequence[str], size: int, lowercase: bool) -> Tokenizer:
        if self.asked.tokenizer is not None:
            return Tokenizer.load(self.asked.tokenizer)
        if self.asked.units == "bytes":
            return Tokenizer.of_bytes(lowercase)
        return super().vocabulary(texts, size, lowercase)

    def training(self) -> Training:
        asked = self.asked
        self.base = self.open(asked, self.data.train.lines, "language_model.length", asked.length)
        if self.config.model is None:
            check_tokenizer("language_model", asked.tokenizer, self.base)
        rows, held = map(self.packed, (self.data.train, self.data.validation))
        if len(rows.tokens) <= rows.length:
            tokens = f"{self.name} has {len(rows.tokens) - 1} tokens to train on"
            raise UserError(f"{tokens}, fewer than language_model.length = {rows.length}: give more text")
        self.tests = {name: self.packed(part) for name, part in self.data.tests.items()}
        task = LanguageModel(chunk=asked.loss_chunk)
        return Training(self.base.model, self.config.build_method(), task, rows, held, self.config.train)

    def packed(self, part: Text) -> Packed:
        """A part's tokens."""
        model = self.base.model
        return pack(self.base.tokenizer, part, room(model, self.asked.length), model.marks, self.asked.lowercase)

    def test(self, training: Training, stop: Stop) -> dict[str, list[Any]]:
        return {
            name: ask(training.model, part, training.task.judge, training.precision, stop)
            for name, part in self.tests.items()
        }

    def result(self, answers: dict[str, list[Any]]) -> dict[str, Any]:
        """The perplexity of each test part and of all; as answers −log p of each row."""
        sizes = {name: {"tokens": len(part.tokens) - 1, "words": part.words} for name, part in self.tests.items()}
        tests = {name: {**perplexities(rows, **sizes[name]), **sizes[name]} for name, rows in answers.items()}
        total = {key: sum(size[key] for size in sizes.values()) for key in ("tokens", "words")}
        every = perplexities([sum(rows) for rows in answers.values()], **total)
        token, word = ("too large" if value is None else f"{value:,.2f}" for value in every.values())
        said = f"perplexity {token} a token, {word} a word"
        return {**every, "said": said, "tests": tests, "predictions": answers}
