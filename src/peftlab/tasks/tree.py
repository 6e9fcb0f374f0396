"""The best tree: the heads with the largest sum of scores among all trees in which exactly one word hangs on the root.

Chu & Liu 1965, Edmonds 1967: take the best head of each word; a cycle among them becomes one word, and the tree of what
is left says where to enter it. One root by a change of the scores (Stanojević & Cohen 2021, EMNLP, section 4): all arcs
from the root lose more than any tree could win elsewhere, so that the best tree has as few of them as it can.

Shapes: n words; place 0 of a head is the root.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from peftlab.data.conllu import find_cycle

Scores = NDArray[np.floating[Any]]
Heads = NDArray[np.intp]


def best_tree(scores: Scores) -> list[int]:
    """Scores [n, 1 + n] of each word with each head → the head of each word, counted from 1, and 0 at the root.

    >>> best_tree(np.array([[0.0, 0, 9], [5, 8, 0]]))  # word 1 on 2, and 2 on the root: its best head would be 1
    [2, 0]
    """
    n = len(scores)
    assert n > 0
    assert scores.shape == (n, n + 1)
    assert np.isfinite(scores).all()
    square = np.full((n + 1, n + 1), -np.inf)  # double precision; what stays −∞ is no arc
    square[1:] = scores
    np.fill_diagonal(square, -np.inf)
    greedy = square[1:].argmax(1)
    if (greedy == 0).sum() == 1 and not find_cycle([0, *greedy.tolist()]):  # a trained parser's, nearly always
        return list(greedy.tolist())
    square[1:, 0] -= n * (scores.max() - scores.min()) + 1
    return list(spanning_tree(square)[1:].tolist())


def spanning_tree(scores: Scores) -> Heads:
    """Scores [m, m] of each word with each head, −∞ where there is no arc → the heads [m] of the best tree from 0."""
    heads = scores.argmax(1)
    heads[0] = 0
    cycle = np.array(find_cycle(heads.tolist()), dtype=np.intp)
    if not len(cycle):
        return heads
    outside = np.ones(len(scores), dtype=bool)
    outside[cycle] = False
    rest = outside.nonzero()[0]  # the root is its first
    # to enter the cycle at a word gives its arc in exchange for the one that it has in the cycle
    entering = scores[cycle][:, rest] - scores[cycle, heads[cycle]][:, None]
    leaving = scores[rest][:, cycle]
    smaller = np.full((len(rest) + 1, len(rest) + 1), -np.inf)  # the cycle is its last word
    smaller[:-1, :-1] = scores[rest][:, rest]
    smaller[:-1, -1] = leaving.max(1)
    smaller[-1, :-1] = entering.max(0)
    found = spanning_tree(smaller)
    from_cycle = found[:-1] == len(rest)
    heads[rest] = np.where(from_cycle, cycle[leaving.argmax(1)], rest[np.where(from_cycle, 0, found[:-1])])
    heads[cycle[entering[:, found[-1]].argmax()]] = rest[found[-1]]
    return heads
