"""Learning to write: every token is predicted from the real ones before it. What translation and language model share.

Teacher forcing with label smoothing (Vaswani et al. 2017, arXiv 1706.03762, section 5.4); the score that chooses the
weights is the geometric mean of the tokens' probabilities, which is one over the perplexity.

Shapes: B rows, T tokens of the longest, N tokens that are to be written, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from peftlab.data.batch import Batch
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.layers.cross_entropy import chunked_cross_entropy
from peftlab.models.writer import Marks
from peftlab.tasks.task import Rows, Task

IGNORED = -100
"""the label of padding"""


@dataclass(frozen=True)
class NextToken(Task):
    """The cross-entropy of the next token; rows weigh by their tokens, and nothing is read at padding."""

    smoothing: float = 0.0
    """the share of each label that goes to all V tokens alike"""
    chunk: int = 0
    """how many tokens are scored at a time, to save memory; 0 is all of them"""

    @abstractmethod
    def states(self, model: Any, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The hidden states [N, D] at the labels [B, T] that are no padding, row by row, and these labels [N]."""

    def loss(self, model: Any, inputs: Any, labels: Tensor) -> Tensor:
        hidden, wanted = self.states(model, inputs, labels)
        if self.chunk:
            return chunked_cross_entropy(model.read, hidden, wanted, self.chunk, self.smoothing)
        return F.cross_entropy(model.read(hidden).float(), wanted, label_smoothing=self.smoothing)

    def judge(self, model: Any, inputs: Any, labels: Tensor) -> Sequence[float]:
        """−log p of the tokens of each row."""
        hidden, wanted = (part.split(self.chunk or len(part)) for part in self.states(model, inputs, labels))
        parts = zip(hidden, wanted, strict=True)
        each = torch.cat([F.cross_entropy(model.read(h).float(), y, reduction="none") for h, y in parts])
        rows = (labels != IGNORED).nonzero()[:, 0]
        return each.new_zeros(len(labels)).index_add(0, rows, each).tolist()

    def score(self, judged: Sequence[float], rows: Rows) -> float:
        """The geometric mean of the tokens' probabilities: one over the perplexity."""
        return math.exp(-sum(judged) / rows.weight(range(len(rows))))


def padded(ragged: Sequence[list[int] | Tensor], fill: int) -> Batch:
    """Rows of ids, filled behind their end up to the longest."""
    ids = pad_sequence([torch.as_tensor(row) for row in ragged], batch_first=True, padding_value=fill)
    lengths = torch.tensor([[len(row)] for row in ragged])
    return Batch(ids, torch.arange(ids.shape[1]) < lengths)


def marks(tokenizer: Tokenizer) -> Marks:
    """Where a text begins and ends for this tokenizer; the end mark also pads where there is no mark for it."""
    if tokenizer.bos is None or tokenizer.eos is None:
        raise UserError("this tokenizer has no marks for start and end: train one of the kind 'bpe', which has both")
    return Marks(tokenizer.bos, tokenizer.eos, tokenizer.eos if tokenizer.pad is None else tokenizer.pad)
