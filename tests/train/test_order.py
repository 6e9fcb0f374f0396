"""The order of rows: each once an epoch, the same for the same seed, and little padding."""

import random

from hypothesis import given
from hypothesis import strategies as st

from peftlab.train.order import Order, epoch, sorted_batches


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=300), batch=st.integers(1, 40), seed=st.integers(0, 9))
def test_each_row_comes_once_an_epoch(lengths, batch, seed):
    for number in range(2):
        batches = epoch(lengths, batch, seed, number)
        assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
        assert all(1 <= len(rows) <= batch for rows in batches)
    evaluation = sorted_batches(lengths, tokens=100)
    assert sorted(row for rows in evaluation for row in rows) == list(range(len(lengths)))
    assert all(len(rows) == 1 or len(rows) * max(lengths[row] for row in rows) <= 100 for rows in evaluation)


def test_the_seed_and_the_epoch_decide():
    lengths = [random.Random(0).randint(3, 40) for _ in range(500)]
    assert epoch(lengths, 16, 1, 0) == epoch(lengths, 16, 1, 0)
    assert epoch(lengths, 16, 1, 0) != epoch(lengths, 16, 1, 1) != epoch(lengths, 16, 2, 1)
    order, both = Order(lengths, 16, 1), epoch(lengths, 16, 1, 0) + epoch(lengths, 16, 1, 1)
    assert [order.rows(step) for step in range(64)] == both
    assert [order.rows(step) for step in reversed(range(64))] == both[::-1]


def test_there_is_little_padding():
    draw = random.Random(0)
    lengths = [round(draw.lognormvariate(2.5, 0.7)) + 2 for _ in range(8000)]
    real = sum(lengths)

    def padded(batches):
        return sum(len(rows) * max(lengths[row] for row in rows) for rows in batches)

    plain = list(range(8000))
    assert padded([plain[i : i + 32] for i in range(0, 8000, 32)]) > 2.5 * real
    assert padded(epoch(lengths, 32, 0, 0)) < 1.1 * real
    few = sorted_batches(lengths[:256])
    assert padded(few) / sum(lengths[:256]) < 1.2
    assert len(few) < 256 / 10, "not at the price of a pass for each row"
