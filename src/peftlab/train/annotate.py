"""What a finished tagger or parser is good for: an answer for each word of a sentence.

A line of text is split at its spaces; a sentence of a file that is split already keeps its words, and one of CoNLL-U
all but what is answered.

    peftlab predict runs/tag "The dog barks ."                  The/DET dog/NOUN barks/VERB ./PUNCT
    peftlab predict runs/parse --file mine.conllu               CoNLL-U with other heads and relations
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from peftlab.data.conllu import Sentence
from peftlab.data.tagged import Tagged
from peftlab.models.base import Base
from peftlab.tasks import parse, tag
from peftlab.train.artefact import ADAPTER
from peftlab.train.asking import ask
from peftlab.train.config import Sentences
from peftlab.train.precision import pick_answering, pick_device

Given = str | tuple[str, str] | Sentence
"""a text, two that belong together, or a sentence that is split already"""
NOTHING = "_"
"""the tag of a word that was cut off"""


class Annotator(ABC):
    """A finished model that answers for words, and was trained in a precision."""

    def __init__(self, base: Base, asked: Sentences, trained: str) -> None:
        self.base, self.precision = base, pick_answering(trained, pick_device())
        self.names: tuple[str, ...] = base.model.adapters[ADAPTER].head.names
        self.length = min(asked.max_length, base.room)

    def answer(self, lines: Sequence[Given], before: int) -> Iterator[dict[str, Any]]:
        """An answer for each line that has words; `before` them so many were read."""
        sentences = []
        for number, line in enumerate(lines, before + 1):
            sentence = line if isinstance(line, Sentence) else Sentence.of(text_of(line).split())
            if sentence.places:
                where = f"{sentence.path}, line {sentence.line}" if sentence is line else f"line {number}"
                sentences.append((where, sentence))
            else:
                warnings.warn(f"line {number} has no words: it is left out", stacklevel=2)
        if not sentences:
            return
        encoded, found = self.annotate([sentence for _, sentence in sentences])
        for (where, sentence), firsts, answer in zip(sentences, encoded.words.firsts, found, strict=True):
            if lost := len(sentence.places) - len(firsts):
                problem = f"{where}: the sentence has more than {self.length} tokens"
                warnings.warn(f"{problem}: its last {lost} words are not read", stacklevel=2)
            yield {"words": sentence.words, **answer}

    @abstractmethod
    def annotate(self, sentences: list[Sentence]) -> tuple[tag.Encoded | parse.Encoded, list[dict[str, Any]]]:
        """The sentences as they were read, and what is said of the words of each."""


class WordTagger(Annotator):
    """For each word its tag."""

    def annotate(self, sentences: list[Sentence]) -> tuple[tag.Encoded, list[dict[str, Any]]]:
        rows = [Tagged(each.words, [tag.NO_TAG] * len(each.places), each.path, each.line) for each in sentences]
        encoded, bio = tag.encode(self.base.tokenizer, rows, self.names, self.length), tag.is_bio(self.names)
        found = ask(self.base.model, encoded, tag.Tag(self.names, bio).judge, self.precision)
        answers = []
        for row, tags in zip(rows, found, strict=True):
            missing = ["O" if bio else NOTHING] * (len(row.words) - len(tags))
            answers.append({"tags": [*tag.repair(tags), *missing]})
        return encoded, answers


class TreeParser(Annotator):
    """For each word its head and its relation to it, and the sentence with both as CoNLL-U."""

    def annotate(self, sentences: list[Sentence]) -> tuple[parse.Encoded, list[dict[str, Any]]]:
        unknown = [parse.unknown_tree(len(each.places)) for each in sentences]
        encoded = parse.encode(self.base.tokenizer, sentences, unknown, self.names, self.length)
        found = ask(self.base.model, encoded, parse.Parse(self.names).judge, self.precision)
        answers = []
        for sentence, short in zip(sentences, found, strict=True):
            tree = parse.completed(short, len(sentence.places))
            text = sentence.with_tree(tree).closed
            answers.append({"heads": tree.heads, "relations": tree.relations, "conllu": text})
        return encoded, answers


def text_of(given: Given) -> str:
    """What is given as one text."""
    if isinstance(given, Sentence):
        return " ".join(given.words)
    return given if isinstance(given, str) else " ".join(given)


def written(answer: dict[str, Any]) -> str:
    """An answer as lines, the last without its end."""
    if "tags" in answer:
        return " ".join(f"{word}/{name}" for word, name in zip(answer["words"], answer["tags"], strict=True))
    return str(answer["conllu"]).removesuffix("\n")
