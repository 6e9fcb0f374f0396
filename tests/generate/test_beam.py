"""Beam search against `transformers`, against all texts there are, and what it costs."""

from collections import Counter
from itertools import product

import pytest
import torch
from stock_writers import END, FAMILIES, MAX_NEW, PAD, START, Table, generate, ragged, sources, stock, writer

from peftlab.data.batch import Batch
from peftlab.errors import UserError
from peftlab.generate.beam import Beam
from peftlab.generate.search import Greedy, write


@pytest.mark.parametrize("family", FAMILIES)
def test_a_beam_writes_what_transformers_does(family):
    penalties, seen = (0.0, 0.6, 1.0, 2.0), Counter()
    for seed in range(24):
        width, penalty = 2 + seed % 4, penalties[(seed + seed // 4) % 4]
        best, rows = 1 + seed % width, 1 + seed % 5
        model, batch = stock(family, seed, bias=2 * (seed % 3)), ragged(family, rows, seed)
        ours = writer(model)
        found = write(ours, batch, Beam(width, penalty, best), MAX_NEW)
        expected = generate(model, batch, num_beams=width, length_penalty=penalty, num_return_sequences=best)
        got = [[(text.tokens, text.ended) for text in texts] for texts in found]
        assert got == [[text[:2] for text in texts] for texts in expected], (seed, width, penalty)
        scores, stock_scores = ([text for texts in side for text in texts] for side in (found, expected))
        assert [s.score for s in scores] == pytest.approx([s[2] for s in stock_scores], rel=1e-5)
        seen.update("ended" if text.ended else "cut" for text in scores)
        seen.update(ours.memory.calls)
        seen["empty"] += sum(text.ended and not text.tokens for text in scores)
        seen["early"] += len(ours.rows) < MAX_NEW
        seen[width, penalty] += 1
    assert all(seen[event] > 5 for event in ("ended", "cut", "keep", "reorder", "early")), seen
    assert seen["empty"], seen
    assert len({pair for pair in seen if isinstance(pair, tuple)}) == 16, "every width meets every penalty"


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
def test_a_beam_as_wide_as_the_tree_finds_all_texts_in_their_order(penalty):
    V, longest = 6, 4
    model = Table(V)
    log_p = model.scores[0].log_softmax(2)
    texts = []
    words = [token for token in range(V) if token not in (PAD, END)]
    for n in range(longest + 1):
        for text in product(words, repeat=n):
            marked = [START, *text] if n == longest else [START, *text, END]
            total = sum(float(log_p[t, marked[t], marked[t + 1]]) for t in range(len(marked) - 1))
            texts.append((total / (len(marked) - 1) ** penalty, list(text), n < longest))
    texts.sort(reverse=True)
    [found] = write(model, sources(1), Beam(400, penalty, best=400), longest)
    assert len(found) == len(texts) == 1 + 4 + 16 + 64 + 256
    assert [text.score for text in found] == pytest.approx([text[0] for text in texts], abs=1e-5)
    assert [(text.tokens, text.ended) for text in found] == [text[1:] for text in texts]


def test_a_source_is_written_alone_as_among_others_and_is_dropped_when_it_is_done():
    model, many = Table(20, sources=9, end=2.0), sources(9)
    together = write(model, many, Beam(4, best=4), 15)
    rows = model.rows
    lengths = []
    for i in range(9):
        assert write(model, Batch(many.ids[i : i + 1], many.mask[i : i + 1]), Beam(4, best=4), 15) == [together[i]]
        lengths.append(len(model.rows))
    assert len(set(lengths)) > 3
    assert rows[1:] == [4 * sum(length > n for length in lengths) for n in range(1, max(lengths))]


def test_a_beam_of_one_never_reorders_and_without_ends_is_greedy():
    model = Table(20, sources=3)
    model.scores[..., END] = -100
    [texts, greedy] = [write(model, sources(3), how, 8) for how in (Beam(1, length_penalty=0.0), Greedy())]
    assert [[text.tokens for text in found] for found in texts] == [[text.tokens for text in found] for found in greedy]
    assert [found[0].score for found in texts] == pytest.approx([found[0].score for found in greedy], rel=1e-5)
    write(model, sources(3), Beam(1), 8)
    assert model.memory.calls == []


def test_one_token_is_the_likeliest_ones():
    model = Table(20)
    top = model.scores[0, 0, START].log_softmax(0).index_fill(0, torch.tensor([PAD]), -torch.inf).topk(3)
    [found] = write(model, sources(1), Beam(3, best=3), 1)
    assert [[END] if text.ended else text.tokens for text in found] == top.indices[:, None].tolist()
    assert [text.score for text in found] == pytest.approx(top.values.tolist())


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"width": 0}, "width is 0: it must be a whole number of at least 1"),
        ({"width": 2.0}, r"width is 2.0: it must be a whole number"),
        ({"best": 0}, "best is 0: it must be a whole number of at least 1"),
        ({"width": 3, "best": 4}, "best is 4: a beam of width 3 finds 3 texts at most"),
        ({"length_penalty": float("nan")}, "length_penalty is nan: it must be a finite number"),
    ],
)
def test_a_beam_that_can_not_be_is_told(choice, message):
    with pytest.raises(UserError, match=message):
        Beam(**choice)
