"""Translation (N→M): one text becomes another, written token by token.

Texts are tokenised once; what is learned is the next token (`tasks/next_token.py`), the scores are BLEU and chrF as
sacreBLEU counts them (Post 2018, arXiv 1804.08771).

    the encoder reads     <s> ids </s>
    the decoder is given  <s> ids
    and is to write       ids </s>

Those are the marks of a vocabulary of ours; a base has its own (`frames`).

Shapes: B rows, T tokens of the longest target, N tokens that are to be written, V tokens of the vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from peftlab.data.batch import Pair
from peftlab.data.parallel import Pairs
from peftlab.data.tokenizer import Tokenizer
from peftlab.models.writer import Marks
from peftlab.tasks.next_token import IGNORED, NextToken, marks, padded


@dataclass(frozen=True)
class Encoded:
    """Tokenised pairs, ragged: padding is decided batch by batch."""

    sources: list[list[int]]
    """each from the start mark to the end mark, as `Tokenizer.encode` has it"""
    targets: list[list[int]]
    """likewise"""
    rows: list[int]
    """the number of each pair's line in the file it came from, for messages"""
    pad: int
    cut: int
    """how many texts were too long and lost their end"""
    fixed: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.rows)

    def lengths(self) -> list[int]:
        """The number of tokens of each pair that a model is given: those of the source and those of the target."""
        return [len(source) + len(target) - 1 for source, target in zip(self.sources, self.targets, strict=True)]

    def weight(self, rows: Sequence[int]) -> int:
        """Each token that is to be written counts once."""
        return sum(len(self.targets[row]) - 1 for row in rows)

    def batch(self, rows: Sequence[int]) -> tuple[Pair, Tensor]:
        """These pairs, each side padded to its longest, with their labels [B, T]: the token after each, and −100."""
        source = padded([self.sources[row] for row in rows], self.pad)
        target = padded([self.targets[row][:-1] for row in rows], self.pad)
        labels = padded([self.targets[row][1:] for row in rows], IGNORED).ids
        return Pair(source, target), labels


@dataclass(frozen=True)
class Frame:
    """The marks around a text."""

    before: list[int]
    after: list[int]

    def __len__(self) -> int:
        return len(self.before) + len(self.after)

    def around(self, ids: list[int], max_length: int) -> list[int]:
        """A text with them; one that would have more than `max_length` tokens loses its end."""
        return [*self.before, *ids[: max_length - len(self)], *self.after]


def frames(tokenizer: Tokenizer, mark: Marks) -> tuple[Frame, Frame]:
    """The marks around a source and around a target.

    A source has those of the tokenizer. A target has them behind the mark that its model starts from: BART is given
    </s> <s> ids and writes <s> ids </s>; where the tokenizer's first mark is that one, it stands there once.
    """
    ids, row = tokenizer.ids("a"), tokenizer.encode(["a"]).ids[0].tolist()
    place = next(i for i in range(len(row)) if row[i : i + len(ids)] == ids)
    before, after = row[:place], row[place + len(ids) :]
    assert mark.start is not None
    start = [] if before[:1] == [mark.start] else [mark.start]
    end = [] if after[-1:] == [mark.end] else [mark.end]
    return Frame(before, after or [mark.end]), Frame([*start, *before], [*after, *end])


def encode(
    tokenizer: Tokenizer, part: Pairs, max_length: int = sys.maxsize, mark: Marks | None = None, lowercase: bool = False
) -> Encoded:
    """Tokenise once; a text that would have more than `max_length` tokens with its marks loses its end.

    `mark` are those that the model lives by; None: the tokenizer's own.
    """
    mark = mark or marks(tokenizer)
    sides = []
    for frame, texts in zip(frames(tokenizer, mark), (part.sources, part.targets), strict=True):
        assert max_length > len(frame)
        sides.append((frame, [tokenizer.ids(text.lower() if lowercase else text) for text in texts]))
    sources, targets = ([frame.around(ids, max_length) for ids in texts] for frame, texts in sides)
    cut = sum(len(ids) + len(frame) > max_length for frame, texts in sides for ids in texts)
    return Encoded(sources, targets, part.rows, mark.pad, cut)


@dataclass(frozen=True)
class Translate(NextToken):
    """Of a translation, every token after those before it and the source."""

    def states(self, model: Any, inputs: Pair, labels: Tensor) -> tuple[Tensor, Tensor]:
        real = labels != IGNORED
        return model.states(inputs).hidden[real], labels[real]


def scores(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> dict[str, float | str]:
    """BLEU and chrF of the whole part, each from 0 to 100, with the signatures that say how they were counted."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    assert len(hypotheses) == len(references)
    found: dict[str, float | str] = {}
    for name, metric in {"bleu": BLEU(lowercase=lowercase), "chrf": CHRF(lowercase=lowercase)}.items():
        found[name] = float(metric.corpus_score(hypotheses, [references]).score)
        found[f"{name}_signature"] = str(metric.get_signature())
    return found


@dataclass(frozen=True)
class Bin:
    """The pairs whose sources have a number of words in a range, and how well they were translated."""

    shortest: int
    longest: int | None
    """None: no limit"""
    count: int
    bleu: float


def bleu_by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    edges: Sequence[int],
    lowercase: bool = False,
) -> list[Bin]:
    """BLEU by the number of words of the source; each edge begins a bin, and a bin without pairs is left out.

    >>> for found in bleu_by_length(["a", "a b c d"], ["x", "A B C D"], ["y", "A B C D"], [3]):
    ...     print(found.shortest, found.longest, found.count, round(found.bleu))
    0 2 1 0
    3 None 1 100
    """
    from sacrebleu.metrics.bleu import BLEU

    words = [len(source.split()) for source in sources]
    bins = []
    for low, high in zip([0, *edges], [*edges, None], strict=True):
        assert high is None or low < high
        rows = [i for i, n in enumerate(words) if low <= n and (high is None or n < high)]
        if rows:
            hyps, refs = ([texts[i] for i in rows] for texts in (hypotheses, references))
            bleu = float(BLEU(lowercase=lowercase).corpus_score(hyps, [refs]).score)
            bins.append(Bin(low, None if high is None else high - 1, len(rows), bleu))
    return bins
