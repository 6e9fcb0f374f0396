"""Asking a model: an answer a row, in their order; batches at once, and nothing left behind."""

import copy
import threading
import time

import pytest
import torch

from peftlab import native
from peftlab.models.encoder import Encoder, EncoderConfig
from peftlab.native import product
from peftlab.tasks import classify
from peftlab.train import asking
from peftlab.train.asking import ask
from peftlab.train.order import sorted_batches
from peftlab.train.stop import Interrupted, Stop

ROWS = 60


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Encoder(EncoderConfig(dim=16, layers=2, heads=2, inner=24, vocab=50, max_length=40, dropout=0.5)).train()


@pytest.fixture
def rows():
    ids = [torch.randint(1, 50, (2 + 7 * row % 31,)).tolist() for row in range(ROWS)]
    return classify.Encoded(ids, None, [0] * ROWS, list(range(ROWS)), pad=0)


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    """Two of them, whatever the machine has, and batches of some rows."""
    monkeypatch.setattr(asking, "TOKENS", 256)
    monkeypatch.setattr(asking, "WORTH", 64)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def sums(model, inputs, labels):
    """Of the states of each row's real tokens, weighed: a norm leaves them so that their plain sum is nothing."""
    hidden = model(inputs).hidden * inputs.mask[..., None]
    return list((hidden * torch.linspace(-1, 1, hidden.shape[-1])).sum((1, 2)))


def test_every_row_has_its_own_answer(model, rows):
    found = ask(model, rows, sums, "fp32")
    model.eval()
    for row, answer in enumerate(found):
        alone, labels = rows.batch([row])
        torch.testing.assert_close(answer, sums(model, alone, labels)[0], atol=1e-5, rtol=1e-5)
        assert not answer.requires_grad


def test_threads_share_the_weights_that_they_keep(model, rows, monkeypatch):
    monkeypatch.setattr(native, "TALL", True)
    expected, packed, pack = ask(model, rows, sums, "fp32"), [], product.pack

    def slow(weight, *how):
        packed.append((id(weight), *how))
        time.sleep(0.02)  # in which another thread needs it, too
        return pack(weight, *how)

    monkeypatch.setattr(product, "pack", slow)
    fresh = copy.deepcopy(model).requires_grad_(False)  # whose weights nobody has kept yet
    torch.testing.assert_close(ask(fresh, rows, sums, "fp32"), expected, atol=1e-5, rtol=1e-5)
    assert len(packed) == len(set(packed))
    assert bool(packed) == (native.LIBRARY is not None)


def test_the_model_and_the_threads_are_left_as_they_were(model, rows):
    ask(model, rows, sums, "fp32")
    assert model.training
    assert torch.get_num_threads() == 2
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [2]


def test_batches_are_asked_at_once_each_on_one_thread(model):
    ids = [[word] * 40 for word in (1, 2, 3, 4)]
    rows = classify.Encoded(ids, None, [0] * 4, list(range(4)), pad=0)
    assert len(sorted_batches(rows.lengths(), 128)) == 2
    together = threading.Barrier(2, timeout=20)  # broken where one batch waits for another

    def meet(model, inputs, labels):
        together.wait()
        return [torch.get_num_threads()] * len(labels)

    assert ask(model, rows, meet, "fp32") == [1] * 4


def test_with_one_thread_nobody_else_is_asked(model, rows):
    torch.set_num_threads(1)

    def who(model, inputs, labels):
        return [threading.get_ident()] * len(labels)

    assert ask(model, rows, who, "fp32") == [threading.get_ident()] * ROWS


def test_batches_wait_for_their_turn_instead_of_filling_the_memory(model, rows, monkeypatch):
    made, done = [], []

    def slowly(model, inputs, labels):
        time.sleep(0.02)
        done.append(len(labels))
        return labels

    plain = classify.Encoded.batch

    def counted(self, which):
        made.append(len(which))
        assert len(made) - len(done) <= 4  # two are asked, one waits, one is made
        return plain(self, which)

    monkeypatch.setattr(classify.Encoded, "batch", counted)
    ask(model, rows, slowly, "fp32")
    assert len(made) > 6


def test_a_mistake_or_a_wish_to_stop_ends_it(model, rows):
    def wrong(model, inputs, labels):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        ask(model, rows, wrong, "fp32")
    stop = Stop()
    stop.number = 15
    with pytest.raises(Interrupted):
        ask(model, rows, sums, "fp32", stop)
    assert model.training
    assert torch.get_num_threads() == 2
