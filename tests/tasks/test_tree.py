"""The best tree against a search through all of them."""

from itertools import product

import numpy as np
import pytest

from peftlab.tasks.tree import best_tree


def is_tree(heads: list[int]) -> bool:
    """Whether exactly one word hangs on the root, and all reach it."""
    reached, grown = {0}, True
    while grown:
        more = {word for word, head in enumerate(heads, 1) if head in reached} - reached
        reached, grown = reached | more, bool(more)
    return heads.count(0) == 1 and len(reached) == len(heads) + 1


def all_trees(n: int) -> np.ndarray:
    """[trees, n] the heads of every tree of n words with one root."""
    heads = np.array(list(product(range(n + 1), repeat=n)))
    heads = heads[(heads == 0).sum(1) == 1]
    reached = np.pad(heads, ((0, 0), (1, 0)))
    for _ in range(n):  # each word's head's head's …
        reached = np.take_along_axis(np.pad(heads, ((0, 0), (1, 0))), reached, 1)
    return heads[(reached == 0).all(1)]


def total(scores: np.ndarray, heads: np.ndarray) -> np.ndarray:
    return scores[np.arange(len(scores)), heads].sum(-1)


def drawn(random: np.random.Generator, n: int) -> np.ndarray:
    """Scores of several kinds: with ties, with a root that all words want, or none, large and small."""
    scores = random.standard_normal((n, n + 1)) * random.choice([1e-3, 1.0, 50.0, 1e4])
    kind = random.integers(4)
    if kind == 1:
        scores = random.integers(-2, 3, (n, n + 1)).astype(float)
    scores[:, 0] += {2: 3.0, 3: -3.0}.get(int(kind), 0.0) * np.abs(scores).max()
    return scores.astype(random.choice([np.float32, np.float64]))


@pytest.mark.parametrize("n", range(1, 7))
def test_no_tree_is_better(n):
    random, trees = np.random.default_rng(n), all_trees(n)
    assert len(trees) == n ** (n - 1)  # Cayley
    for _ in range(150):
        scores = drawn(random, n)
        found = best_tree(scores)
        assert is_tree(found)
        exact = scores.astype(np.float64)
        best = total(exact, trees).max()
        assert total(exact, np.array(found)) == pytest.approx(best, rel=1e-9, abs=1e-9 * np.abs(exact).max())


def test_ten_thousand_matrices_give_ten_thousand_trees():
    random = np.random.default_rng(0)
    assert all(is_tree(best_tree(drawn(random, int(random.integers(1, 13))))) for _ in range(10_000))


def test_a_long_sentence_of_nested_cycles():
    n = 300
    scores = np.full((n, n + 1), -1.0)
    for word in range(1, n + 1):  # every word wants its neighbour, ever less: cycle within cycle
        scores[word - 1, 2 if word == 1 else word - 1] = n - word
        if word < n:
            scores[word - 1, word + 1] = n - word - 0.5
    assert is_tree(best_tree(scores))
    assert is_tree(best_tree(np.zeros((n, n + 1))))


def test_greedy_heads_that_are_a_tree_are_the_answer():
    scores = np.zeros((4, 5))
    heads = [2, 0, 4, 2]
    scores[np.arange(4), heads] = 1.0
    assert best_tree(scores) == heads
