"""Training a tagger: an adapter on a base, and a head that gives each word a tag.

    [tag]
    name = "ud-english-ewt"      # or mine.conll, a folder with train.conllu, dev.conllu, test.conllu

peftlab train tag.toml --out runs/tag && peftlab predict runs/tag "The dog barks ."
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from peftlab.data.tagged import Tagged, read_tagged
from peftlab.data.tokenizer import Tokenizer
from peftlab.models.tagger import Tagger
from peftlab.tasks.tag import Encoded, Tag, check_bio, encode, repair, scores, tag_names, tally
from peftlab.tasks.task import Tally
from peftlab.train.config import Config
from peftlab.train.on_words import OnWords


class Tagging(OnWords[Tagged]):
    """Tags for words."""

    nothing: Any = ()

    def __init__(self, config: Config) -> None:
        assert config.tag is not None
        super().__init__(config, config.tag, partial(read_tagged, column=config.tag.column))
        self.dropout = config.tag.dropout
        self.names = tag_names(self.data.train)
        self.metric = "f1" if self.bio else "accuracy"

    def check(self, sentences: Sequence[Tagged]) -> None:
        self.bio = check_bio(sentences)

    def content(self, sentence: Tagged) -> list[Any]:
        return [sentence.words, sentence.tags]

    def answers(self, sentence: Tagged) -> list[str]:
        return sentence.tags

    def head(self) -> Tagger:
        return Tagger(self.names, dropout=self.dropout)

    def task(self) -> Tag:
        return Tag(self.names, self.bio)

    def encode(self, tokenizer: Tokenizer, part: list[Tagged], max_length: int) -> Encoded:
        return encode(tokenizer, part, self.names, max_length)

    def tags(self, part: list[Tagged]) -> list[list[str]]:
        """Those of a part as they are scored."""
        return [repair(sentence.tags) for sentence in part]

    def scores(self, answers: Sequence[list[str]], part: list[Tagged]) -> dict[str, float]:
        return scores(answers, self.tags(part), self.bio)

    def tally(self, answers: Sequence[list[str]], part: list[Tagged]) -> list[Tally]:
        return tally(answers, self.tags(part), self.bio)

    def majority(self, part: list[Tagged]) -> float:
        """One tag everywhere finds no entity, or the words that have it."""
        if self.bio:
            return 0.0
        counts = Counter(tag for sentence in part for tag in sentence.tags)
        return max(counts.values()) / counts.total()
