"""Where a finished run looks while it answers: its attention with the tokens that it is between, as plain data.

    peftlab predict RUN "a text" --attention page.html         # report/attention.py makes the page of it

Texts are read one at a time, so that no map has padding in it. A translator is first asked to translate and then given
what it wrote, as in training: position t holds what it had written before, and speaks of the token that it wrote next.
Of an image it is told how much goes to each patch, in the last layer and through all of them: the rollout of Abnar &
Zuidema 2020 (arXiv 2005.00928).

Shapes: H heads, Tq tokens that look, Tk tokens that are looked at, n virtual ones before them; h × w patches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from peftlab.data.batch import Batch, Pair
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.models.encoder import Reader
from peftlab.train.annotate import Annotator, Given
from peftlab.train.artefact import ADAPTER
from peftlab.train.predict import Answer, Continuer, Labeller, Line, Translator, Viewer, open_finished, unsplit

MOST = 20
"""texts; nobody looks at more on one page"""


@dataclass(frozen=True)
class Maps:
    """One kind of attention, in every layer."""

    title: str
    """from where to where"""
    about: str
    """what a row and a column are"""
    rows: list[str]
    """the tokens that look"""
    columns: list[str]
    """the tokens that are looked at, without virtual ones"""
    layers: list[Tensor]
    """one [H, Tq, n + Tk] a layer; each row sums to 1"""


@dataclass(frozen=True)
class Overlay:
    """How much of an image's patches is in what the head reads."""

    title: str
    """by which measure"""
    about: str
    """how it is computed"""
    pixels: Tensor
    """[C, S, S] of 8 bits, as the model was given them"""
    weights: Tensor
    """[h, w] of each patch; the marks and virtual tokens have the rest to 1"""


@dataclass(frozen=True)
class Seen:
    """A text's answer, and where the model looked on the way to it."""

    answer: Answer
    """as `answer_lines` gives it"""
    maps: list[Maps | Overlay]
    """the most telling kind first; none where there was nothing to read"""


def look(folder: Path, lines: Iterator[Given]) -> list[Seen]:
    """What a finished run says to each text, and where it looked."""
    texts = [unsplit(line) for line in islice(lines, MOST + 1)]
    if len(texts) > MOST:
        raise UserError(f"attention is shown for at most {MOST} texts, and there are more: choose the telling ones")
    trained = open_finished(folder)
    if isinstance(trained, Annotator):
        raise UserError(f"{folder} answers for words, and its attention has no page: use --html instead")
    if isinstance(trained, Continuer):
        raise UserError(f"{folder} is a language model, whose attention has no page: leave --attention out")
    if isinstance(trained, Viewer) and not isinstance(trained.base.model, Reader):
        raise UserError(f"{folder} has a network of convolutions, which has no attention: leave --attention out")
    if isinstance(trained, Viewer):
        return [look_viewing(trained, text, number) for number, text in enumerate(texts)]
    if isinstance(trained, Labeller):
        return [look_labelling(trained, text, number) for number, text in enumerate(texts)]
    return [look_translating(trained, text, number) for number, text in enumerate(texts)]


@torch.no_grad()
def look_labelling(labeller: Labeller, text: Line, before: int) -> Seen:
    """The label of a text, and each of its tokens' attention to all of them."""
    [answer] = labeller.answer([text], before)
    batch, _ = labeller.read([text]).batch([0])
    assert isinstance(batch, Batch)
    tokens = readable(labeller.base.tokenizer, batch.ids[0].tolist())
    layers = labeller.base.model(batch, attention=True).attention
    about = "rows and columns are the tokens of the text"
    return Seen(answer, [Maps("to itself", about, tokens, tokens, alone(layers))])


@torch.no_grad()
def look_viewing(viewer: Viewer, path: Line, before: int) -> Seen:
    """The label of an image, and how much of each patch is in what the head reads."""
    [answer], [pixels] = viewer.answer([path], before), viewer.pixels([path])
    layers = alone(viewer.base.model(viewer.base.images(pixels[None]), attention=True).attention)
    T, side = layers[0].shape[1], pixels.shape[1] // viewer.base.config.patch
    first = viewer.base.model.adapters[ADAPTER].head.pool == "first"
    who = "of the class token" if first else "of all tokens, whose mean the head reads"
    kinds = [
        ("mean attention", f"in the last layer, the mean of its heads, {who}", layers[-1].mean(0)[:, -T:]),
        ("attention rollout", f"through all layers, {who}", rollout(layers)),
    ]

    def patches(weights: Tensor) -> Tensor:
        row = weights[0] if first else weights.mean(0)
        return row[T - side * side :].unflatten(0, (side, side))

    return Seen(answer, [Overlay(title, about, pixels, patches(weights)) for title, about, weights in kinds])


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """[T, T] how much of each token is in each at the end, if a layer [H, T, n + T] is half its mean attention and half
    the residual connection. Virtual tokens bring nothing of the image, so they are left out.
    """
    T = layers[0].shape[1]
    through = torch.eye(T)
    for layer in layers:
        among = layer.mean(0)[:, -T:]
        through = (among / among.sum(1, keepdim=True) + torch.eye(T)) / 2 @ through
    return through


@torch.no_grad()
def look_translating(translator: Translator, text: Line, before: int) -> Seen:
    """The translation of a text, and the attention of decoder and encoder; a recurrent model has the first alone."""
    part, marks = translator.read([text], before), translator.model.marks
    [best] = translator.write(part)
    answer = {"text": text, "translation": translator.text(best)}
    if best is None:
        return Seen(answer, [])
    assert marks.start is not None
    target = [marks.start, *best.tokens, *([marks.end] if best.ended else [])]
    rows = (part.sources[0], target[:-1], target[1:])
    out = translator.model(Pair(whole(rows[0]), whole(rows[1])), attention=True)
    source, earlier, written = (readable(translator.tokenizer, ids) for ids in rows)
    kinds = [
        ("decoder to source", "a row is a token as it is written, a column a token of the source", written, source),
        ("decoder to itself", "a row is the token before the one that is written", earlier, earlier),
        ("encoder to itself", "rows and columns are the tokens of the source", source, source),
    ]
    weights = (out.cross, out.attention, out.source)
    return Seen(answer, [Maps(*kind, alone(layers)) for kind, layers in zip(kinds, weights, strict=True) if layers])


def whole(ids: list[int]) -> Batch:
    """A batch of one row."""
    row = torch.tensor([ids])
    return Batch(row, torch.ones_like(row))


def alone(layers: Sequence[Tensor]) -> list[Tensor]:
    """Layers [1, H, Tq, n + Tk] of the only row that there is."""
    return [layer[0].float() for layer in layers]


def readable(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Tokens as a reader knows them: a space is "·", and where one character has several tokens the last shows it."""
    names: list[str] = []
    pieces: list[int] = []
    for i in ids:
        pieces = [*pieces[-3:], i]  # a character has at most four bytes
        texts = (tokenizer.decode(pieces[k:], skip_special=False) for k in reversed(range(len(pieces))))
        text = next((text for text in texts if "\N{REPLACEMENT CHARACTER}" not in text), None)
        pieces = pieces if text is None else []
        names.append("…" if text is None else text.replace(" ", "·"))
    return names
