"""Translation (N→M): one text becomes another, written token by token.

Texts are tokenised once; the loss is the cross-entropy with label smoothing (Vaswani et al. 2017, arXiv 1706.03762,
section 5.4), the scores are BLEU and chrF as sacreBLEU counts them (Post 2018, arXiv 1804.08771).

    the encoder reads     <s> ids </s>
    the decoder is given  <s> ids
    and is to write       ids </s>

Shapes: B rows, T tokens of the longest target, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from peftlab.data.batch import Batch, Pair
from peftlab.data.parallel import Pairs
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.models.model import Model
from peftlab.models.writer import Marks
from peftlab.tasks.task import Task

IGNORED = -100
"""the label of padding"""


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
        source = _padded([self.sources[row] for row in rows], self.pad)
        target = _padded([self.targets[row][:-1] for row in rows], self.pad)
        labels = _padded([self.targets[row][1:] for row in rows], IGNORED).ids
        return Pair(source, target), labels


def _padded(ragged: list[list[int]], fill: int) -> Batch:
    ids = pad_sequence([torch.tensor(row) for row in ragged], batch_first=True, padding_value=fill)
    lengths = torch.tensor([[len(row)] for row in ragged])
    return Batch(ids, torch.arange(ids.shape[1]) < lengths)


def marks(tokenizer: Tokenizer) -> Marks:
    """Where a text begins and ends for this tokenizer; the end mark also pads where there is no mark for it."""
    if tokenizer.bos is None or tokenizer.eos is None:
        raise UserError("this tokenizer has no marks for start and end: train one of the kind 'bpe', which has both")
    return Marks(tokenizer.bos, tokenizer.eos, tokenizer.eos if tokenizer.pad is None else tokenizer.pad)


def encode(tokenizer: Tokenizer, part: Pairs, max_length: int) -> Encoded:
    """Tokenise once; a text that would have more than `max_length` tokens with its marks loses its end."""
    assert max_length > 2
    mark = marks(tokenizer)
    assert mark.start is not None
    sources, targets = ([tokenizer.ids(text) for text in texts] for texts in (part.sources, part.targets))
    room = max_length - 2
    return Encoded(
        [[mark.start, *ids[:room], mark.end] for ids in sources],
        [[mark.start, *ids[:room], mark.end] for ids in targets],
        part.rows,
        mark.pad,
        sum(len(ids) > room for ids in [*sources, *targets]),
    )


@dataclass(frozen=True)
class Translate(Task):
    """Teacher forcing: every token of the target is predicted from the real ones before it."""

    smoothing: float = 0.0
    """the share of each label that goes to all V tokens alike"""

    def loss(self, model: Model, inputs: Pair, labels: Tensor) -> Tensor:
        return F.cross_entropy(*self.read(model, inputs, labels), label_smoothing=self.smoothing)

    def judge(self, model: Model, inputs: Pair, labels: Tensor) -> Sequence[float]:
        """−log p of the tokens of each row."""
        each = F.cross_entropy(*self.read(model, inputs, labels), reduction="none")
        rows = (labels != IGNORED).nonzero()[:, 0]
        return each.new_zeros(len(labels)).index_add(0, rows, each).tolist()

    def read(self, model: Any, inputs: Pair, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The logits [N, V] of the N tokens that are to be written, and these; nothing is read at padding."""
        real = labels != IGNORED
        return model.read(model.states(inputs).hidden[real]).float(), labels[real]

    def score(self, judged: Sequence[float], rows: Encoded) -> float:
        """The geometric mean of the tokens' probabilities: one over the perplexity."""
        return math.exp(-sum(judged) / rows.weight(range(len(rows))))


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
