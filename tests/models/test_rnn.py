"""Recurrent sequence to sequence: whole targets against one token after the other, padding, search, and learning."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from peftlab.data.batch import Batch, Pair
from peftlab.errors import UserError
from peftlab.layers.recurrent import ATTENTIONS, CELLS
from peftlab.models.rnn import RecurrentConfig, RecurrentSeq2Seq
from peftlab.peft.attach import attach, detach
from peftlab.peft.lora import LoRA

V, D, START = 20, 16, 1
KINDS = [(cell, attention) for cell in CELLS for attention in ATTENTIONS]
every_kind = pytest.mark.parametrize(("cell", "attention"), KINDS)


def build(cell: str = "gru", attention: str = "additive", **choices) -> RecurrentSeq2Seq:
    model = RecurrentSeq2Seq(RecurrentConfig(**{"vocab": V, "dim": D, "cell": cell, "attention": attention} | choices))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter.normal_(std=0.3)  # a bias of zero would hide that it is left out
    return model.eval()


def batch(*lengths: int, side: str = "right") -> Batch:
    """Random tokens, also where the padding is."""
    T = max(lengths)
    mask = torch.tensor([[t < n if side == "right" else t >= T - n for t in range(T)] for n in lengths])
    return Batch(torch.randint(3, V, (len(lengths), T)), mask)


def targets(*lengths: int) -> Batch:
    random = batch(*lengths)
    random.ids[:, 0] = START
    return random


def row(batch: Batch, i: int) -> Batch:
    """A row alone, without its padding."""
    ids = batch.ids[i, batch.mask[i]][None]
    return Batch(ids, torch.ones_like(ids))


@every_kind
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("choices", [{}, {"layers": 2, "tied": False, "embedding_dim": 10}], ids=["one", "two"])
@torch.no_grad()
def test_whole_targets_equal_one_token_after_the_other_and_each_row_alone(cell, attention, side, choices):
    model = build(cell, attention, **choices)
    pair = Pair(batch(6, 3, 1, side=side), targets(2, 5, 4))
    out = model(pair)
    assert out.scores.shape == (3, 5, V)
    torch.testing.assert_close(out.scores, model.read(out.hidden))
    memory, scores = model.begin(pair.source)
    steps = [scores, *(model.next(tokens, memory) for tokens in pair.target.ids.T[1:])]
    torch.testing.assert_close(torch.stack(steps, 1), out.scores, rtol=0, atol=1e-5)
    for i in range(3):
        alone = model(Pair(row(pair.source, i), row(pair.target, i))).scores[0]
        torch.testing.assert_close(out.scores[i, pair.target.mask[i]], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("attention", ATTENTIONS)
@settings(max_examples=25, deadline=None)
@given(cell=st.sampled_from(list(CELLS)), length=st.integers(2, 7), data=st.data())
@torch.no_grad()
def test_a_later_token_never_changes_an_earlier_score(attention, cell, length, data):
    model, source, target = build(cell, attention), batch(4, 2), targets(length, length)
    t = data.draw(st.integers(1, length - 1))
    before = model(Pair(source, target)).scores
    ids = target.ids.clone()
    ids[:, t] = (ids[:, t] + data.draw(st.integers(1, V - 1))) % V
    after = model(Pair(source, Batch(ids, target.mask))).scores
    assert torch.equal(before[:, :t], after[:, :t])
    assert not torch.equal(before[:, t], after[:, t])


@every_kind
@torch.no_grad()
def test_hypotheses_that_part_change_places_and_lose_sources_equal_rows_that_never_met(cell, attention):
    model, source, g = build(cell, attention, layers=2), batch(5, 2, 4, side="left"), 3
    memory, scores = model.begin(source)
    written = [[START] for _ in range(3)]
    alive = torch.arange(3)

    def same() -> None:
        for r, tokens in enumerate(written):
            i = int(alive[r // (len(written) // len(alive))])
            target = Batch(torch.tensor([tokens]), torch.ones(1, len(tokens)))
            expected = model(Pair(row(source, i), target)).scores[0, -1]
            torch.testing.assert_close(scores[r], expected, rtol=0, atol=1e-5)

    def write() -> torch.Tensor:
        new = torch.randint(3, V, (len(written),))
        for tokens, token in zip(written, new.tolist(), strict=True):
            tokens.append(token)
        return model.next(new, memory)

    same()
    memory.widen(g)
    written = [list(tokens) for tokens in written for _ in range(g)]
    scores = write()
    same()
    order = torch.tensor([2, 2, 0, 3, 5, 4, 7, 7, 7])
    memory.reorder(order)
    written = [list(written[r]) for r in order.tolist()]
    scores = write()
    same()
    memory.keep(torch.tensor([0, 2]))
    alive, written = alive[[0, 2]], written[:3] + written[6:]
    scores = write()
    same()
    memory.keep(torch.tensor([1]))
    alive, written = alive[[1]], written[3:]
    scores = write()
    same()
    assert all(part is None or len(part) == 1 for part in memory.source)  # once a source, not once a hypothesis


@pytest.mark.parametrize("attention", ["additive", "multiplicative"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_attention_sums_to_one_over_real_tokens_and_is_zero_at_padding(attention, side):
    model, pair = build("lstm", attention), Pair(batch(6, 3, side=side), targets(4, 2))
    out = model(pair, attention=True)
    (weights,) = out.cross
    assert weights.shape == (2, 1, 4, 6)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 1, 4))
    assert (weights[1][..., ~pair.source.mask[1]] == 0).all()
    assert (weights[1][..., pair.source.mask[1]] > 0).all()
    assert torch.equal(out.scores, model(pair).scores)
    assert model(pair).cross is None


def test_a_model_of_one_vector_has_no_attention_to_show():
    with pytest.raises(UserError, match="its decoder is told the source in one vector only"):
        build(attention="none")(Pair(batch(3), targets(2)), attention=True)


@every_kind
@torch.no_grad()
def test_scheduled_sampling_goes_from_the_target_to_what_the_model_writes(cell, attention):
    model, pair = build(cell, attention, dropout=0.0).train(), Pair(batch(5, 3), targets(6, 6))
    forced = model(pair)
    model.sampling = 1e-12
    torch.testing.assert_close(model(pair).scores, forced.scores, rtol=0, atol=1e-5)
    memory, scores = model.begin(pair.source)
    steps = [scores]
    while len(steps) < 6:
        steps.append(model.next(steps[-1].argmax(1), memory))
    model.sampling = 1.0
    own = model(pair, attention=attention != "none")
    torch.testing.assert_close(own.scores, torch.stack(steps, 1), rtol=0, atol=1e-5)
    assert (own.scores - forced.scores).abs().max() > 1e-3
    assert own.cross is None or own.cross[0].shape == (2, 1, 6, 5)
    assert torch.equal(model.eval()(pair).scores, forced.scores)


@torch.no_grad()
def test_scheduled_sampling_replaces_the_share_of_tokens_that_it_is_asked_for():
    model, pair = build(dropout=0.0, sampling=0.3).train(), Pair(batch(*[3] * 400), targets(*[11] * 400))
    fed: list[torch.Tensor] = []
    model.words.register_forward_hook(lambda module, given, out: fed.append(given[0]))
    own = model(pair).scores.argmax(-1)[:, :-1]
    given, target = torch.cat(fed[1:], 1), pair.target.ids
    assert torch.equal(given[:, 0], target[:, 0])
    assert ((given[:, 1:] == own) | (given[:, 1:] == target[:, 1:])).all()
    replaced = (given != target)[:, 1:].sum() / (own != target[:, 1:]).sum()
    assert float(replaced) == pytest.approx(0.3, abs=0.03)


@every_kind
@pytest.mark.parametrize("tied", [True, False])
def test_every_choice_trains_every_parameter_and_keeps_each_once(cell, attention, tied):
    model = build(cell, attention, tied=tied, layers=2).train()
    model(Pair(batch(4, 2), targets(3, 5))).scores.square().mean().backward()
    assert [name for name, parameter in model.named_parameters() if not parameter.grad.abs().max() > 0] == []
    places = [tensor.data_ptr() for tensor in model.base_state().values()]
    assert len(places) == len(set(places))


def test_the_same_seed_gives_the_same_weights():
    states = []
    for _ in range(2):
        torch.manual_seed(1)
        states.append(RecurrentSeq2Seq(RecurrentConfig(V, D, cell="lstm")).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_an_lstm_starts_by_keeping_what_it_has():
    bias = RecurrentSeq2Seq(RecurrentConfig(V, D, cell="lstm")).decoder.bias_ih_l0
    assert bias.view(4, D).mean(1).tolist() == [0, 1, 0, 0]


def copies(count: int, random: torch.Generator) -> tuple[Pair, torch.Tensor]:
    """Texts of 2 to 6 tokens that end in 2, the same to be written, and what is to be written at each place."""
    n, t = torch.randint(2, 7, (count, 1), generator=random), torch.arange(7)
    ids = torch.randint(3, 12, (count, 7), generator=random).where(t < n, 0).where(t != n, 2)
    mask = t <= n
    shifted = torch.cat([torch.full((count, 1), START), ids[:, :-1]], 1)
    return Pair(Batch(ids, mask), Batch(shifted, mask)), ids.where(mask, -100)


@pytest.mark.parametrize("attention", ["additive", "multiplicative"])
def test_it_learns_to_copy(attention):
    model = RecurrentSeq2Seq(RecurrentConfig(vocab=12, dim=32, attention=attention, dropout=0.0))
    optimizer, random = torch.optim.Adam(model.parameters(), lr=0.005), torch.Generator().manual_seed(0)
    for _ in range(200):
        pair, labels = copies(32, random)
        loss = F.cross_entropy(model(pair).scores.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        pair, labels = copies(100, random)
        assert F.cross_entropy(model(pair).scores.flatten(0, 1), labels.flatten()) < 0.25
        memory, scores = model.begin(pair.source)
        written = [scores.argmax(1)]
        while len(written) < 7:
            written.append(model.next(written[-1], memory).argmax(1))
        right = ((torch.stack(written, 1) == labels) | (labels == -100)).all(1)
    assert right.float().mean() > 0.8


ADDITIVE = ["bridge", "cross.score.q", "cross.score.k", "cross.score.v", "cross.o", "vocabulary"]


def test_sites_have_addresses_and_none_is_on_a_matrix_that_the_embedding_shares():
    assert list(build(tied=False).sites()) == [f"decoder.{part}" for part in ADDITIVE]
    assert list(build().sites()) == [f"decoder.{part}" for part in ADDITIVE[:-1]]
    assert list(build(attention="none").sites()) == ["decoder.bridge"]
    assert "Site" not in repr(build(tied=False))


@torch.no_grad()
def test_a_lora_of_each_row_acts_on_it_alone_and_stays_with_it_in_a_search():
    model = build(tied=False)
    pair, at = Pair(batch(4, 2, 3), targets(3, 3, 3)), tuple(f"decoder.{part}" for part in ADDITIVE)
    before = model(pair).scores
    for name in ("first", "second"):
        attach(model, name, LoRA(rank=1, at=at))
        for addition in model.additions(name).values():
            addition.B.normal_()
    names = ["second", None, "first"]
    mixed = model(pair, adapters=names).scores
    for i, name in enumerate(names):
        alone = Pair(row(pair.source, i), row(pair.target, i))
        torch.testing.assert_close(mixed[i], model(alone, adapters=[name]).scores[0], rtol=0, atol=1e-5)
        assert torch.allclose(mixed[i], before[i], atol=1e-5) == (name is None)
    memory, scores = model.begin(pair.source, adapters=names)
    torch.testing.assert_close(scores, mixed[:, 0], rtol=0, atol=1e-5)
    memory.widen(2)
    scores = model.next(pair.target.ids[:, 1].repeat_interleave(2), memory)
    torch.testing.assert_close(scores, mixed[:, 1].repeat_interleave(2, 0), rtol=0, atol=1e-5)
    memory.keep(torch.tensor([0, 2]))
    scores = model.next(pair.target.ids[[0, 2], 2].repeat_interleave(2), memory)
    torch.testing.assert_close(scores, mixed[[0, 2], 2].repeat_interleave(2, 0), rtol=0, atol=1e-5)
    detach(model, "first")
    detach(model, "second")
    assert torch.equal(model(pair).scores, before)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"cell": "gur"}, "unknown cell 'gur': did you mean 'gru'"),
        ({"attention": "aditive"}, "unknown attention 'aditive': did you mean 'additive'"),
        ({"layers": 0}, "layers is 0: it must be a whole number of at least 1"),
        ({"dim": 15}, "dim is 15: it must be even"),
        ({"embedding_dim": 10}, "embedding_dim is 10 and dim is 16: a tied output needs them equal, or tied=False"),
        ({"dropout": 1.0}, "dropout is 1.0: it must be a number from 0 to below 1"),
        ({"end": V}, "end is 20: it must be a token of the vocabulary, 0 to 19"),
    ],
)
def test_a_choice_that_cannot_be_is_told(choice, message):
    with pytest.raises(UserError, match=message):
        build(**choice)


def test_batches_that_the_model_has_no_place_for_are_told():
    model, source, target = build(), batch(3, 2), targets(2, 2)
    outside = Batch(target.ids + V, target.mask)
    empty = Batch(source.ids, torch.tensor([[True] * 3, [False] * 3]))
    late = Batch(target.ids, torch.tensor([[True, True], [False, True]]))
    for pair, message in (
        (Pair(source, outside), "is outside the vocabulary: ids go from 0 to 19"),
        (Pair(outside, target), "is outside the vocabulary: ids go from 0 to 19"),
        (Pair(empty, target), "row 1 of the source has no token"),
        (Pair(source, late), "a target begins with padding: its first token must be the start mark"),
    ):
        with pytest.raises(UserError, match=message):
            model(pair)
    with pytest.raises(UserError, match="row 1 of the source has no token"):
        model.begin(empty)
    with pytest.raises(UserError, match=r"sampling is 1.5: it must be a probability"):
        build(sampling=1.5)
    with pytest.raises(UserError, match="1 adapters are named for a batch of 2 rows"):
        model(Pair(source, target), adapters=[None])
