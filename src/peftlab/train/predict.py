"""What a finished run is good for: answering texts and images, line by line."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peftlab.data.batch import Batch
from peftlab.data.conllu import Sentence
from peftlab.data.decode import read_images
from peftlab.data.examples import Examples
from peftlab.data.images import ImageReader
from peftlab.data.parallel import Pairs
from peftlab.data.pictures import Pictures
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.generate.search import Sample, Written, stream
from peftlab.models.base import Base
from peftlab.peft.attach import merge, unmergeable
from peftlab.tasks.classify import Classify, Pictured
from peftlab.tasks.classify import encode as tokenised
from peftlab.tasks.task import Rows
from peftlab.tasks.translate import Encoded, encode, frames
from peftlab.train.annotate import Annotator, Given, TreeParser, WordTagger, text_of, written
from peftlab.train.artefact import ADAPTER, open_run
from peftlab.train.asking import ask
from peftlab.train.config import Config
from peftlab.train.memory import keep_freed, settled
from peftlab.train.order import sorted_batches
from peftlab.train.precision import pick_answering, pick_device
from peftlab.train.translating import search, translate
from peftlab.train.writing import room

CHUNK = 256
"""lines that are read before the first are answered"""
UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""what a tokenizer shows for bytes that are no character, or none yet"""

Line = str | tuple[str, str]
Answer = dict[str, Any]


class Labeller:
    """A finished classifier: for each text its label, the probability of each label, and the logits."""

    given = "text"
    """what a line is"""
    reads = 4096
    """the most lines at once: the more there are, the more of like length make a batch"""

    def __init__(self, base: Base, config: Config) -> None:
        self.base, self.config = base, config
        self.names = base.model.adapters[ADAPTER].head.names
        self.precision = pick_answering(config.train.precision, pick_device())

    @property
    def length(self) -> int:
        """The most tokens of a text."""
        return min(self.config.task.max_length, self.base.room)

    def read(self, lines: list[Line]) -> Rows:
        """The tokens of the texts; what is too long loses its end."""
        texts: Any = lines
        return tokenised(self.base.tokenizer, Examples(texts, *unlabelled(lines)), self.length)

    def answer(self, lines: list[Line], before: int) -> Iterator[Answer]:
        """An answer for each line; `before` them so many were read."""
        with settled():
            logits = torch.stack(ask(self.base.model, self.read(lines), Classify().judge, self.precision))
        found = zip(lines, logits.argmax(1).tolist(), logits.softmax(1).tolist(), logits.tolist(), strict=True)
        for text, best, probabilities, scores in found:
            named = dict(zip(self.names, probabilities, strict=True))
            yield {self.given: text, "label": self.names[best], "probabilities": named, "logits": scores}


class Viewer(Labeller):
    """The same of images: a line is the path of a file."""

    given = "image"
    reads = CHUNK

    @property
    def size(self) -> int:
        """The side of an image in pixels."""
        assert self.config.images is not None
        return self.config.images.size or int(self.base.config.image)

    def read(self, lines: list[Line]) -> Rows:
        """The images, as those that it was trained on."""
        reader, c = self.base.reader, self.base.config
        assert isinstance(reader, ImageReader)
        part = Pictures(torch.stack(self.pixels(lines)), *unlabelled(lines))
        return Pictured(part, reader, self.size, c.channels, c.tokens(self.size))

    def pixels(self, lines: list[Line]) -> list[Tensor]:
        """Of each file; one that is no image ends it."""
        found = read_images([Path(whole(line)) for line in lines], self.size, self.base.config.channels)
        for problem in found:
            if isinstance(problem, UserError):
                raise problem
        return [pixels for pixels in found if isinstance(pixels, Tensor)]


class Translator:
    """A finished translator: for each text its translation; a text without words stays empty."""

    def __init__(self, base: Base, config: Config) -> None:
        assert config.translate is not None
        self.model, self.tokenizer, self.asked = base.model, base.tokenizer, config.translate
        self.longest = room(self.model, self.asked.max_length)
        self.frame, _ = frames(self.tokenizer, self.model.marks)

    def answer(self, lines: list[Line], before: int) -> Iterator[Answer]:
        """An answer for each line; `before` them so many were read."""
        for line, best in zip(lines, self.write(self.read(lines, before)), strict=True):
            yield {"text": line, "translation": self.text(best)}

    def read(self, lines: list[Line], before: int) -> Encoded:
        """The tokens of the texts; of one that is empty or too long it is told by its line."""
        texts = [whole(line).strip() for line in lines]
        numbers = list(range(before + 1, before + 1 + len(texts)))
        part = encode(
            self.tokenizer, Pairs(texts, texts, numbers), mark=self.model.marks, lowercase=self.asked.lowercase
        )
        for i, ids in enumerate(part.sources):
            if len(ids) == len(self.frame):
                warnings.warn(f"line {part.rows[i]} is empty: so is its translation", stacklevel=2)
            elif len(ids) > self.longest:
                problem = f"line {part.rows[i]} has {len(ids)} tokens and the model reads {self.longest}"
                warnings.warn(f"{problem}: its end is left out", stacklevel=2)
                part.sources[i] = self.frame.around(ids[len(self.frame.before) :], self.longest)
        return part

    def write(self, part: Encoded) -> list[Written | None]:
        """Their translations; None for a text without words."""
        found: list[Written | None] = [None] * len(part)
        left = [i for i, ids in enumerate(part.sources) if len(ids) > len(self.frame)]
        for rows in sorted_batches([len(part.sources[i]) for i in left]):
            places = [left[row] for row in rows]
            written = translate(self.model, part.batch(places)[0].source, search(self.asked), self.longest)
            for place, best in zip(places, written, strict=True):
                found[place] = best
        return found

    def text(self, best: Written | None) -> str:
        """A translation in one line, so that there are as many lines as were given."""
        return "" if best is None else " ".join(self.tokenizer.decode(best.tokens).splitlines())


class Continuer:
    """A finished language model: each text goes on until its line ends, or until enough is written.

    One text at a time, so that what is drawn for it does not depend on the others.
    """

    def __init__(self, base: Base, config: Config) -> None:
        assert config.language_model is not None
        self.base, self.asked = base, config.language_model
        # a model of one's own has seen no position beyond those that it was trained on
        self.room = base.room if config.model is None else self.asked.length

    def answer(self, lines: list[Line], before: int) -> Iterator[Answer]:
        """An answer for each line; `before` them so many were read."""
        for number, line in enumerate(lines, before + 1):
            yield {"text": line, "continuation": "".join(self.pieces(line, number))}

    def pieces(self, line: Line, number: int) -> Iterator[str]:
        """How a text goes on, each piece as soon as it is written."""
        given, max_new = self.read(line, number)
        how = Sample(temperature=self.asked.temperature, top_p=self.asked.top_p)
        return characters(self.base.tokenizer, stream(self.base.model, given, how, max_new))

    def read(self, line: Line, number: int) -> tuple[Batch, int]:
        """The tokens of a text, as a line begins: behind an end mark; and how many may be written.

        Of one that is too long it is told by its line.
        """
        text, end = whole(line), self.base.model.marks.end
        ids = [end, *self.base.tokenizer.ids(text.lower() if self.asked.lowercase else text)]
        most = self.room - min(self.asked.max_new, self.room // 2)
        if len(ids) > most:
            problem = f"line {number} has {len(ids)} tokens and the model reads {most} before it writes"
            warnings.warn(f"{problem}: its beginning is left out", stacklevel=2)
        row = torch.tensor([ids[-most:]])
        return Batch(row, torch.ones_like(row)), min(self.asked.max_new, self.room - row.shape[1])


def characters(tokenizer: Tokenizer, tokens: Iterable[int]) -> Iterator[str]:
    """The text of tokens as they come; bytes of a character wait for its last one, and without it are left out."""
    ids: list[int] = []
    shown = 0
    for token in tokens:
        ids.append(token)
        text = tokenizer.decode(ids).rstrip(UNFINISHED)
        if len(text) > shown:
            yield text[shown:]
            shown = len(text)


def unlabelled(lines: Sequence[Line]) -> tuple[list[int], list[int]]:
    """Labels that nobody asks for, and the numbers of the lines."""
    return [0] * len(lines), list(range(1, len(lines) + 1))


def whole(line: Line) -> str:
    """A text, or two that were given as a pair."""
    return line if isinstance(line, str) else " ".join(line)


Trained = Labeller | Annotator | Translator | Continuer


def open_finished(folder: Path) -> Trained:
    """What a finished run trained, ready to answer."""
    keep_freed()
    base, config = open_run(folder)
    base.model.requires_grad_(False)
    if config.pretrains:
        raise UserError(
            f"{folder} pretrained a base, which says nothing yet: teach it a task with base = {str(folder)!r}"
        )
    if ADAPTER in base.model.adapters and not unmergeable(base.model, ADAPTER):
        merge(base.model, ADAPTER)  # a change of weights costs nothing then
    if config.tag is not None:
        return WordTagger(base, config.tag, config.train.precision)
    if config.parse is not None:
        return TreeParser(base, config.parse, config.train.precision)
    if config.translate is not None:
        return Translator(base, config)
    if config.images is not None:
        return Viewer(base, config)
    return (Labeller if config.language_model is None else Continuer)(base, config)


def answer_lines(folder: Path, lines: Iterator[Given]) -> Iterator[Answer]:
    """What a finished run says to each text, in their order: a label, tags, a tree, a translation, how it goes on."""
    return answers(open_finished(folder), lines)


def answers(trained: Trained, lines: Iterator[Given]) -> Iterator[Answer]:
    """The same of what is open. Whoever waits has the first soon; where there are many, more are read at once."""
    number, size = 0, CHUNK
    most = trained.reads if isinstance(trained, Labeller) else CHUNK
    while chunk := list(islice(lines, size)):
        if isinstance(trained, Annotator):
            yield from trained.answer(chunk, number)
        else:
            yield from trained.answer([unsplit(line) for line in chunk], number)
        number, size = number + len(chunk), min(2 * size, most)


def annotated(folder: Path, lines: Iterator[Given]) -> list[Answer]:
    """What a finished run says to the words of each text."""
    trained = open_finished(folder)
    if not isinstance(trained, Annotator):
        raise UserError(f"{folder} answers for whole texts, and --html draws what is said of words: leave it out")
    return list(answers(trained, lines))


def unsplit(line: Given) -> Line:
    """For a model that reads whole texts."""
    return text_of(line) if isinstance(line, Sentence) else line


def spoken(folder: Path, lines: Iterator[Given]) -> Iterator[str]:
    """The same in plain words, a line for each text: pieces to print as they come, a language model's by the token."""
    trained = open_finished(folder)
    if isinstance(trained, Continuer):
        for number, line in enumerate(map(unsplit, lines), 1):
            for piece in chain([whole(line)], trained.pieces(line, number)):
                yield re.sub(r"[\r\n]", " ", piece)
            yield "\n"
    else:
        for answer in answers(trained, lines):
            yield plain(answer) + "\n"


def plain(answer: Answer) -> str:
    """An answer in one line, or as the lines of a sentence."""
    if "words" in answer:
        return written(answer)
    given = next(iter(answer.values()))  # a text, or an image's path
    return answer["translation"] if "translation" in answer else f"{answer['label']}\t{given}"
