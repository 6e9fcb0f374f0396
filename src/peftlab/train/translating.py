"""Training a translator: a vocabulary and a model of one's own on pairs of texts, and back from a run's folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from peftlab.data.batch import Batch, Pair
from peftlab.data.parallel import Pairs, joined, load_parallel
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.generate.beam import Beam
from peftlab.generate.search import Search, Written, write
from peftlab.models.base import Base, load
from peftlab.models.model import Model
from peftlab.models.own import OWN, make_model
from peftlab.models.writer import Writer
from peftlab.tasks.translate import Encoded, Translate, bleu_by_length, encode, marks, scores
from peftlab.train.config import Config, read_config_file
from peftlab.train.config import Translate as Settings
from peftlab.train.loop import Training, ask
from peftlab.train.precision import pick_device
from peftlab.train.stop import Stop
from peftlab.train.work import Work

EDGES = (8, 12, 16, 21, 31, 41)
"""words of the source at which a bin of the BLEU by length begins"""


class Translating(Work):
    """Texts into other texts."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert config.translate is not None
        if config.model is None:
            raise UserError('a translation needs a [model] to train: give one, such as kind = "seq2seq"')
        if not config.build_method().trains_base:
            raise UserError(f"{config.method['name']} adapts a base, and a [model] of one's own has none: use full")
        self.asked = config.translate
        data = load_parallel(self.asked.name, self.asked.direction)
        self.data = replace(data, train=first(data.train, self.asked.limit))
        self.tests: dict[str, Pairs] = {}
        for name, part in data.tests.items():
            whole, *longer = lengthened(first(part, self.asked.test_limit), self.asked.joined)
            self.tests |= {name: whole} | {f"{name}, {k} joined": pairs for k, pairs in enumerate(longer, 2)}
        self.name = data.name

    def hashes(self) -> tuple[str, ...]:
        return (self.data.fingerprint(),)

    def training(self) -> Training:
        assert self.config.model is not None
        train, asked = self.data.train, self.asked
        self.tokenizer = Tokenizer.train_on(
            [*train.sources, *train.targets], "bpe", vocab_size=asked.vocab, lowercase=asked.lowercase
        )
        model = make_model(self.config.model, self.tokenizer.vocab_size, marks(self.tokenizer))
        if model.max_length is not None and model.max_length < asked.max_length:
            lengths = f"model.max_length is {model.max_length} and translate.max_length {asked.max_length}"
            raise UserError(f"{lengths}: the model needs as many positions as a text may have tokens")
        self.model = model.to(pick_device())
        both = (lengthened(part, asked.joined) for part in (train, self.data.validation))
        rows, held = (self.encoded(together(parts)) for parts in both)
        method = self.config.build_method()
        return Training(self.model, method, Translate(asked.smoothing), rows, held, self.config.train)

    def encoded(self, part: Pairs) -> Encoded:
        """A part's tokens."""
        return encode(self.tokenizer, part, self.asked.max_length)

    def test(self, training: Training, stop: Stop) -> dict[str, list[Any]]:
        how, longest = search(self.asked), self.asked.max_length

        def question(model: Model, inputs: Pair, labels: Tensor) -> list[str]:
            return [self.tokenizer.decode(best.tokens) for best in translate(model, inputs.source, how, longest)]

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

    def save(self, folder: Path) -> list[Path]:
        folder = folder / "model"
        Base(str(folder), self.model.cpu(), self.tokenizer, OWN, {}).save(folder)
        return [folder]


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


def open_translator(folder: Path) -> tuple[Writer, Tokenizer, Settings]:
    """A finished run's model, ready to translate."""
    base, asked = load(folder / "model"), read_config_file(folder / "config.toml").translate
    assert asked is not None
    return base.model, base.tokenizer, asked
