"""The page of tags and trees: every word and arc is there, arcs do not touch, text stays text."""

import random

import pytest
from made_up import HOSTILE
from test_report import Elements

from peftlab.errors import UserError
from peftlab.report.arcs import arc_levels, page, places, spans, write
from peftlab.report.page import POLICY


def tree(words, heads, relations=None) -> dict:
    return {"words": words, "heads": heads, "relations": relations or ["x"] * len(words), "conllu": ""}


def random_heads(draw: random.Random, n: int) -> list[int]:
    """A tree: each word hangs on one that was placed before it."""
    order = draw.sample(range(1, n + 1), n)
    heads = {order[0]: 0} | {word: draw.choice(order[:i]) for i, word in enumerate(order) if i}
    return [heads[word] for word in range(1, n + 1)]


@pytest.mark.parametrize("seed", range(20))
def test_two_arcs_over_one_stretch_have_different_heights(seed):
    draw = random.Random(seed)
    heads = random_heads(draw, draw.randint(1, 25))
    levels = arc_levels(heads)
    arcs = [(min(w, h), max(w, h), level) for w, (h, level) in enumerate(zip(heads, levels, strict=True), 1) if h]
    for i, (a, b, level) in enumerate(arcs):
        for c, d, other in arcs[:i]:
            if a < d and c < b:
                assert level != other
                if (b - a) != (d - c):
                    assert (level > other) == (b - a > d - c)
    assert levels[heads.index(0)] == 1 + max((level for *_, level in arcs), default=0)


def test_words_do_not_touch_and_a_relation_has_room():
    words, heads = ["a", "of", "incomprehensibilities", "."], [2, 0, 2, 3]
    x = places(words, heads, ["nsubj:passive:long", "root", "obj", "punct"])
    assert x[1] - x[0] > 6 * len("nsubj:passive:long")
    for i in range(3):
        assert x[i + 1] - x[i] > 4 * (len(words[i]) + len(words[i + 1]))


def test_every_word_and_arc_is_drawn():
    text = page([tree(["the", "dog", "barks"], [2, 3, 0], ["det", "nsubj", "root"])], "run")
    assert text.count('class="arrow"') == text.count('class="arc"') == 3
    for word in ("the", "dog", "barks", "det", "nsubj", "root"):
        assert f">{word}</text>" in text


def test_an_entity_is_one_span_and_what_is_none_has_no_colour():
    tags = ["O", "B-person", "I-person", "B-person", "I-place", "O"]
    assert spans(tags) == [(0, 1, ""), (1, 3, "person"), (3, 4, "person"), (4, 5, "place"), (5, 6, "")]
    assert spans(["O", "O"]) == [(0, 1, ""), (1, 2, "")]
    assert spans(["NOUN", "X"]) == [(0, 1, "NOUN"), (1, 2, "X")]
    text = page([{"words": list("abcdef"), "tags": tags}], "run")
    assert text.count("<mark") == 3 + 2  # and the legend
    assert ">b c<b>person</b></mark>" in text


def test_text_stays_text_and_nothing_is_asked_for():
    answers = [tree([HOSTILE, HOSTILE], [0, 1], ["root", HOSTILE]), {"words": [HOSTILE], "tags": [HOSTILE]}]
    found = Elements(page(answers, HOSTILE))
    assert not {"script", "img"} & set(found.names)
    assert found.text.count(HOSTILE) >= 6
    assert ("meta", "content", POLICY) in found.attributes


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(UserError, match="is a folder: give a file"):
        write([], "run", tmp_path)
    write([], "run", tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").read_text().endswith("</html>\n")
