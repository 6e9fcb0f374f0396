"""The look inside: its counts against a plain sum, its text and its HTML."""

from examples import METHODS, add, small

import peftlab


def test_counts_are_those_of_the_parameters():
    model = small()
    base = sum(p.numel() for p in model.parameters())
    add(model, "mine", METHODS["prefix-shared"], labels=3)
    add(model, "idle", METHODS["lora"])
    peftlab.activate(model, ["mine"])
    peftlab.freeze(model)
    seen = peftlab.describe(model)
    head = 16 * 3 + 3
    assert seen.base == base
    assert seen.heads == head
    assert seen.trainable == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert seen.added == seen.trainable - head
    rows = {(row.adapter, row.site): row for row in seen.rows}
    assert rows["idle", "encoder.0.self.q"].parameters == 3 * 16 * 2
    assert not rows["idle", "encoder.0.self.q"].trains
    assert rows["idle", "encoder.0.self.q"].shapes == "A 3×16, B 16×3"
    assert rows["mine", "encoder.head"].kind == "head"


def test_it_prints_as_a_table_and_as_html():
    model = small()
    add(model, "mine", METHODS["houlsby"], labels=2)
    text, page = str(peftlab.describe(model)), peftlab.describe(model)._repr_html_()
    for piece in ("encoder.0–1.ff.out", "Houlsby", "mine", "trains", "of the base"):
        assert piece in text
        assert piece in page
    assert page.count("<tr>") == len(peftlab.describe(model).lines()) + 1
