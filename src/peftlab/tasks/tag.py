"""Tagging (N→N): one tag for each word, such as its part of speech or its place in a named entity.

Sentences are tokenised once, and the first subword of a word speaks for it; the loss is the cross-entropy there. Parts
of speech are scored by accuracy. Where tags are BIO (Ramshaw & Marcus 1995, arXiv cmp-lg/9505040), entities are scored
by F1: one is right if its type and both its ends are. An I- that follows no tag of its type begins an entity, as
`conlleval` and `seqeval` have it.

    O  I-person  I-person  I-group   is repaired to   O  B-person  I-person  B-group

Shapes: B sentences, T tokens of the longest, L tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from peftlab.data.batch import Batch
from peftlab.data.tagged import Tagged
from peftlab.data.tokenizer import Tokenizer
from peftlab.data.words import NO_WORD, UNKNOWN, OnSubwords, encode_words
from peftlab.errors import UserError
from peftlab.models.model import Model
from peftlab.tasks.task import Tally, Task, sums

BIO = re.compile("O|[BI]-.+")
NO_TAG = ""
"""of a word that was cut off: never right, and part of no entity"""


@dataclass(frozen=True)
class Encoded(OnSubwords):
    """Tokenised sentences with their tags."""

    labels: list[list[int]]
    """the number of each word's tag, for the words that are left; −1: it has none of the names"""
    tags: list[list[str]]
    """of all words, also of those that were cut off"""
    repaired: int
    """how many BIO tags were repaired"""

    def batch(self, rows: Sequence[int]) -> tuple[Batch, Tensor]:
        """These sentences, padded to the longest of them, with their labels [B, T]: −100 where no word begins."""
        return self.words.batch(rows), self.words.labels(rows, self.labels)


def tag_names(sentences: Iterable[Tagged]) -> tuple[str, ...]:
    """The tags that occur, repaired where they are BIO, in the order of the alphabet."""
    return tuple(sorted({tag for sentence in sentences for tag in repair(sentence.tags)}))


def check_bio(sentences: Sequence[Tagged]) -> bool:
    """Whether the sentences of all parts have BIO tags; then none may have another."""
    bio = is_bio(tag for sentence in sentences for tag in sentence.tags)
    for sentence in sentences if bio else ():
        for tag in sentence.tags:
            if not BIO.fullmatch(tag):
                where = f"{sentence.path}, in the sentence from line {sentence.line}"
                raise UserError(f"{where}: the tag {tag!r} is not O, B-type or I-type, as others of the data are")
    return bio


def is_bio(names: Iterable[str]) -> bool:
    """Whether tags mark where entities begin and go on."""
    return any(name.startswith(("B-", "I-")) for name in names)


def encode(tokenizer: Tokenizer, sentences: Sequence[Tagged], names: Sequence[str], max_length: int) -> Encoded:
    """Tokenise once; a sentence that would have more than `max_length` tokens loses its last words."""
    words = encode_words(tokenizer, [sentence.words for sentence in sentences], max_length)
    given = [sentence.tags for sentence in sentences]
    tags = [repair(row) for row in given]
    number = {name: i for i, name in enumerate(names)}
    labels = [[number.get(tag, UNKNOWN) for tag in row] for row in tags]
    return Encoded(
        words,
        [sentence.line for sentence in sentences],
        sum(row.count(UNKNOWN) for row in labels),
        [row[: len(firsts)] for row, firsts in zip(labels, words.firsts, strict=True)],
        tags,
        sum(a != b for old, new in zip(given, tags, strict=True) for a, b in zip(old, new, strict=True)),
    )


@dataclass(frozen=True)
class Tag(Task):
    """Cross-entropy at the first subwords; to choose by, accuracy or, where tags are BIO, F1."""

    names: tuple[str, ...]
    """of the tags, in the order of the logits"""
    bio: bool
    """whether they are BIO, which the training part may not show: all its words may be outside"""

    def loss(self, model: Model, inputs: Batch, labels: Tensor) -> Tensor:
        real = labels != NO_WORD
        logits = model(inputs, logits_only=True).logits[real].float()
        # not the mean over the tags that are known, which may be none: the loop weighs parts by their words
        return F.cross_entropy(logits, labels[real], ignore_index=UNKNOWN, reduction="sum") / len(logits)

    def judge(self, model: Model, inputs: Batch, labels: Tensor) -> Sequence[list[str]]:
        """The tag of each word that is left of a sentence; the labels only say where words begin."""
        chosen = model(inputs, logits_only=True).logits.argmax(-1).tolist()
        real = (labels != NO_WORD).tolist()
        return [
            [self.names[tag] for tag, begins in zip(*row, strict=True) if begins]
            for row in zip(chosen, real, strict=True)
        ]

    def score(self, judged: Sequence[list[str]], rows: Encoded) -> float:
        return scores(judged, rows.tags, self.bio)["f1" if self.bio else "accuracy"]


def scores(predicted: Sequence[list[str]], gold: Sequence[list[str]], bio: bool) -> dict[str, float]:
    """The share of words with the right tag, and of BIO tags precision, recall and F1 of the entities of all types.

    A sentence may have fewer predictions than words: those that were cut off are wrong.
    """
    words, _, right = sums(tally(predicted, gold, False))
    found = {"accuracy": right / words}
    if bio:
        theirs, ours, right = sums(tally(predicted, gold, True))
        found["precision"] = right / ours if ours else 0.0
        found["recall"] = right / theirs if theirs else 0.0
        found["f1"] = 2 * right / (ours + theirs) if right else 0.0
    return found


def tally(predicted: Sequence[list[str]], gold: Sequence[list[str]], bio: bool) -> list[Tally]:
    """Of each sentence its words or, where tags are BIO, its entities: how many there are, were given, are right."""
    found = []
    for row, tags in zip(predicted, gold, strict=True):
        full = [*row, *[NO_TAG] * (len(tags) - len(row))]
        ours, theirs = map(entities, (full, tags)) if bio else map(set, map(enumerate, (full, tags)))
        found.append(Tally(len(theirs), len(ours), len(ours & theirs)))
    return found


def repair(tags: Sequence[str]) -> list[str]:
    """BIO tags in which every entity begins with a B-; others stay as they are.

    >>> repair(["I-loc", "I-loc", "O", "B-loc", "I-per"])
    ['B-loc', 'I-loc', 'O', 'B-loc', 'B-per']
    """
    before = ["O", *tags]
    return [
        f"B-{tag[2:]}" if tag.startswith("I-") and last[2:] != tag[2:] else tag
        for last, tag in zip(before, tags, strict=False)
    ]


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Of each entity its type, its first and its last word.

    >>> sorted(entities(["B-loc", "I-loc", "O", "B-loc", "I-per"]))
    [('loc', 0, 1), ('loc', 3, 3), ('per', 4, 4)]
    """
    found: list[tuple[str, int, int]] = []
    for word, tag in enumerate(repair(tags)):
        if tag.startswith("B-"):
            found.append((tag[2:], word, word))
        elif tag.startswith("I-"):
            found[-1] = (*found[-1][:2], word)
    return set(found)
