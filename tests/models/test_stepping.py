"""One token more by the kernel of a whole block, against the block itself."""

from functools import partial
from itertools import pairwise

import pytest
import torch

from peftlab import native
from peftlab.data.batch import Batch
from peftlab.generate import Beam, Greedy, Sample, write
from peftlab.models import stepping
from peftlab.models.decoder import Decoder, DecoderConfig, DecoderMemory
from peftlab.models.seq2seq import Seq2Seq, seq2seq_config
from peftlab.models.stepping import Stepper
from peftlab.models.writer import Writer
from peftlab.native import product
from peftlab.peft import Adapter, BitFit, LoRA, Prefix
from peftlab.peft.attach import activate, attach, merge

pytestmark = pytest.mark.skipif(native.LIBRARY is None, reason="the kernels were not built, or this is not AVX2")

SMALL = {"vocab": 50, "dim": 24, "layers": 2, "heads": 3, "inner": 40, "max_length": 40}


def language_model(**choices) -> Decoder:
    return Decoder(DecoderConfig(**{**SMALL, **choices}, end=3))


def translator(**choices) -> Seq2Seq:
    return Seq2Seq(seq2seq_config(start=2, end=3, **{**SMALL, **choices}))


def scattered(model: Writer) -> Writer:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model.eval()


def some(*lengths: int) -> Batch:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Batch(torch.randint(4, 50, mask.shape).masked_fill(~mask, 0), mask.long())


def written(model: Writer, batch: Batch, hypotheses: int, steps: int = 4) -> list[torch.Tensor]:
    """The scores of each step, of hypotheses that change their places and of sources that end."""
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode(), native.computing():
        memory, scores = model.begin(batch, room=2)  # less than is written: the cache has to grow
        assert isinstance(memory, DecoderMemory)
        found = [scores]
        memory.widen(hypotheses)
        B = len(batch)
        for step in range(steps):
            if step == 2 and B > 1:
                memory.keep(torch.arange(1, B))
                B -= 1
            shuffled = torch.stack([torch.randperm(hypotheses, generator=generator) for _ in range(B)])
            memory.reorder((shuffled + hypotheses * torch.arange(B)[:, None]).flatten())
            tokens = torch.randint(4, 50, (B * hypotheses,), generator=generator)
            found.append(model.next(tokens, memory))
    return found


def both(model: Writer, batch: Batch, hypotheses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = written(model, batch, hypotheses)
    monkeypatch.setattr(stepping.Stepper, "of", lambda *_: None)
    for ours, expected in zip(fast, written(model, batch, hypotheses), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=2e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("hypotheses", [1, 3])
@pytest.mark.parametrize("residual", ["post", "pre"])
@pytest.mark.parametrize("make", [language_model, translator])
def test_it_is_what_the_blocks_give(make, residual, hypotheses, monkeypatch):
    both(scattered(make(residual=residual)), some(5, 3, 7), hypotheses, monkeypatch)
    both(scattered(make(residual=residual)), some(4), hypotheses, monkeypatch)


def test_of_many_rows_weights_are_packed(monkeypatch):
    model = scattered(language_model())
    both(model, some(*[3] * 9), 3, monkeypatch)
    assert hasattr(model.blocks[0].self_attention.sublayer.q.weight, "packed_False")


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "swish", "gelu_new", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("score", ["scaled", "dot"])
def test_every_activation_that_it_has(activation, score, monkeypatch):
    model = scattered(language_model(activation=activation, score=score))
    with native.computing():
        assert Stepper.of(model.blocks, torch.zeros(1)) is not None
    both(model, some(5, 3), 1, monkeypatch)


@pytest.mark.parametrize(
    "choices", [{"activation": "tanh"}, {"score": "weighted"}, {"norm": "batch"}, {"residual": "none"}, {"inner": 0}]
)
def test_other_blocks_go_their_own_way(choices):
    with native.computing():
        assert Stepper.of(language_model(**choices).blocks, torch.zeros(1)) is None


@pytest.mark.parametrize("method", [LoRA(rank=2), Adapter(width=4), Prefix(length=2), BitFit()])
def test_where_an_addition_acts_the_blocks_are_asked(method):
    model = scattered(language_model())
    attach(model, "mine", method)
    with native.computing():
        assert Stepper.of(model.blocks, torch.zeros(1)) is None
        activate(model, [])
        assert Stepper.of(model.blocks, torch.zeros(1)) is not None


def test_what_is_merged_is_in_the_weights(monkeypatch):
    model = scattered(language_model())
    batch = some(5)
    plain = written(model, batch, 1)
    attach(model, "mine", LoRA(rank=2))
    with torch.no_grad():
        for addition in model.additions("mine").values():
            for parameter in addition.parameters():
                parameter.normal_()
    acting = written(model, batch, 1)
    merge(model, "mine")
    merged = written(model, batch, 1)
    for one, other in pairwise([merged, acting]):
        for ours, expected in zip(one, other, strict=True):
            torch.testing.assert_close(ours, expected, rtol=0, atol=2e-5 * float(expected.abs().max()))
    assert not torch.allclose(plain[-1], merged[-1])


def test_what_was_learned_between_two_texts_is_written_with():
    model, batch = scattered(language_model()), some(*[3] * 20)
    before = written(model, batch, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    model(batch).scores.square().mean().backward()
    optimizer.step()
    after = written(model, batch, 1)
    assert not torch.allclose(before[-1], after[-1])
    with torch.inference_mode():
        memory, _ = model.begin(batch)
        plain = model.next(torch.full((20,), 7), memory)
        with native.computing():
            memory, _ = model.begin(batch)
            ours = model.next(torch.full((20,), 7), memory)
    torch.testing.assert_close(ours, plain, rtol=0, atol=2e-5 * float(plain.abs().max()))


def test_it_is_only_asked_for_where_the_kernels_compute():
    assert Stepper.of(language_model().blocks, torch.zeros(1)) is None


@pytest.mark.parametrize("how", [Greedy(), Sample(seed=1), Beam(3)])
@pytest.mark.parametrize("make", [partial(language_model, output_bias=True), translator])
def test_scores_written_over_those_that_are_spent_are_the_same(make, how, monkeypatch):
    model, batch = scattered(make()), some(5, 3, 7, 2)
    over = []
    place = product.placed
    monkeypatch.setattr(product, "placed", lambda *given: over.append(given[0]) or place(*given))
    found = write(model, batch, how, 12)
    assert sum(t is not None for t in over) > 5
    monkeypatch.setattr(DecoderMemory, "spend", lambda *_: None)
    over.clear()
    assert found == write(model, batch, how, 12)
    assert not any(t is not None for t in over)
