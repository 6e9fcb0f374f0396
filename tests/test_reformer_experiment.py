"""The experiment on the Reformer, as far as seconds allow: its rows, what it measures, and the page."""

import json
import math
from dataclasses import replace

import pytest
import torch

from experiments import duplication, reformer
from experiments.duplication import FULL, Duplicate, Duplicates, Sizes
from peftlab.layers.lsh import LSHAttention
from peftlab.tasks.next_token import IGNORED

TINY = replace(reformer.QUICK, seconds=0.0, longest=1024)


def test_a_row_is_twice_the_same_and_only_the_second_half_is_asked_for():
    rows = Duplicates(range(5, 10), half=8, symbols=30)
    inputs, labels = rows.batch([3, 0])
    assert rows.lengths() == [15] * 5
    for ids, wanted in zip(inputs.ids.tolist(), labels.tolist(), strict=True):
        whole = [*ids, wanted[-1]]
        assert whole[:8] == whole[8:]
        assert whole.count(0) == 2
        assert wanted == [IGNORED] * 8 + whole[9:]
    assert torch.equal(rows.batch([0])[0].ids[0], inputs.ids[1]), "a row has its own w, wherever it stands"
    assert not torch.equal(inputs.ids[0], inputs.ids[1])


def test_no_sequence_of_the_test_is_trained_on():
    parts = range(1500 * duplication.BATCH), duplication.VALIDATION, duplication.TEST[:64]
    drawn = [[tuple(Duplicates(part, 8, 30).drawn(row).tolist()) for row in range(len(part))] for part in parts]
    assert len(set().union(*drawn)) == sum(map(len, drawn))


def test_the_task_is_learned_with_full_attention_and_told_by_its_rounds(monkeypatch):
    monkeypatch.setattr(duplication, "FEW", 4)
    sizes = Sizes(word=11, symbols=12, steps=100, tested=16, rotations=3, rounds=(1, 4))
    model = duplication.learn(None, sizes)
    assert duplication.test(model, None, sizes) > 0.99
    assert duplication.test(model, 1, sizes) < duplication.test(model, 4, sizes)
    # by hand, of the rotations that come first
    model.config = replace(model.config, seed=0)
    duplication.look_with(model, 1)
    inputs, labels = Duplicates(duplication.TEST[:16], 12, 12).batch(range(16))
    with torch.no_grad():
        guesses = model(inputs).logits.argmax(-1)
    right = (guesses == labels)[:, 12:].float().mean().item()
    assert duplication.test(model, 1, replace(sizes, rotations=1)) == pytest.approx(right)


def test_one_round_sees_what_a_loop_over_chunks_finds(monkeypatch):
    monkeypatch.setattr(reformer, "CHUNK", 4)
    q = torch.randn(1, 24, 2, 8)
    order = LSHAttention(16, 2, chunk=4, rounds=3).order(q, None, seed=0)
    found = reformer.seen(order)
    for head in range(2):
        for round_ in range(3):
            chunks = order[0, head, round_].view(-1, 4).tolist()
            for i in range(24):
                own = next(c for c, chunk in enumerate(chunks) if i in chunk)
                assert found[0, head, round_, i] == ((i + 12) % 24 in chunks[own] + chunks[own - 1])


def test_the_error_falls_with_rounds_as_the_formula_says():
    lines = reformer.error(replace(TINY, tokens=512, hashes=8))
    pairs, formula, alone = (dict(lines[name]) for name in (reformer.PAIRS, reformer.FORMULA, reformer.SINGLE))
    assert list(pairs) == [1, 2, 4, 8]
    assert pairs[8] < pairs[4] < pairs[2] < pairs[1] < 1
    assert formula[4] == pytest.approx(formula[1] ** 4)
    assert pairs[1] == pytest.approx(formula[1], rel=0.15)
    assert pairs[2] == pytest.approx(formula[2], rel=0.25)
    assert alone[8] > 2 * pairs[8]


def test_all_is_measured_and_drawn(tmp_path):
    found = reformer.measure(TINY)
    assert [len(points) for points in found["duplication"].values()] == [3, 3, 3]
    memory = {name: [height for _, height in points] for name, points in found["memory"].items()}
    assert memory["reversible"][1] < 1.3 * memory["reversible"][0]
    assert memory["plain"][1] > 2 * memory["plain"][0]
    assert all(time > 0 for points in found["time"].values() for _, time in points)
    reformer.write(found, tmp_path)
    assert json.loads((tmp_path / "reformer.json").read_text()).keys() == reformer.PANELS.keys()
    drawn = [(tmp_path / f"reformer-{name}.svg").read_text() for name in reformer.PANELS]
    assert [chart.count("<path") for chart in drawn] == [3, 3, 2, 2]
    page = (tmp_path / "reformer.html").read_text()
    assert all(chart.strip() in page for chart in drawn)
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


def test_the_table_is_that_of_the_paper():
    lines = {"trained with full": [(1.0, 0.5), (2.0, 0.75), (4.0, 1.0)], "trained with 1": [(1.0, 0.9)] * 3}
    assert reformer.table(lines).splitlines() == [
        f"|  | tested with 1 | tested with 2 | tested with {FULL} |",
        "| --- | ---: | ---: | ---: |",
        "| trained with full | 50.0% | 75.0% | 100.0% |",
        "| trained with 1 | 90.0% | 90.0% | 90.0% |",
    ]


def test_guessing_is_right_as_often_as_chance_has_it():
    sizes = Sizes(word=20, symbols=8, steps=1, tested=50, rotations=1)
    rows = Duplicates(duplication.TEST[:50], 21, 8)
    model = duplication.learn(1, sizes)
    judged = Duplicate().judge(model, *rows.batch(range(50)))
    assert len(judged) == 50
    chance = 1 / 7
    assert Duplicate().score(judged, rows) < chance + 5 * math.sqrt(chance / 1000)
