"""Greedy search and sampling against `transformers`, streams, and the user's mistakes."""

from collections import Counter

import pytest
import torch
from stock_writers import END, FAMILIES, MAX_NEW, PAD, START, Table, generate, ragged, sources, stock, writer
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from peftlab.data.batch import Batch
from peftlab.errors import UserError
from peftlab.generate.beam import Beam
from peftlab.generate.search import Greedy, Sample, stream, write


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_writes_what_transformers_does(family):
    seen = Counter()
    for seed in range(24):
        model, batch = stock(family, seed, bias=2 * (seed % 3)), ragged(family, 1 + seed % 5, seed)
        ours = writer(model)
        found = write(ours, batch, Greedy(), MAX_NEW)
        expected = generate(model, batch, do_sample=False, num_beams=1)
        assert [[(text.tokens, text.ended) for text in texts] for texts in found] == [[t[0][:2]] for t in expected]
        seen.update("ended" if text.ended else "cut" for [text] in found)
        seen.update(ours.memory.calls)
    assert seen["ended"] > 5, seen
    assert seen["cut"] > 5, seen
    assert seen["keep"] > 2, seen
    assert not seen["reorder"], seen


def test_the_score_is_the_log_probability_and_who_has_ended_costs_nothing():
    model = Table(20, sources=12, end=3.0)
    found = write(model, sources(12), Greedy(), 10)
    log_p, lengths = model.scores.log_softmax(3), []
    for i, [text] in enumerate(found):
        path = [START, *text.tokens, END] if text.ended else [START, *text.tokens]
        lengths.append(len(path) - 1)
        total = sum(float(log_p[i, t, path[t], path[t + 1]]) for t in range(lengths[-1]))
        assert text.score == pytest.approx(total, rel=1e-5)
    assert len(set(lengths)) > 3
    assert model.rows == [sum(length > n for length in lengths) for n in range(max(lengths))]


def test_padding_is_never_written_and_keeps_its_probability():
    model = Table(6)
    model.scores[..., PAD] = 9.0
    for how in (Greedy(), Sample(), Beam(2)):
        [[text]] = write(model, sources(1), how, 8)
        assert PAD not in text.tokens
        assert text.score < -5  # the others would have 1 in 6 if they shared it


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.8])
@pytest.mark.parametrize("top_k", [None, 1, 5, 500])
@pytest.mark.parametrize("top_p", [None, 0.01, 0.6, 0.95, 1.0])
def test_what_is_drawn_from_is_what_transformers_draws_from(temperature, top_k, top_p):
    scores = torch.randn(7, 50) * 3
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    warpers += [] if top_k is None else [TopKLogitsWarper(top_k)]
    warpers += [] if top_p in (None, 1.0) else [TopPLogitsWarper(top_p)]  # at 1 it has none
    expected = warpers(None, scores).softmax(1)
    ours = Sample(temperature, top_k, top_p).probabilities(scores.log_softmax(1))
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)
    if top_p == 0.01:
        assert (ours > 0).sum(1).tolist() == [1] * 7


def test_tokens_come_as_often_as_they_are_likely():
    model, n = Table(8), 4000
    many = Batch(torch.zeros(n, 1, dtype=torch.long), torch.ones(n, 1))
    drawn = Counter(END if text.ended else text.tokens[0] for [text] in write(model, many, Sample(1.5), 1))
    p = model.scores[0, 0, START].log_softmax(0).index_fill(0, torch.tensor([PAD]), -torch.inf)
    p = (p / 1.5).softmax(0)
    for token in range(8):
        spread = float(p[token] * (1 - p[token]) * n) ** 0.5
        assert abs(drawn[token] - n * float(p[token])) <= 4 * spread


def test_a_seed_draws_the_same_and_leaves_the_global_generator_alone():
    model, many = Table(20, sources=5), sources(5)
    model.scores[..., END] = -3
    state = torch.get_rng_state()
    first = write(model, many, Sample(seed=3), 10)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    assert write(model, many, Sample(seed=3), 10) == first
    assert write(model, many, Sample(seed=4), 10) != first
    [one, greedy] = [write(model, many, how, 10) for how in (Sample(top_k=1), Greedy())]
    assert one == greedy


@pytest.mark.parametrize("how", [Greedy(), Sample(temperature=2.0, top_k=9, seed=1)])
def test_a_stream_gives_each_token_when_it_is_written(how):
    ended = Counter()
    for seed in range(6):
        model, batch = writer(stock("gpt2", seed, bias=2 * (seed % 3))), ragged("gpt2", 1, seed)
        [[text]] = write(model, batch, how, MAX_NEW)
        tokens = stream(model, batch, how, MAX_NEW)
        got = []
        for token in tokens:
            got.append(token)
            assert len(model.rows) == len(got), "it has read on before it was asked to"
            assert not torch.is_inference_mode_enabled()
        assert got == text.tokens
        ended[text.ended] += 1
    assert len(ended) == 2


def test_adapters_and_room_are_handed_on():
    model = Table(9, sources=2)
    write(model, sources(2), Greedy(), 7, ["mine", None])
    assert model.asked == (["mine", None], 7)
    next(stream(model, sources(1), Greedy(), 5, ["yours"]), None)
    assert model.asked == (["yours"], 5)


def test_a_model_in_training_is_refused_and_its_mode_stays():
    model = Table(9).train()
    with pytest.raises(UserError, match=r"training mode.*call model\.eval\(\)"):
        write(model, sources(1), Greedy(), 3)
    assert model.training
    write(model.eval(), sources(1), Greedy(), 3)
    assert not model.training


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"temperature": 0}, r"temperature is 0: it must be above 0, and Greedy\(\)"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0: it must be a whole number of at least 1"),
        ({"top_p": 0.0}, "top_p is 0.0: it must be above 0 and at most 1"),
        ({"top_p": 1.5}, "top_p is 1.5: it must be above 0 and at most 1"),
    ],
)
def test_a_sample_that_can_not_be_is_told(choice, message):
    with pytest.raises(UserError, match=message):
        Sample(**choice)


def test_too_many_tokens_too_long_a_text_and_a_wrong_stream_are_told_before_anything_runs():
    pair, text = writer(stock("bart", 0, 0.0)), writer(stock("gpt2", 0, 0.0))
    batch = Batch(torch.full((2, 8), 5), torch.arange(8) >= torch.tensor([[3], [1]]))
    pair.max_length, text.max_length = 10, 10
    for model, room in ((pair, 9), (text, 3)):
        assert all(len(texts[0].tokens) <= room for texts in write(model, batch, Greedy(), room))
        del model.rows
        with pytest.raises(
            UserError, match=f"max_new is {room + 1}: the model has 10 positions, ask for {room} at most"
        ):
            write(model, batch, Greedy(), room + 1)
        with pytest.raises(UserError, match="max_new is 0: it must be a whole number of at least 1"):
            write(model, batch, Greedy(), 0)
        with pytest.raises(UserError, match="the batch has 2 sources: a stream is of one"):
            stream(model, batch, Greedy(), 2)
        with pytest.raises(UserError, match="Beam knows its text only at the end: stream with Greedy or Sample"):
            stream(model, batch, Beam(), 2)
        assert not hasattr(model, "rows")
    text.max_length = 7
    with pytest.raises(UserError, match="the longest text has 7 tokens of the model's 7: give a shorter one"):
        write(text, batch, Greedy(), 1)
