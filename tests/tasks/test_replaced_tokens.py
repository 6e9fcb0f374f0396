"""Replaced tokens: what is drawn, what counts as replaced, gradients, sharing, stages, and `transformers`' loss."""

import pytest
import torch
import transformers
from sklearn.metrics import accuracy_score, precision_score, recall_score
from torch import nn

from peftlab.data.batch import Batch
from peftlab.errors import UserError
from peftlab.models.encoder import Encoder, EncoderConfig
from peftlab.models.pretrained import save_checkpoint
from peftlab.models.pretraining import Electra, ReplacedTokenHead, make_generator
from peftlab.tasks.masked_tokens import Masked, MaskedTokens
from peftlab.tasks.next_token import IGNORED
from peftlab.tasks.replaced_tokens import ReplacedTokens, draw, fill, policy_loss
from peftlab.train.pretraining import TwoStages

V, T, K = 40, 14, 4
MASK = 4


def electra(sharing="embeddings", size=0.5, adversarial=False, **choices) -> Electra:
    small = {"vocab": V, "dim": 32, "layers": 2, "heads": 4, "inner": 48, "max_length": T, "head": "gelu"}
    quiet = {"dropout": 0.0, "attention_dropout": 0.0, "init_std": 0.2}
    config = EncoderConfig(**{**small, **quiet, **choices})
    encoder = Encoder(config)
    return Electra(
        encoder, ReplacedTokenHead(config, "gelu"), make_generator(encoder, size, sharing, "gelu"), adversarial
    )


def asked(rows: int = 3) -> tuple[Masked, torch.Tensor]:
    """Rows with K masked places, of which the last is not to be guessed in any."""
    ids = torch.randint(5, V, (rows, T))
    places = torch.stack([torch.randperm(T)[:K] for _ in range(rows)])
    labels = ids.gather(1, places)
    labels[:, -1] = IGNORED
    given = ids.scatter(1, places[:, :-1], torch.full((rows, K - 1), MASK))
    return Masked(Batch(given, torch.ones_like(given)), places, torch.rand(rows, K)), labels


def gradients(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


# Drawing


def test_tokens_are_drawn_by_their_probability_and_impossible_ones_never():
    logits = torch.randn(V) * 1.5
    logits[[0, 7, V - 1]] = -1e9
    n = 100_000
    drawn = draw(logits.expand(n, 1, V), torch.rand(n, 1)).flatten()
    counts, expected = torch.bincount(drawn, minlength=V).double(), logits.double().softmax(0) * n
    possible = expected > 0
    assert counts[~possible].sum() == 0
    chi = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    assert chi < V + 5 * (2 * V) ** 0.5
    edges = draw(logits.expand(2, 1, V), torch.tensor([[0.0], [1 - 2**-24]])).flatten()
    assert possible[edges].all()


def test_a_guess_that_is_right_counts_as_original_and_what_is_not_asked_for_stays():
    inputs, labels = asked()
    logits = torch.zeros(3, K, V)
    right = labels[:, 0]
    logits[torch.arange(3), 0, right] = 1e4  # the first place is guessed right, the second wrong
    logits[torch.arange(3), 1, (labels[:, 1] + 1) % V] = 1e4
    filled = fill(inputs, labels, logits)
    at = filled.replaced.gather(1, inputs.places)
    assert at[:, 0].tolist() == [0, 0, 0]
    assert at[:, 1].tolist() == [1, 1, 1]
    assert at[:, -1].tolist() == [0, 0, 0]
    original = inputs.batch.ids.scatter(1, inputs.places[:, :-1], labels[:, :-1])
    assert torch.equal(filled.replaced.bool(), filled.batch.ids != original)
    assert torch.equal(filled.batch.ids.gather(1, inputs.places[:, -1:]), original.gather(1, inputs.places[:, -1:]))


# Gradients


def test_no_gradient_comes_from_the_discriminator_into_the_generator():
    model = electra("none")
    inputs, labels = asked()
    MaskedTokens().loss(model.generator, inputs, labels).backward()
    alone = gradients(model.generator)
    assert not gradients(model.encoder)
    model.zero_grad()
    ReplacedTokens(50.0).loss(model, inputs, labels).backward()
    together = gradients(model.generator)
    assert together.keys() == alone.keys()
    assert all(torch.equal(together[name], alone[name]) for name in alone)
    assert len(gradients(model.encoder)) == len(list(model.encoder.parameters()))
    assert len(gradients(model.head)) == 4


@pytest.mark.parametrize(("sharing", "size"), [("none", 0.5), ("embeddings", 0.25), ("all", 1.0)])
def test_each_sharing_shares_what_it_says(sharing, size):
    model = electra(sharing, size)
    own = {id(p) for p in model.encoder.parameters()}
    shared = {name for name, p in model.generator.encoder.named_parameters() if id(p) in own}
    tables = {f"embedding.{part}" for part in ("words.weight", "positions.weight", "segments.weight")}
    norm = {"embedding.norm.weight", "embedding.norm.bias"}
    every = {name for name, _ in model.encoder.named_parameters()}
    assert shared == {"none": set(), "embeddings": tables | norm, "all": every}[sharing]
    assert model.generator.config.dim == 32 * size
    names = [name for name, _ in model.named_parameters()]
    assert len(names) == len(set(names)), "what is shared trains once"
    ReplacedTokens().loss(model, *asked()).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_the_generator_of_another_size_can_t_share_all():
    with pytest.raises(UserError, match=r"the generator is 0.25 of the discriminator: they share all weights only at"):
        electra("all", 0.25)
    with pytest.raises(UserError, match="unknown sharing 'embedding': did you mean 'embeddings'"):
        electra("embedding")
    with pytest.raises(UserError, match=r"a generator of 0.7 would be 22 wide with 3 heads, which do not divide it"):
        electra("none", 0.7)


# The loss


def test_the_loss_is_that_of_transformers(tmp_path):
    """Both networks as `ElectraForMaskedLM` and `ElectraForPreTraining`, on the same batch: MLM + 50 · RTD."""
    model = electra("none", 0.5).eval()
    parts = {
        "generator": (model.generator.encoder, model.generator.head, transformers.ElectraForMaskedLM),
        "discriminator": (model.encoder, model.head, transformers.ElectraForPreTraining),
    }
    stock = {}
    for name, (encoder, head, kind) in parts.items():
        save_checkpoint(encoder, "electra", {}, tmp_path / name, pretrained=head)
        stock[name] = kind.from_pretrained(tmp_path / name).eval()
    inputs, labels = asked()
    with torch.no_grad():
        loss = ReplacedTokens(50.0).loss(model, inputs, labels)
        everywhere = torch.full((3, T), IGNORED).scatter(1, inputs.places, labels)
        first = stock["generator"](inputs.batch.ids, labels=everywhere)
        filled = fill(inputs, labels, first.logits.gather(1, inputs.places[..., None].expand(-1, -1, V)))
        second = stock["discriminator"](filled.batch.ids, labels=filled.replaced.long())
    torch.testing.assert_close(loss, first.loss + 50 * second.loss, rtol=1e-5, atol=0)


def test_precision_and_recall_are_those_of_scikit_learn():
    model = electra().eval()
    inputs, labels = asked(rows=20)
    with torch.no_grad():
        measured = ReplacedTokens().measures(ReplacedTokens().judge(model, inputs, labels))
        filled = fill(inputs, labels, model.generator(inputs.batch, inputs.places))
        said = (model(filled.batch) > 0).flatten()
    gold = filled.replaced.bool().flatten()
    assert gold.any()
    assert said.any()
    assert measured["rtd_accuracy"] == pytest.approx(accuracy_score(gold, said))
    assert measured["rtd_precision"] == pytest.approx(precision_score(gold, said))
    assert measured["rtd_recall"] == pytest.approx(recall_score(gold, said))


def test_the_score_rises_while_either_network_learns():
    task = ReplacedTokens()
    row = task.judge(electra().eval(), *asked())[0]
    better = [row._replace(nats=row.nats / 2), row._replace(doubt=row.doubt / 2)]
    assert all(1 > task.score([other], None) > task.score([row], None) > 0 for other in better)


# Fooling the discriminator


def test_the_policy_gradient_is_that_of_the_paper():
    """∂/∂logits = −(reward − baseline) · (one-hot(guess) − p) / n, and the baseline does not train the generator."""
    baseline, states = nn.Linear(8, 1), torch.randn(2, 3, 8, requires_grad=True)
    logits = torch.randn(2, 3, V, requires_grad=True)
    guesses, reward = torch.randint(V, (2, 3)), torch.rand(2, 3)
    real = torch.tensor([[True, True, False], [True, False, True]])
    policy_loss(baseline, states, logits, guesses, reward, real).backward()
    expected = -torch.sigmoid(baseline(states)).log().squeeze(-1).detach()
    one_hot = torch.nn.functional.one_hot(guesses, V) - logits.detach().softmax(-1)
    by_hand = -((reward - expected) * real)[..., None] * one_hot / real.sum()
    torch.testing.assert_close(logits.grad, by_hand, rtol=1e-4, atol=1e-7)
    assert states.grad is None
    assert baseline.weight.grad.abs().max() > 0


def test_an_adversarial_generator_learns_to_fool_and_the_baseline_to_expect():
    torch.manual_seed(1)
    baseline = nn.Linear(4, 1)
    logits = torch.zeros(1, 1, 5, requires_grad=True)
    states, real = torch.ones(64, 1, 4), torch.ones(64, 1, dtype=torch.bool)
    optimizer = torch.optim.Adam([logits, *baseline.parameters()], lr=0.05)
    rewards = torch.tensor([0.1, 0.1, 2.0, 0.1, 0.1])  # the discriminator is fooled by token 2 alone
    for _ in range(150):
        optimizer.zero_grad()
        every = logits.expand(64, 1, 5)
        guesses = draw(every.detach(), torch.rand(64, 1))
        policy_loss(baseline, states, every, guesses, rewards[guesses], real).backward()
        optimizer.step()
    assert float(logits.detach().softmax(-1)[0, 0, 2]) > 0.9


def test_the_adversarial_loss_trains_every_part():
    model = electra("none", adversarial=True)
    ReplacedTokens().loss(model, *asked()).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.generator.parameters())
    assert all(p.grad is not None for p in model.parameters())
    assert electra().baseline is None


# Two stages


def test_in_two_stages_one_network_learns_and_the_second_starts_as_the_first():
    model, inputs = electra("none", 1.0), asked()
    stages = TwoStages(switch=3)
    stages.thaw(model, 0)
    first = ReplacedTokens().loss(model, *inputs)
    assert torch.equal(first, MaskedTokens().loss(model.generator, *inputs))
    first.backward()
    assert not gradients(model.encoder)
    model.zero_grad()
    with torch.no_grad():
        model.generator.encoder.blocks[0].feedforward.norm.weight.add_(1)
    stages.thaw(model, 2)
    assert not torch.equal(*(e.embedding.words.weight for e in (model.encoder, model.generator.encoder)))
    stages.thaw(model, 3)
    theirs = model.generator.encoder.state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in model.encoder.state_dict().items())
    ReplacedTokens().loss(model, *inputs).backward()
    assert not gradients(model.generator)
    assert gradients(model.encoder)
    with torch.no_grad():
        model.encoder.embedding.words.weight.add_(1)
    stages.thaw(model, 4)
    assert not torch.equal(model.encoder.embedding.words.weight, model.generator.encoder.embedding.words.weight)


def test_a_run_that_goes_on_in_the_second_stage_does_not_copy_again():
    model = electra("none", 1.0)
    before = model.encoder.embedding.words.weight.clone()
    TwoStages(switch=3).thaw(model, 3)
    assert torch.equal(model.encoder.embedding.words.weight, before)
    assert not model.generator.encoder.embedding.words.weight.requires_grad
