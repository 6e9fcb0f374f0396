"""What heads look at: how often the strongest attention of a head follows a dependency relation of a treebank.

    python -m experiments.heads                                   # minilm on UD English EWT, half a minute
    python -m experiments.heads --data path/to/ud-english-ewt --base path/to/bert

What the notes claim: heads specialise. After Clark et al. 2019 (arXiv 1906.04341), section 4: attention to a word that
was split is the sum over its subwords, attention from it their mean; marks and the word itself do not count. A head
guesses the head of a word in two ways: the word that it looks at most (dependent → head), and the word that looks at it
most (head → dependent). It is measured against the best guess that knows no words: always the one at the same distance.

Unlike there, the best head and distance of a relation are chosen on the validation part and reported on the test part,
since the best of 72 heads in two directions is good by luck, too. Leaves `heads.json` and `heads.svg` in the folder,
and prints the table. Layers and heads are counted from 1.

Shapes: B sentences, T tokens and N words of the longest, L layers, H heads; W words of a part that hang on another,
R relations. Of the two directions, dependent → head comes first.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from peftlab.data.batch import Batch
from peftlab.data.conllu import Sentence
from peftlab.data.files import make_folder, write_text
from peftlab.data.treebank import load_sentences
from peftlab.data.words import NO_WORD, marks_around
from peftlab.errors import UserError, told
from peftlab.models.base import Base, load
from peftlab.models.encoder import Encoder
from peftlab.report.axes import ALONE, fit, svg
from peftlab.report.markup import Markup, tag
from peftlab.report.numbers import points, signed
from peftlab.tasks.parse import encode, relation_names
from peftlab.train.asking import ask
from peftlab.train.parsing import read_trees

DIRECTIONS = ("dependent → head", "head → dependent")
ALL = "all"
LEAST = 50
"""words of a relation in each part, so that its share means something: ± 14 points at worst"""
COMMON = 0.02
"""share of all words that a relation of the map has: a rare one has no distance that is often right, and so any head
would be told to follow it
"""
WIDE, TALL, LEFT, TOP = 80.0, 40.0, 64.0, 64.0
"""pixels of a cell of the map, and before and above the first"""
STRONGEST = 0.7
"""opacity of the colour: text is readable on it in light and dark"""
COLOURS = """
.name { font-size: 15px; font-weight: 600; } rect { fill: #2f81f7; } .cell { fill: none; stroke: var(--grid); }
"""


@dataclass(frozen=True)
class Part:
    """The words of a part that hang on another word."""

    relations: Tensor
    """[W] their numbers"""
    distances: Tensor
    """[W] from a word to its head: 1 is the next"""
    guesses: Tensor
    """[2, L, H, W] the same by each head"""

    def members(self, kept: Sequence[int]) -> Tensor:
        """[W, 1 + R]: 1 where a word has a relation; the first column is of all."""
        of = self.relations[:, None] == torch.tensor(kept, dtype=torch.long)
        return F.pad(of, (1, 0), value=True).float()


class Shares(NamedTuple):
    """How often guesses are right in a part, for all of its words and then by relation."""

    words: Tensor
    """[1 + R] how many there are"""
    heads: Tensor
    """[2, L, H, 1 + R] of each head"""
    fixed: Tensor
    """[1 + R] of the fixed distance"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="minilm", help="short name, folder or hub id of an encoder")
    parser.add_argument("--data", default="ud-english-ewt", help="a treebank: a short name, a folder or a file")
    parser.add_argument("--limit", type=int, help="at most so many sentences of each part")
    parser.add_argument("--out", type=Path, default=Path("runs/heads"), help="where table and map go")
    given = parser.parse_args()
    with told():
        if given.limit is not None and given.limit < 1:
            raise UserError(f"--limit is {given.limit}: at least one sentence of each part is needed")
        make_folder(given.out)
        data, base = load_sentences(given.data, read_trees).limited(1, given.limit), load(given.base)
        parts = [data.validation, data.tests["test"]]
        names = relation_names(sentence.tree() for part in parts for sentence in part)
        found = compare(names, *(follow(base, part, names) for part in parts))
        about = {"base": given.base, "data": data.name, "sentences": [len(part) for part in parts]}
        write_text(given.out / "heads.json", json.dumps(about | found, indent=1, ensure_ascii=False) + "\n")
        write_text(given.out / "heads.svg", chart(found["heads"], f"What the heads of {given.base} follow") + "\n")
    print(table(found["relations"]))


def follow(base: Base, sentences: list[Sentence], names: Sequence[str]) -> Part:
    """Every head's guesses for the words of some sentences."""
    if not isinstance(base.model, Encoder):
        raise UserError(f"{base.name} does not read a text from both sides: give an encoder, such as minilm")
    encoded = encode(base.tokenizer, sentences, [sentence.tree() for sentence in sentences], names, base.room)
    behind = len(marks_around(base.tokenizer)[1])
    guesses = torch.cat(ask(base.model, encoded, partial(guess, behind=behind), "fp32"), -1)
    heads, relations = (torch.tensor(list(chain(*rows))) for rows in (encoded.heads, encoded.relations))
    places = torch.cat([torch.arange(1, len(row) + 1) for row in encoded.heads])
    hang = heads > 0  # neither the root of a sentence, nor a word whose head was cut off
    return Part(relations[hang], (heads - places)[hang], guesses[..., hang])


def guess(model: Encoder, inputs: Batch, labels: Tensor, behind: int) -> list[Tensor]:
    """Of each sentence [2, L, H, N]: how far from each word its head is, as each head guesses.

    The labels say where words begin; so many marks stand behind the last.
    """
    begins = labels[..., 0] != NO_WORD
    text = torch.arange(begins.shape[1]) < inputs.mask.sum(1, keepdim=True) - behind
    words = torch.where(text, begins.cumsum(1), 0)  # [B, T] counted from 1, and 0 at marks
    layers = model(inputs, attention=True).attention
    assert layers is not None
    found = torch.stack([strongest(*among_words(layer, words)) for layer in layers], 2)  # [2, B, L, H, N]
    found = found - torch.arange(found.shape[-1])
    return [found[:, row, ..., :count] for row, count in enumerate(begins.sum(1).tolist())]


def among_words(weights: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Attention [B, H, T, T] and the word of each token [B, T], 0 for none → [B, H, N, N], and which are words [B, N].

    To a word its subwords' sum, and from it their mean.
    """
    of = F.one_hot(words)[..., 1:].to(weights.dtype)  # [B, T, N]
    sizes = of.sum(1, keepdim=True)
    mean = of / sizes.clamp(min=1)
    return mean.mT[:, None] @ weights @ of[:, None], sizes[:, 0] > 0


def strongest(weights: Tensor, real: Tensor) -> Tensor:
    """[B, H, N, N] → [2, B, H, N]: the other word that each looks at most, and the one that looks at it most."""
    N = real.shape[1]
    others = real[:, None, None] & ~torch.eye(N, dtype=torch.bool)
    return torch.stack([seen.masked_fill(~others, -1.0).argmax(-1) for seen in (weights, weights.mT)])


def compare(names: Sequence[str], validation: Part, test: Part) -> dict[str, Any]:
    """Of each relation its best head, and of each head what it follows best: chosen on one part, told of the other."""
    there, often = (torch.bincount(part.relations, minlength=len(names)) for part in (validation, test))
    kept = [i for i in often.argsort(descending=True).tolist() if min(there[i], often[i]) >= LEAST]
    if not kept:
        raise UserError(f"no relation has {LEAST} words in each part: give more sentences")
    usual = torch.stack([validation.distances[of.bool()].mode().values for of in validation.members(kept).T])
    chosen, told_of = (shares(part, kept, usual) for part in (validation, test))
    _, L, H, _ = chosen.heads.shape
    common = max(1, sum(int(often[i]) >= COMMON * len(test.relations) for i in kept))

    def entry(direction: int, layer: int, head: int, r: int) -> dict[str, Any]:
        return {
            "relation": names[kept[r - 1]] if r else ALL,
            "words": int(told_of.words[r]),
            "layer": layer + 1,
            "head": head + 1,
            "direction": DIRECTIONS[direction],
            "right": told_of.heads[direction, layer, head, r].item(),
            "distance": int(usual[r]),
            "baseline": told_of.fixed[r].item(),
        }

    best = chosen.heads.flatten(0, 2).argmax(0).tolist()
    relations = [entry(i // (L * H), i // H % L, i % H, r) for r, i in enumerate(best)]
    gains = (chosen.heads - chosen.fixed)[..., 1 : 1 + common].permute(1, 2, 0, 3).flatten(2)  # [L, H, 2 · common]
    heads = [
        [entry(i // common, layer, head, 1 + i % common) for head, i in enumerate(row)]
        for layer, row in enumerate(gains.argmax(-1).tolist())
    ]
    return {"relations": relations, "heads": heads}


def shares(part: Part, kept: Sequence[int], usual: Tensor) -> Shares:
    """Of the relations that are kept, each with its fixed distance [1 + R]."""
    of = part.members(kept)
    words = of.sum(0)
    heads = (part.guesses == part.distances).float() @ of
    fixed = ((part.distances[:, None] == usual) * of).sum(0)
    return Shares(words, heads / words, fixed / words)


def table(relations: list[dict[str, Any]]) -> str:
    """In Markdown."""
    titles = ["relation", "words", "best head", "direction", "right %", "distance", "its right %"]
    lines = [f"| {' | '.join(titles)} |", "|---|---:|---:|---|---:|---:|---:|"]
    for found in relations:
        cells = [found["relation"], f"{found['words']:,}", f"{found['layer']}-{found['head']}", found["direction"]]
        cells += [points(found["right"]), f"{found['distance']:+d}", points(found["baseline"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def chart(heads: list[list[dict[str, Any]]], title: str) -> Markup:
    """Layers × heads: the relation that a head follows best, and how many points more often than the fixed distance."""
    how = "the relation that each head follows best, and how many points more often than the best fixed distance"
    drawn = [tag("text", title, x=12, y=22, class_="name"), tag("text", how, x=12, y=41)]
    for i in range(len(heads[0])):
        x = LEFT + (i + 0.5) * WIDE
        drawn.append(tag("text", f"head {i + 1}", x=x, y=TOP - 6, class_="tick", text_anchor="middle"))
    most = max(gain(found) for row in heads for found in row)
    for j, row in enumerate(heads):
        y = TOP + j * TALL
        drawn.append(tag("text", f"layer {j + 1}", x=LEFT - 8, y=y + TALL / 2 + 4, class_="tick", text_anchor="end"))
        drawn += [cell(found, LEFT + i * WIDE, y, most) for i, found in enumerate(row)]
    width, height = LEFT + len(heads[0]) * WIDE + 12, TOP + len(heads) * TALL + 12
    return svg(width, height, f"{title}: {how}", tag("style", Markup(ALONE + COLOURS)), *drawn)


def cell(found: dict[str, Any], x: float, y: float, most: float) -> Markup:
    """One head; the stronger the colour, the nearer its gain is to the most that any has."""
    about = f"{found['layer']}-{found['head']}, {found['relation']}, {found['direction']}: {points(found['right'])} %"
    about += f", and {points(found['baseline'])} % at the distance {found['distance']:+d}"
    place = {"x": x + 1, "y": y + 1, "width": WIDE - 2, "height": TALL - 2, "rx": 3}
    text: dict[str, str | float] = {"x": x + WIDE / 2, "class_": "tick", "text_anchor": "middle"}
    return tag(
        "g",
        tag("title", about),
        tag("rect", **place, class_="cell"),
        tag("rect", **place, fill_opacity=STRONGEST * max(gain(found), 0) / max(most, 1e-9)),
        tag("text", fit(found["relation"], WIDE), **text, y=y + 17),
        tag("text", signed(gain(found)), **text, y=y + 31),
    )


def gain(found: dict[str, Any]) -> float:
    """How much more often a head is right than the fixed distance."""
    return float(found["right"] - found["baseline"])


if __name__ == "__main__":
    main()
