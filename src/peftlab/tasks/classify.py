"""Classification (N→1): one label for a text, a pair of texts, or an image.

Texts are tokenised and images decoded once; the loss is the cross-entropy, the scores accuracy, macro F1 and Matthews'
correlation.

Shapes: B rows, L labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import eq
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from peftlab.data.augment import Augment
from peftlab.data.batch import Batch, Images
from peftlab.data.examples import Examples
from peftlab.data.images import ImageReader
from peftlab.data.pictures import Pictures, fitted
from peftlab.data.tokenizer import Tokenizer
from peftlab.models.model import Model
from peftlab.tasks.task import Task


@dataclass(frozen=True)
class Encoded:
    """Tokenised examples, ragged: padding is decided batch by batch."""

    ids: list[list[int]]
    segments: list[list[int]] | None
    labels: list[int]
    rows: list[int]
    """the number of each row in the file it came from, for messages"""
    pad: int
    fixed: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.ids)

    def lengths(self) -> list[int]:
        """The number of tokens of each row."""
        return [len(row) for row in self.ids]

    def weight(self, rows: Sequence[int]) -> int:
        """Each row counts once."""
        return len(rows)

    def batch(self, rows: Sequence[int]) -> tuple[Batch, Tensor]:
        """These rows, padded to the longest of them, with their labels [B]."""
        longest = max(len(self.ids[row]) for row in rows)

        def padded(ragged: list[list[int]], fill: int) -> Tensor:
            return torch.tensor([ragged[row] + [fill] * (longest - len(ragged[row])) for row in rows])

        mask = torch.arange(longest) < torch.tensor([[len(self.ids[row])] for row in rows])
        segments = None if self.segments is None else padded(self.segments, 0)
        return Batch(padded(self.ids, self.pad), mask, segments), torch.tensor([self.labels[row] for row in rows])


def encode(tokenizer: Tokenizer, examples: Examples, max_length: int) -> Encoded:
    """Tokenise once; a text longer than `max_length` tokens loses its end."""
    ids: list[list[int]] = []
    segments: list[list[int]] = []
    for start in range(0, len(examples), 1000):
        rows, parts = tokenizer.rows(examples.texts[start : start + 1000], max_length, truncate=True)
        ids += rows
        segments += parts
    told = segments if any(map(any, segments)) else None
    return Encoded(ids, told, list(examples.labels), examples.rows, tokenizer.pad or 0)


@dataclass(frozen=True)
class Tokenised:
    """Texts that were tokenised before, wherever their rows go."""

    encoded: Encoded
    places: dict[str | tuple[str, str], int]
    most: int
    """tokens that a text was left"""

    @classmethod
    def all_of(cls, tokenizer: Tokenizer, parts: Sequence[Examples], most: int) -> Tokenised:
        """Each text once."""
        places = {text: i for i, text in enumerate(dict.fromkeys(text for part in parts for text in part.texts))}
        none = [0] * len(places)
        return cls(encode(tokenizer, Examples(list(places), none, none), most), places, most)  # type: ignore[arg-type]

    def take(self, part: Examples) -> Encoded:
        """What `encode` gives for some of them."""
        whole, at = self.encoded, [self.places[text] for text in part.texts]
        segments = None if whole.segments is None else [whole.segments[i] for i in at]
        return Encoded([whole.ids[i] for i in at], segments, list(part.labels), part.rows, whole.pad)


@dataclass(frozen=True)
class Pictured:
    """Decoded images, brought to their size and normalised batch by batch."""

    part: Pictures
    reader: ImageReader
    size: int
    channels: int
    tokens: int
    """that an image is cut into"""
    augment: Augment | None = None
    """what happens to an image before it is seen, in training"""

    @property
    def fixed(self) -> bool:
        """Whether an image is the same each time it is seen."""
        return self.augment is None

    @property
    def labels(self) -> list[int]:
        """Of each image."""
        return self.part.labels

    @property
    def rows(self) -> list[int]:
        """The number of each image in its data set, for messages."""
        return self.part.rows

    def __len__(self) -> int:
        return len(self.part)

    def lengths(self) -> list[int]:
        """The number of tokens of each image: all are of one size."""
        return [self.tokens] * len(self)

    def weight(self, rows: Sequence[int]) -> int:
        """Each image counts once."""
        return len(rows)

    def batch(self, rows: Sequence[int]) -> tuple[Images, Tensor]:
        """These images with their labels [B]."""
        pixels = fitted(self.part.pixels[list(rows)], self.size, self.channels)
        pixels = pixels if self.augment is None else self.augment(pixels)
        return self.reader.read(pixels), torch.tensor([self.labels[row] for row in rows])


class Classify(Task):
    """Cross-entropy, and accuracy to choose by."""

    def loss(self, model: Model, inputs: Batch | Images, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(inputs, logits_only=True).logits.float(), labels)

    def judge(self, model: Model, inputs: Batch | Images, labels: Tensor) -> Sequence[Tensor]:
        """The logits [L] of each row."""
        return list(model(inputs, logits_only=True).logits.float().cpu())

    def score(self, judged: Sequence[Tensor], rows: Encoded | Pictured) -> float:
        return sum(map(eq, chosen(judged), rows.labels)) / len(rows)


def chosen(logits: Sequence[Tensor]) -> list[int]:
    """The label of each row."""
    return torch.stack(list(logits)).argmax(1).tolist()
