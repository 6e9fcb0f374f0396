"""The feed-forward network and the loss in chunks: the same numbers as whole, in less memory."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.memory import peak
from peftlab.data.batch import Batch
from peftlab.errors import UserError
from peftlab.layers.cross_entropy import chunked_cross_entropy
from peftlab.layers.feedforward import ChunkedFeedForward, FeedForward
from peftlab.models.decoder import Decoder, DecoderConfig
from peftlab.models.encoder import Encoder, EncoderConfig
from peftlab.models.reformer import ReformerConfig, ReformerDecoder
from peftlab.peft.attach import attach
from peftlab.peft.lora import LoRA
from peftlab.tasks.language_model import LanguageModel

SMALL = {"vocab": 50, "dim": 16, "layers": 2, "heads": 4, "inner": 24, "max_length": 16, "dropout": 0.0}
MODELS = {
    "encoder": (Encoder, EncoderConfig, {"attention_dropout": 0.0}),
    "decoder": (Decoder, DecoderConfig, {"attention_dropout": 0.0}),
    "reformer": (ReformerDecoder, ReformerConfig, {"chunk": 4}),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_by_one_setting_any_model_goes_in_chunks_with_the_same_result(kind, chunk):
    model, config, choices = MODELS[kind]
    whole, parts = (model(config(**SMALL, **choices, inner_chunk=size)) for size in (0, chunk))
    parts.load_state_dict(whole.state_dict())
    for one in (whole, parts):
        torch.manual_seed(0)
        attach(one, "mine", LoRA(rank=2, targets=("up", "down")))
    ids = torch.randint(1, 50, (3, 11))
    batch = Batch(ids, torch.arange(11) < torch.tensor([[11], [4], [7]]))
    torch.manual_seed(0)
    expected = whole(batch).hidden
    torch.manual_seed(0)
    found = parts(batch).hidden
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    weights = torch.randn_like(found)
    expected.backward(weights)
    found.backward(weights)
    for (name, ours), theirs in zip(parts.named_parameters(), whole.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_dropout_inside_a_chunk_is_the_same_on_the_way_back():
    network = ChunkedFeedForward(4, 32, dropout=0.5, chunk=3).double()
    x = torch.randn(2, 7, 4, dtype=torch.float64, requires_grad=True)

    def run(x):
        torch.manual_seed(0)
        return network(x)

    assert torch.autograd.gradcheck(run, (x,))


def test_a_chunk_takes_a_chunk_of_memory():
    x = torch.randn(1, 512, 16, requires_grad=True)
    whole, parts = FeedForward(16, 512), ChunkedFeedForward(16, 512, chunk=32)
    used = [peak(lambda network=network: network(x).sum().backward()) for network in (whole, parts)]
    assert used[1] < used[0] / 4


def test_a_chunk_of_less_than_one_token_is_told():
    with pytest.raises(UserError, match="inner_chunk is -1: it must be a whole number of at least 1"):
        EncoderConfig(**SMALL, inner_chunk=-1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_the_loss_in_chunks_equals_the_whole(chunk, smoothing):
    vocabulary, hidden, labels = nn.Linear(8, 90), torch.randn(29, 8, requires_grad=True), torch.randint(90, (29,))
    expected = F.cross_entropy(vocabulary(hidden), labels, label_smoothing=smoothing)
    found = chunked_cross_entropy(vocabulary, hidden, labels, chunk, smoothing)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    wanted = [hidden, *vocabulary.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(found, wanted), torch.autograd.grad(expected, wanted), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("kind", ["decoder", "reformer"])
def test_by_one_setting_a_language_model_is_scored_in_chunks(kind):
    model, config, choices = MODELS[kind]
    model, ids = model(config(**SMALL, **choices)).eval(), torch.randint(1, 50, (3, 11))
    batch, labels = Batch(ids, torch.arange(11) < torch.tensor([[11], [4], [7]])), torch.randint(50, (3, 11))
    labels[~batch.mask] = -100
    expected = F.cross_entropy(model(batch).logits.flatten(0, 1), labels.flatten())
    for chunk in (0, 5):
        task = LanguageModel(chunk=chunk)
        torch.testing.assert_close(task.loss(model, batch, labels), expected, rtol=0, atol=1e-6)
        assert sum(task.judge(model, batch, labels)) == pytest.approx(22 * expected.item(), rel=1e-5)


def test_the_scores_of_all_tokens_are_never_in_memory():
    vocabulary, hidden, labels = nn.Linear(8, 5000), torch.randn(512, 8), torch.randint(5000, (512,))
    every = 512 * 5000 * 4
    assert peak(lambda: F.cross_entropy(vocabulary(hidden), labels).backward()) > 2 * every
    assert peak(lambda: chunked_cross_entropy(vocabulary, hidden, labels, 16).backward()) < every / 4
