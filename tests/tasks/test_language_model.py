"""The language model: packing against the text, loss and perplexity against formulas and `transformers`' GPT-2."""

import math

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from peftlab.data.text import Text
from peftlab.data.tokenizer import Tokenizer
from peftlab.models.pretrained import load_checkpoint
from peftlab.models.writer import Marks
from peftlab.tasks.language_model import LanguageModel, Packed, pack, perplexities
from peftlab.train.asking import ask
from peftlab.train.loop import backward
from peftlab.train.order import Order

LINES = ["A dog runs over the green grass.", "Two men.", "ü 漢", "A woman reads a book in the park.", "One"]
TEXT = Text(LINES, [2, 3, 5, 8, 9])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train_on(LINES, "bpe", vocab_size=300)


def mark(tokenizer: Tokenizer) -> Marks:
    return Marks(None, tokenizer.eos, tokenizer.pad)


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 60), lines=st.lists(st.text("abc dé漢", min_size=1), min_size=1, max_size=8))
def test_every_token_is_predicted_once_and_in_its_order(tokenizer, length, lines):
    rows = [2 * i + 1 for i in range(len(lines))]
    packed = pack(tokenizer, Text(lines, rows), length, mark(tokenizer))
    stream = [i for line in lines for i in [*tokenizer.ids(line), tokenizer.eos]]
    owner = [row for line, row in zip(lines, rows, strict=True) for _ in [*tokenizer.ids(line), tokenizer.eos]]
    batch, labels = packed.batch(range(len(packed)))
    assert labels[labels != -100].tolist() == stream
    assert batch.ids[batch.mask].tolist() == [tokenizer.eos, *stream[:-1]]
    assert torch.equal(batch.mask, labels != -100)
    assert batch.mask.sum(1).tolist() == packed.lengths()
    assert set(packed.lengths()[:-1]) <= {length}, "all but the last are full"
    assert packed.rows == owner[::length]
    assert packed.weight(range(len(packed))) == len(stream)
    assert packed.words == sum(len(line.split()) + 1 for line in lines)
    again = packed.batch([len(packed) - 1])
    assert again[0].ids[0].tolist() == batch.ids[-1][batch.mask[-1]].tolist()


def test_lower_case_is_that_of_the_text(tokenizer):
    lowered = Text([line.lower() for line in LINES], TEXT.rows)
    packed = pack(tokenizer, TEXT, 7, mark(tokenizer), lowercase=True)
    assert torch.equal(packed.tokens, pack(tokenizer, lowered, 7, mark(tokenizer)).tokens)
    assert not torch.equal(packed.tokens, pack(tokenizer, TEXT, 7, mark(tokenizer)).tokens)


# The loss


class Saying:
    """A model that says what it is told to."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits

    def hidden(self, inputs: None) -> torch.Tensor:
        return self.logits

    def read(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def test_perplexity_is_the_formula():
    logits, packed = torch.randn(2, 4, 11), Packed(torch.tensor([1, 2, 3, 4, 5, 6, 7]), 4, [1, 1], 3, 0)
    _, labels = packed.batch([0, 1])
    assert labels.tolist() == [[2, 3, 4, 5], [6, 7, -100, -100]]
    nats = []
    for b, t in zip(*torch.where(labels != -100), strict=True):
        row = logits[b, t].tolist()
        nats.append(math.log(sum(map(math.exp, row))) - row[labels[b, t]])
    judged = LanguageModel().judge(Saying(logits), None, labels)
    assert judged == pytest.approx([sum(nats[:4]), sum(nats[4:])], rel=1e-5)
    assert float(LanguageModel().loss(Saying(logits), None, labels)) == pytest.approx(sum(nats) / 6, rel=1e-5)
    found = perplexities(judged, tokens=6, words=packed.words)
    assert found["perplexity"] == pytest.approx(math.exp(sum(nats) / 6), rel=1e-5)
    assert found["word_perplexity"] == pytest.approx(found["perplexity"] ** 2, rel=1e-5)
    assert LanguageModel().score(judged, packed) == pytest.approx(1 / found["perplexity"], rel=1e-5)
    assert perplexities([1e4], tokens=2000, words=1) == {
        "perplexity": pytest.approx(math.e**5),
        "word_perplexity": None,
    }


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory, tokenizer):
    """A random GPT-2 of `transformers`, and ours with its weights."""
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "initializer_range": 0.3}
    config = transformers.GPT2Config(vocab_size=tokenizer.vocab_size, eos_token_id=tokenizer.eos, **sizes)
    stock, folder = transformers.GPT2LMHeadModel(config).eval(), tmp_path_factory.mktemp("gpt2")
    stock.save_pretrained(folder)
    return stock, load_checkpoint(folder)[0]


@torch.no_grad()
def test_loss_and_perplexity_are_those_of_transformers(gpt2, tokenizer):
    stock, ours = gpt2
    packed = pack(tokenizer, TEXT, 12, mark(tokenizer))
    judged = ask(ours, packed, LanguageModel().judge, "fp32")
    total = 0.0
    for row, length in enumerate(packed.lengths()):
        # theirs shifts the labels itself: all tokens of a row and the one after it
        ids = packed.tokens[row * 12 : row * 12 + length + 1][None].long()
        loss = float(stock(input_ids=ids, labels=ids).loss)
        assert judged[row] == pytest.approx(loss * length, rel=1e-4)
        total += loss * length
    found = perplexities(judged, len(packed.tokens) - 1, packed.words)
    assert found["perplexity"] == pytest.approx(math.exp(total / (len(packed.tokens) - 1)), rel=1e-4)
    batch, labels = packed.batch(range(len(packed)))
    theirs = stock(input_ids=batch.ids, attention_mask=batch.mask.long()).logits
    expected = torch.nn.functional.cross_entropy(theirs.flatten(0, 1), labels.flatten(), ignore_index=-100)
    torch.testing.assert_close(LanguageModel().loss(ours, batch, labels), expected, rtol=1e-4, atol=1e-5)


def test_a_step_in_parts_has_the_gradient_of_the_whole(gpt2, tokenizer):
    _, ours = gpt2
    packed = pack(tokenizer, TEXT, 12, mark(tokenizer))
    rows = Order(packed.lengths(), len(packed), seed=0).rows(0)
    assert len({packed.size(row) for row in rows}) == 2, "the last row is shorter, so the parts weigh differently"
    losses, gradients = [], []
    for parts in (1, 3):
        losses.append(backward(ours, LanguageModel(), packed, rows, parts, "fp32"))
        gradients.append([parameter.grad.clone() for parameter in ours.parameters()])
        ours.zero_grad()
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for whole, part in zip(*gradients, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-3, atol=1e-5)
