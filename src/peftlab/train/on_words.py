"""What tagging and parsing share: an adapter on a base, and a head that answers for each word of a sentence."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from peftlab.data.conllu import Sentence
from peftlab.data.tagged import Tagged
from peftlab.data.tokenizer import Tokenizer
from peftlab.data.treebank import Treebank, load_sentences
from peftlab.errors import UserError
from peftlab.models.heads import Labels
from peftlab.tasks import parse, tag
from peftlab.tasks.task import Tally, Task
from peftlab.train.artefact import adapt
from peftlab.train.asking import ask
from peftlab.train.config import Config, Sentences
from peftlab.train.loop import Training
from peftlab.train.stop import Stop
from peftlab.train.work import Comparable

S = TypeVar("S", Tagged, Sentence)


class OnWords(Comparable, Generic[S]):
    """Sentences, with an answer for each word."""

    labels = ()
    nothing: Any
    """an answer that says nothing of any word"""

    def __init__(self, config: Config, asked: Sentences, read: Callable[[Path], list[S]]) -> None:
        super().__init__(config)
        if config.model is not None:
            raise UserError("words are tagged and parsed by a base, and a [model] of one's own is none: leave it out")
        self.asked = asked
        whole: Treebank[S] = load_sentences(asked.name, read)
        self.check([sentence for part in whole.parts.values() for sentence in part])
        self.data: Treebank[S] = whole.limited(asked.limit, asked.test_limit)
        self.name = self.data.name

    def check(self, sentences: Sequence[S]) -> None:
        """What has to be known of all sentences, also of those beyond a limit."""

    def hashes(self) -> tuple[str, ...]:
        return self.data.fingerprint(self.content), *self.base_hash()

    @abstractmethod
    def content(self, sentence: S) -> list[Any]:
        """What of a sentence the run depends on."""

    @abstractmethod
    def answers(self, sentence: S) -> list[str]:
        """What is to be said of each word."""

    def first(self, count: int) -> list[str]:
        rows = self.data.train[:count]
        return [" ".join(map("/".join, zip(row.words, self.answers(row), strict=True))) for row in rows]

    def texts(self, part: list[S]) -> list[Any]:
        return [" ".join(sentence.words) for sentence in part]

    def gold(self, part: list[S]) -> list[int]:
        return [row.there for row in self.tally([self.nothing] * len(part), part)]

    def outcomes(self, answers: Sequence[Any], part: list[S]) -> list[tuple[int, int]]:
        return [(row.given, row.right) for row in self.tally(answers, part)]

    @abstractmethod
    def head(self) -> Labels:
        """What answers for a word."""

    @abstractmethod
    def task(self) -> Task:
        """What is learned."""

    @abstractmethod
    def encode(self, tokenizer: Tokenizer, part: list[S], max_length: int) -> tag.Encoded | parse.Encoded:
        """A part's tokens."""

    @abstractmethod
    def scores(self, answers: Sequence[Any], part: list[S]) -> dict[str, float]:
        """How good the answers for a part are."""

    @abstractmethod
    def tally(self, answers: Sequence[Any], part: list[S]) -> list[Tally]:
        """Of each sentence what `metric` is made of."""

    def training(self) -> Training:
        method = self.config.build_method()
        self.base = adapt(self.load_base().shallow(self.config.layers), method, self.head())
        longest = min(self.asked.max_length, self.base.room)
        self.encoded = {name: self.encode(self.base.tokenizer, part, longest) for name, part in self.data.parts.items()}
        rows, held = self.encoded["train"], self.encoded["validation"]
        return Training(self.base.model, method, self.task(), rows, held, self.config.train)

    def test(self, training: Training, stop: Stop) -> dict[str, list[Any]]:
        return {
            name: ask(training.model, self.encoded[name], training.task.judge, training.precision, stop)
            for name in self.data.tests
        }

    def result(self, answers: dict[str, list[Any]]) -> dict[str, Any]:
        tests = {name: self.scores(found, self.data.tests[name]) for name, found in answers.items()}
        means = {key: sum(part[key] for part in tests.values()) / len(tests) for key in next(iter(tests.values()))}
        said = ", ".join(f"{SPOKEN.get(key, key)} {value:.4f}" for key, value in means.items())
        counts = {name: counted(part) for name, part in self.encoded.items()}
        note = noted(counts)
        said += f" ({note})" if note else ""
        return {**means, "said": said, "note": note, "tests": tests, "counts": counts, "predictions": answers}


SPOKEN = {"f1": "F1", "uas": "UAS", "las": "LAS"}
DONE = {
    "lost": "cut off",
    "blank": "without a token",
    "unseen": "with a label unseen in training",
    "repaired": "with a repaired tag",
}
"""what may be done to words, as it is told"""


def counted(part: tag.Encoded | parse.Encoded) -> dict[str, int]:
    """How much there is in a part, and what was done to it."""
    found = {
        "sentences": len(part),
        "words": part.weight(range(len(part))) + part.words.lost,
        "lost": part.words.lost,
        "blank": part.words.blank,
        "unseen": part.unseen,
    }
    return found | ({"repaired": part.repaired} if isinstance(part, tag.Encoded) else {})


def noted(counts: Mapping[str, Mapping[str, int]]) -> str:
    """What was done to the words of the parts, where anything was.

    >>> noted({"train": {"words": 9, "lost": 0}, "test": {"words": 1200, "lost": 2, "blank": 1}})
    'of 1,200 words of test 2 cut off, 1 without a token'
    """
    done = {
        name: ", ".join(f"{part[key]:,} {what}" for key, what in DONE.items() if part.get(key))
        for name, part in counts.items()
    }
    return "; ".join(f"of {counts[name]['words']:,} words of {name} {what}" for name, what in done.items() if what)
