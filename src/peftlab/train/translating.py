"""Training a translator on pairs of texts: one of one's own, or a base such as Marian or BART with an adapter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from peftlab.data.batch import Batch, Pair
from peftlab.data.parallel import Pairs, joined, load_parallel
from peftlab.data.tokenizer import Tokenizer
from peftlab.generate.beam import Beam
from peftlab.generate.search import Search, Written, write
from peftlab.models.model import Model
from peftlab.models.writer import Marks, Writer
from peftlab.tasks.next_token import marks
from peftlab.tasks.translate import Encoded, Translate, bleu_by_length, encode, scores
from peftlab.train.asking import ask
from peftlab.train.config import Config
from peftlab.train.config import Translate as Settings
from peftlab.train.loop import Training
from peftlab.train.stop import Stop
from peftlab.train.writing import Writing, room

EDGES = (8, 12, 16, 21, 31, 41)
"""words of the source at which a bin of the BLEU by length begins"""


class Translating(Writing):
    """Texts into other texts."""

    kinds = ("seq2seq", "rnn")
    bases = "a Marian, a BART or a translator that a run trained"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert config.translate is not None
        self.asked = config.translate
        data = load_parallel(self.asked.name, self.asked.direction)
        self.data = replace(data, train=first(data.train, self.asked.limit))
        self.tests: dict[str, Pairs] = {}
        for name, part in data.tests.items():
            whole, *longer = lengthened(first(part, self.asked.test_limit), self.asked.joined)
            self.tests |= {name: whole} | {f"{name}, {k} joined": pairs for k, pairs in enumerate(longer, 2)}
        self.name = data.name

    def hashes(self) -> tuple[str, ...]:
        return self.data.fingerprint(), *self.base_hash()

    def marks(self, tokenizer: Tokenizer) -> Marks:
        return marks(tokenizer)

    def training(self) -> Training:
        train, asked = self.data.train, self.asked
        texts = [*train.sources, *train.targets]
        self.base = self.open(asked, texts, "translate.max_length", asked.max_length)
        both = (lengthened(part, asked.joined) for part in (train, self.data.validation))
        rows, held = (self.encoded(together(parts)) for parts in both)
        method = self.config.build_method()
        return Training(self.base.model, method, Translate(asked.smoothing), rows, held, self.config.train)

    def encoded(self, part: Pairs) -> Encoded:
        """A part's tokens."""
        model, asked = self.base.model, self.asked
        return encode(self.base.tokenizer, part, room(model, asked.max_length), model.marks, asked.lowercase)

    def test(self, training: Training, stop: Stop) -> dict[str, list[Any]]:
        how, longest = search(self.asked), room(training.model, self.asked.max_length)

        def question(model: Model, inputs: Pair, labels: Tensor) -> list[str]:
            return [self.base.tokenizer.decode(best.tokens) for best in translate(model, inputs.source, how, longest)]

        return {
            name: ask(training.model, self.encoded(part), question, training.precision, stop)
            for name, part in self.tests.items()
        }

    def result(self, answers: dict[str, list[Any]]) -> dict[str, Any]:
        tests = {name: scores(texts, self.tests[name].targets, self.asked.lowercase) for name, texts in answers.items()}
        means = {key: sum(float(part[key]) for part in tests.values()) / len(tests) for key in ("bleu", "chrf")}
        said = f"BLEU {means['bleu']:.1f}, chrF {means['chrf']:.1f}"
        every, texts = (
            together([self.tests[name] for name in answers]),
            [text for part in answers.values() for text in part],
        )
        bins = bleu_by_length(every.sources, texts, every.targets, EDGES, self.asked.lowercase)
        by_length = [vars(found) for found in bins]
        return {**means, "said": said, "tests": tests, "by_length": by_length, "predictions": answers}


def first(part: Pairs, most: int | None) -> Pairs:
    """At most so many pairs; None: all."""
    return part if most is None else part.take(range(min(most, len(part))))


def lengthened(part: Pairs, most: int) -> list[Pairs]:
    """The pairs, and long ones of two, three … up to so many of them joined."""
    return [part, *(joined(part, k, seed=k) for k in range(2, min(most, len(part)) + 1))]


def together(parts: list[Pairs]) -> Pairs:
    """One part of many."""
    sources, targets = ([text for part in parts for text in getattr(part, side)] for side in ("sources", "targets"))
    return Pairs(sources, targets, [row for part in parts for row in part.rows])


def search(asked: Settings) -> Search:
    """How texts are looked for."""
    return Beam(asked.beam, asked.length_penalty)


def translate(model: Model, sources: Batch, how: Search, longest: int) -> list[Written]:
    """The best text for each source, of at most `longest` tokens with its marks."""
    assert isinstance(model, Writer)
    return [found[0] for found in write(model, sources, how, longest - 2)]
