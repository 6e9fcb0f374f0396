"""Dependency parsing (N→path): for each word its head and its relation to it, which together are a tree.

Dozat & Manning 2017 (arXiv 1611.01734) on the states of a pretrained model; the first subword of a word speaks for it.
The loss is the cross-entropy of the heads plus that of the relations, these to the heads of the treebank. The answer is
the best tree (`tasks/tree.py`) with the best relation on each arc.

Scores are those of the CoNLL 2018 shared task's script where words are given: UAS is the share of all words,
punctuation too, that have their right head, LAS of those that have the right relation to it besides. It compares the
universal part of a relation: `nmod:poss` is right where `nmod` was asked for.

Shapes: B sentences, T tokens and N words of the longest, K width of a parser's views, L relations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from peftlab.data.batch import Batch
from peftlab.data.conllu import Sentence, Tree
from peftlab.data.tokenizer import Tokenizer
from peftlab.data.words import NO_WORD, UNKNOWN, OnSubwords, encode_words
from peftlab.models.model import Model
from peftlab.models.parser import parser_of
from peftlab.tasks.task import Tally, Task, sums
from peftlab.tasks.tree import best_tree

ROOT, UNSPECIFIED = "root", "dep"
"""Universal Dependencies' names for the arc from the root, and for one of which no more is known"""


@dataclass(frozen=True)
class Encoded(OnSubwords):
    """Tokenised sentences with their trees."""

    heads: list[list[int]]
    """of the words that are left; −1: not known, or cut off"""
    relations: list[list[int]]
    """their numbers; −1: not known, not among the names, or to a head that was cut off"""
    trees: list[Tree]
    """of all words, also of those that were cut off"""

    def batch(self, rows: Sequence[int]) -> tuple[Batch, Tensor]:
        """These sentences, padded, with their labels [B, T, 2]: head and relation, −100 where no word begins."""
        labels = [self.words.labels(rows, values) for values in (self.heads, self.relations)]
        return self.words.batch(rows), torch.stack(labels, -1)


def relation_names(trees: Iterable[Tree]) -> tuple[str, ...]:
    """The relations that occur, in the order of the alphabet."""
    return tuple(sorted({relation for tree in trees for relation in tree.relations}))


def unknown_tree(words: int) -> Tree:
    """In the place of one that is to be found."""
    return Tree([UNKNOWN] * words, [""] * words)


def encode(
    tokenizer: Tokenizer, sentences: Sequence[Sentence], trees: Sequence[Tree], names: Sequence[str], max_length: int
) -> Encoded:
    """Tokenise once; a sentence that would have more than `max_length` tokens loses its last words."""
    words = encode_words(tokenizer, [sentence.words for sentence in sentences], max_length)
    number = {name: i for i, name in enumerate(names)}
    heads: list[list[int]] = []
    relations: list[list[int]] = []
    for tree, firsts in zip(trees, words.firsts, strict=True):
        left = len(firsts)
        heads.append([head if head <= left else UNKNOWN for head in tree.heads[:left]])
        known = (number.get(relation, UNKNOWN) for relation in tree.relations)
        relations.append([UNKNOWN if head < 0 else r for head, r in zip(heads[-1], known, strict=False)])
    unseen = sum(relation not in number for tree in trees for relation in tree.relations)
    return Encoded(words, [sentence.line for sentence in sentences], unseen, heads, relations, list(trees))


@dataclass(frozen=True)
class Parse(Task):
    """Cross-entropy of heads and relations, and LAS to choose by."""

    names: tuple[str, ...]
    """of the relations, in the order of the logits"""

    def loss(self, model: Model, inputs: Batch, labels: Tensor) -> Tensor:
        words, gold = self.read(model, inputs, labels)
        parser, real = parser_of(model), gold[..., 0] != NO_WORD
        heads, relations = gold[real].T
        arcs = allowed(parser.score_arcs(words).float(), real)[real]
        relation = parser.score_labels(words, gold[..., 0].clamp(min=0), real).float()
        # a head that was cut off, a relation that is unknown teach nothing; the loop weighs parts by their words
        total = F.cross_entropy(arcs, heads, ignore_index=UNKNOWN, reduction="sum")
        total = total + F.cross_entropy(relation, relations, ignore_index=UNKNOWN, reduction="sum")
        return total / len(heads)

    def judge(self, model: Model, inputs: Batch, labels: Tensor) -> Sequence[Tree]:
        """The tree over the words that are left of each sentence; the labels only say where words begin."""
        words, gold = self.read(model, inputs, labels)
        parser, real = parser_of(model), gold[..., 0] != NO_WORD
        counts = real.sum(1).tolist()
        arcs = parser.score_arcs(words).detach().float().cpu().numpy()
        heads = [best_tree(row[:n, : n + 1]) for row, n in zip(arcs, counts, strict=True)]
        chosen = torch.zeros_like(gold[..., 0])
        chosen[real] = torch.tensor([head for row in heads for head in row], device=chosen.device)
        logits = parser.score_labels(words, chosen, real).float()
        if ROOT in self.names:  # the name of the arc from the root, and of no other
            logits[:, self.names.index(ROOT)] = torch.where(chosen[real] == 0, math.inf, -math.inf)
        relations = [self.names[relation] for relation in logits.argmax(-1).tolist()]
        ends = accumulate(counts)
        return [Tree(row, relations[end - len(row) : end]) for row, end in zip(heads, ends, strict=True)]

    def read(self, model: Model, inputs: Batch, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The views [B, 1 + N, K] of the root and the words, and the words' labels [B, N, 2]."""
        real = labels[..., 0] != NO_WORD
        states, with_root = model(inputs, logits_only=True).scores, F.pad(real, (1, 0), value=True)
        views = parser_of(model).view(states[with_root])
        return spread(views, with_root.sum(1), 0), spread(labels[real], real.sum(1), NO_WORD)

    def score(self, judged: Sequence[Tree], rows: Encoded) -> float:
        return scores(judged, rows.trees)["las"]


def spread(words: Tensor, counts: Tensor, fill: int) -> Tensor:
    """[W, …] of all rows, so many of each → [B, N, …]: each row's own, and then as many fills as it lacks."""
    there = torch.arange(int(counts.max()), device=words.device) < counts[:, None]
    padded = words.new_full((*there.shape, *words.shape[1:]), fill)
    padded[there] = words
    return padded


def allowed(arcs: Tensor, real: Tensor) -> Tensor:
    """Scores [B, N, 1 + N] with −∞ where the head is no word; real [B, N]."""
    return arcs.masked_fill(~F.pad(real, (1, 0), value=True)[:, None], -math.inf)


def scores(predicted: Sequence[Tree], gold: Sequence[Tree]) -> dict[str, float]:
    """UAS and LAS; a tree may have fewer words than there were: those that were cut off are wrong."""
    (total, _, heads), (_, _, both) = (sums(tally(predicted, gold, labelled)) for labelled in (False, True))
    return {"uas": heads / total, "las": both / total}


def tally(predicted: Sequence[Tree], gold: Sequence[Tree], labelled: bool) -> list[Tally]:
    """Of each sentence its words: how many there are, twice, and how many have the right head (and relation to it)."""
    found = []
    for row, tree in zip(predicted, gold, strict=True):
        ours, theirs = (
            zip(each.heads, map(universal, each.relations) if labelled else each.heads, strict=True)
            for each in (row, tree)
        )
        right = sum(a == b for a, b in zip(ours, theirs, strict=False))
        found.append(Tally(len(tree.heads), len(tree.heads), right))
    return found


def universal(relation: str) -> str:
    """The part of a relation that all languages share.

    >>> universal("nmod:poss")
    'nmod'
    """
    return relation.split(":")[0]


def completed(tree: Tree, words: int) -> Tree:
    """A tree over all words of a sentence: those that were cut off hang on its root."""
    missing = words - len(tree.heads)
    root = tree.heads.index(0) + 1
    return Tree(tree.heads + [root] * missing, tree.relations + [UNSPECIFIED] * missing)
