"""`logits_only` follows one token through the last block, where the heads read no other: the same logits, less work."""

import pytest
import torch
from examples import METHODS, add, batch, small

import peftlab

LENGTHS = (3, 6, 5)


@pytest.mark.parametrize("residual", ["post", "pre", "none"])
@pytest.mark.parametrize("name", METHODS)
def test_the_logits_are_those_of_the_whole_pass(name, residual):
    model = small(residual=residual).double()
    add(model, "mine", METHODS[name], labels=3)
    model.double()
    for side in ("left", "right"):
        b = batch(*LENGTHS, side=side, pairs=True)
        whole, short = model(b), model(b, logits_only=True)
        assert short.hidden.shape == (3, 1, 16)
        torch.testing.assert_close(short.logits, whole.logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("residual", ["post", "pre"])
def test_the_gradients_are_those_of_the_whole_pass(residual):
    model = small(residual=residual).double()
    add(model, "mine", METHODS["lora-all-rs"], labels=3)
    model.double()
    peftlab.freeze(model)
    seen = []
    for logits_only in (False, True):
        model.zero_grad()
        model(batch_of_ones(), logits_only=logits_only).logits.square().sum().backward()
        seen.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(seen[1], seen[0], rtol=0, atol=1e-12)
    assert seen[0]


def test_rows_that_name_their_adapters():
    model = small()
    for name, labels in (("lora", 2), ("prompt-peft", 3), ("prefix", 3)):
        add(model, name, METHODS[name], labels)
    model.double()
    names = ["prompt-peft", None, "lora"]
    b = batch(*LENGTHS)
    whole, short = model(b, adapters=names).logits, model(b, adapters=names, logits_only=True)
    assert short.hidden.shape[1] == 1
    assert whole[1] is None
    assert short.logits[1] is None
    for i in (0, 2):
        torch.testing.assert_close(short.logits[i], whole[i], rtol=0, atol=1e-12)


@pytest.mark.parametrize("choice", ["mean", "batch norm", "no head", "attention"])
def test_everything_is_computed_where_it_is_read(choice):
    model = small(norm="batch" if choice == "batch norm" else "layer")
    if choice != "no head":
        head = peftlab.Classifier(labels=2, pool="mean" if choice == "mean" else "first")
        peftlab.attach(model, "mine", METHODS["lora"], head=head)
    out = model(batch(*LENGTHS), logits_only=True, attention=choice == "attention")
    assert out.hidden.shape == (3, 6, 16)


def batch_of_ones():
    torch.manual_seed(3)
    return batch(*LENGTHS)
