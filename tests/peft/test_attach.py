"""Attach, activate, detach, freeze, merge, unmerge, combine, fold: what they promise, for every method."""

import copy

import examples
import pytest
import torch
from examples import FIVE, MERGEABLE, METHODS, add, batch, small
from hypothesis import given, settings
from hypothesis import strategies as st

import peftlab
from peftlab.errors import UserError
from peftlab.peft.attach import Drift


def same(first: dict, second: dict) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@settings(max_examples=25, deadline=None)
@given(names=st.lists(st.sampled_from(sorted(METHODS)), min_size=1, max_size=5, unique=True), data=st.data())
def test_attach_then_detach_is_the_identity(names, data):
    model, b = small(), batch(5, 3)
    state, keys = copy.deepcopy(model.state_dict()), list(model.state_dict())
    before = model(b)
    for name in names:
        add(model, name, METHODS[name], labels=2)
        assert list(model.base_state()) == keys
    assert not torch.equal(model(b).hidden, before.hidden) or names == ["head"]
    for name in data.draw(st.permutations(names)):
        peftlab.detach(model, name)
    assert same(model.state_dict(), state)
    assert torch.equal(model(b).hidden, before.hidden)
    assert model(b).logits is None
    assert (model.active, model.adapters) == ((), {})


@pytest.mark.parametrize("name", [*MERGEABLE, "head", "houlsby", "pfeiffer", "parallel"])
def test_training_starts_from_the_base_where_the_method_says_so(name):
    model, b = small(), batch(5, 3)
    before = model(b).hidden
    peftlab.attach(model, "mine", METHODS[name])
    if name in (*MERGEABLE, "head"):
        torch.testing.assert_close(model(b).hidden, before, rtol=0, atol=1e-6)
    else:
        torch.testing.assert_close(model(b).hidden, before, rtol=0, atol=1e-3)
        assert not torch.equal(model(b).hidden, before)


@pytest.mark.parametrize("name", [*METHODS, "full"])
def test_gradients_reach_exactly_what_the_method_declares(name):
    model, b = small(), batch(5, 3)
    method = METHODS.get(name, peftlab.Full())
    add(model, "mine", method, labels=3)
    add(model, "idle", peftlab.LoRA(rank=1))
    peftlab.activate(model, ["mine"])
    peftlab.freeze(model)
    base = copy.deepcopy(model.base_state())
    declared = {id(p) for addition in model.additions("mine").values() for p in addition.parameters()}
    if name == "full":
        declared |= {id(p) for p in model.parameters()}
        declared -= {id(p) for addition in model.additions("idle").values() for p in addition.parameters()}
    trainable = [p for p in model.parameters() if p.requires_grad]
    assert {id(p) for p in trainable} == declared
    optimizer = torch.optim.AdamW(trainable, lr=0.1)
    model.train()
    for _ in range(2):
        optimizer.zero_grad()
        out = model(b)
        (torch.nn.functional.cross_entropy(out.logits, torch.tensor([0, 2])) + out.hidden.square().mean()).backward()
        for parameter in model.parameters():
            assert (parameter.grad is not None) == (id(parameter) in declared)
        assert all(parameter.grad.abs().sum() > 0 for parameter in trainable), name
        optimizer.step()
    assert same(model.base_state(), base) == (name != "full")


def test_freezing_is_not_a_side_effect_of_attaching():
    model = small()
    peftlab.attach(model, "mine", peftlab.LoRA())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_any_subset_acts_and_none_is_the_base():
    model, b = small(), batch(4)
    before = model(b).hidden
    alone = {}
    for name in FIVE:
        add(model, name, METHODS[name])
        peftlab.activate(model, [name])
        alone[name] = model(b).hidden
    peftlab.activate(model, [])
    assert torch.equal(model(b).hidden, before)
    for name in FIVE:
        peftlab.activate(model, [name])
        assert torch.equal(model(b).hidden, alone[name])
    peftlab.activate(model, FIVE)
    together = model(b)
    assert together.hidden.shape == before.shape
    assert all(not torch.allclose(together.hidden, hidden, atol=1e-3) for hidden in [before, *alone.values()])


@settings(max_examples=15, deadline=None)
@given(names=st.permutations(["lora", "lora-all-rs", "bitfit", "prefix"]))
def test_the_order_of_attaching_does_not_matter_where_additions_are_summed_or_concatenated(names):
    outs = []
    for order in (sorted(names), names):
        model = small()
        for name in order:
            torch.manual_seed(len(name))  # the same weights whenever it comes
            add(model, name, METHODS[name])
        torch.manual_seed(3)
        outs.append(model(batch(4, 2)).hidden)
    torch.testing.assert_close(outs[0], outs[1], rtol=0, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(names=st.lists(st.sampled_from(MERGEABLE), min_size=1, max_size=3, unique=True), data=st.data())
def test_merge_gives_the_same_output_and_unmerge_is_bit_equal(names, data):
    model, b = small(), batch(5, 3)
    for name in names:
        add(model, name, METHODS[name], labels=2)
    model.double()  # so that what differs is not rounding
    state = copy.deepcopy(model.base_state())
    # a DoRA stretches what it finds, so that beside another change only the order of merging says what is meant
    single = len(names) == 1 or "dora" not in names
    before = model(b)
    for name in names:
        drift = peftlab.merge(model, name)
        assert isinstance(drift, Drift)
        assert drift.relative == 0
    assert not same(model.base_state(), state)
    if single:
        torch.testing.assert_close(model(b).hidden, before.hidden, rtol=0, atol=1e-9)
        torch.testing.assert_close(model(b).logits, before.logits, rtol=0, atol=1e-9)
    for name in data.draw(st.permutations(names)):
        peftlab.unmerge(model, name)
    assert same(model.base_state(), state)
    assert torch.equal(model(b).logits, before.logits)


def test_the_drift_is_that_of_the_base_s_precision():
    model = small()
    add(model, "mine", METHODS["lora"])
    fine = peftlab.merge(model, "mine").relative
    coarse = small().to(torch.bfloat16)
    add(coarse, "mine", METHODS["lora"])
    drift = peftlab.merge(coarse, "mine")
    assert fine < 1e-7 < 1e-4 < drift.relative < 2**-8
    assert drift.where.startswith("encoder.")


def test_what_is_merged_is_guarded():
    model, b = small(), batch(3)
    for name, labels in (("a", 2), ("b", 3)):
        add(model, name, METHODS["lora"], labels=labels)
    peftlab.merge(model, "b")
    assert model(b).logits.shape == (1, 3)
    for call, message in (
        (lambda: peftlab.activate(model, ["a"]), "'b' is merged into the base and so it acts"),
        (lambda: peftlab.freeze(model), "b is merged into the base: unmerge before you train"),
        (lambda: peftlab.attach(model, "full", peftlab.Full()), "unmerge before you train the base"),
        (lambda: peftlab.merge(model, "b"), "'b' is merged already"),
    ):
        with pytest.raises(UserError, match=message):
            call()
    peftlab.unmerge(model, "b")
    peftlab.activate(model, ["a"])
    with pytest.raises(UserError, match="'b' is not active, and merged it would act"):
        peftlab.merge(model, "b")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_and_trains_on_a_base_in_bf16(name):
    model, b = small().to(torch.bfloat16), batch(5, 3)
    add(model, "mine", METHODS[name], labels=2)
    peftlab.freeze(model)
    out = model(b)
    assert out.logits.dtype == torch.bfloat16
    out.logits.float().sum().backward()
    assert model(b, adapters=["mine", None]).hidden.isfinite().all()


def test_a_native_prompt_may_be_longer_than_the_positions():
    model, b = small(), batch(5, 3)
    add(model, "mine", peftlab.Prompt(tokens=30))
    assert model(b).hidden.shape == (2, 5, 16)


def test_native_and_stock_prompts_together_keep_their_own_positions():
    model, b = small(), batch(5)
    add(model, "native", peftlab.Prompt(tokens=3))
    add(model, "stock", peftlab.Prompt(tokens=2, layout="peft"))
    seen = []
    handle = model.embedding.positions.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    model(b)
    handle.remove()
    assert seen[0].tolist() == [[2, 3, 4, 5, 6]]
    placed = model.embedding.tokens(1).placed
    assert placed.tolist() == [[False] * 3 + [True] * 2]
    assert seen[1][placed].tolist() == [0, 1]


def test_detaching_what_is_merged_restores_the_base():
    model = small()
    state = copy.deepcopy(model.state_dict())
    add(model, "mine", METHODS["lora-all-rs"])
    peftlab.merge(model, "mine")
    peftlab.detach(model, "mine")
    assert same(model.state_dict(), state)


@pytest.mark.parametrize("name", ["houlsby", "prompt", "p-tuning-mlp", "prefix"])
def test_what_is_no_change_of_a_weight_is_not_merged(name):
    model = small()
    add(model, "mine", METHODS[name])
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(UserError, match="can't be merged into the base: what it has at encoder"):
        peftlab.merge(model, "mine")
    assert same(model.state_dict(), state)


def test_a_weighted_sum_of_loras_is_the_sum_of_their_changes():
    model, b = small(), batch(5, 3)
    add(model, "a", peftlab.LoRA(rank=3, alpha=6))
    add(model, "b", peftlab.LoRA(rank=2, alpha=1, targets=("q", "k", "down"), rs=True))
    changes = {n: {k: a.change(torch.float32) for k, a in model.additions(n).items()} for n in ("a", "b")}
    peftlab.combine(model, "both", {"a": 0.7, "b": -0.3})
    both = {k: a.change(torch.float32) for k, a in model.additions("both").items()}
    assert both.keys() == changes["a"].keys() | changes["b"].keys()
    for key, change in both.items():
        expected = 0.7 * changes["a"].get(key, torch.zeros(1)) - 0.3 * changes["b"].get(key, torch.zeros(1))
        torch.testing.assert_close(change, expected)
    peftlab.activate(model, ["both"])
    before = model(b).hidden
    peftlab.merge(model, "both")
    torch.testing.assert_close(model(b).hidden, before, rtol=0, atol=1e-5)


def test_sums_over_different_places_and_of_full_rank():
    model = small()
    add(model, "a", peftlab.LoRA(rank=12, targets="q", layers=(0,)))
    add(model, "b", peftlab.LoRA(rank=12, targets=("q", "v"), layers=(0,)))
    add(model, "c", peftlab.LoRA(rank=2, targets="v", layers=(1,)))
    changes = {n: {k: x.change(torch.float64) for k, x in model.additions(n).items()} for n in ("a", "b", "c")}
    peftlab.combine(model, "sum", {"a": 2.0, "b": -1.0, "c": 0.5})
    got = {key: addition.change(torch.float64) for key, addition in model.additions("sum").items()}
    assert set(got) == {"encoder.0.self.q", "encoder.0.self.v", "encoder.1.self.v"}
    expected = 2 * changes["a"]["encoder.0.self.q"] - changes["b"]["encoder.0.self.q"]
    torch.testing.assert_close(got["encoder.0.self.q"], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got["encoder.1.self.v"], 0.5 * changes["c"]["encoder.1.self.v"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["p-tuning-lstm", "p-tuning-mlp", "prefix-mlp", "prefix-shared"])
def test_folding_lets_the_network_go_and_changes_nothing(name):
    model, b = small(), batch(5, 3)
    add(model, "mine", METHODS[name], labels=2)
    before, count = model(b), sum(p.numel() for a in model.additions("mine").values() for p in a.parameters())
    peftlab.fold(model, "mine")
    torch.testing.assert_close(model(b).logits, before.logits, rtol=0, atol=1e-6)
    assert sum(p.numel() for a in model.additions("mine").values() for p in a.parameters()) < count


def test_slow_start_thaws_from_the_top():
    model = small()
    method = peftlab.SlowStart(every=10)
    add(model, "idle", METHODS["lora"])
    peftlab.attach(model, "mine", method, head=peftlab.Classifier(labels=2))
    peftlab.activate(model, ["mine"])
    peftlab.freeze(model)
    idle = [parameter for addition in model.additions("idle").values() for parameter in addition.parameters()]

    def training(step: int) -> list[bool]:
        method.thaw(model, step)
        assert not any(parameter.requires_grad for parameter in idle)
        parts = (model.embedding, model.blocks[0], model.blocks[1], model.pooler, model.head)
        others = {id(parameter) for parameter in idle}
        return [all(p.requires_grad for p in part.parameters() if id(p) not in others) for part in parts]

    for step, expected in ((0, "00011"), (9, "00011"), (10, "00111"), (25, "01111"), (30, "11111")):
        assert training(step) == [flag == "1" for flag in expected]


def test_prompts_start_as_asked():
    model = small()
    words = model.embedding.words.weight
    peftlab.attach(model, "vocabulary", peftlab.Prompt(tokens=6, init="vocabulary"))
    start = model.embedding.tokens["vocabulary"].weight
    assert all(any(torch.equal(vector, word) for word in words) for vector in start)
    model.embedding.tokenise = lambda text: [3, 4]
    peftlab.attach(model, "text", peftlab.Prompt(tokens=5, init="text", text="good film"))
    assert torch.equal(model.embedding.tokens["text"].weight, words[[3, 4, 3, 4, 3]])


def test_a_text_prompt_starts_as_the_words_of_the_text(minilm):
    base = peftlab.load(minilm)
    peftlab.attach(base.model, "mine", peftlab.Prompt(tokens=4, init="text", text="good film"))
    ids = base.tokenizer.encode(["good film"]).ids[0, 1:-1].tolist()
    assert torch.equal(base.model.embedding.tokens["mine"].weight, base.model.embedding.words.weight[ids * 2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: peftlab.attach(m, "../x", peftlab.LoRA()), r"'../x' is no name for an adapter: .* such as 'x'"),
        (lambda m: peftlab.attach(m, "a.b", peftlab.LoRA()), r"'a.b' is no name .* such as 'a-b'"),
        (lambda m: peftlab.attach(m, "", peftlab.LoRA()), r"'' is no name"),
        (lambda m: peftlab.attach(m, "x" * 300, peftlab.LoRA()), r"is no name"),
        (lambda m: peftlab.attach(m, "there", peftlab.LoRA()), r"'there' is attached already"),
        (lambda m: peftlab.attach(m, "m", peftlab.LoRA(rank=0)), r"rank is 0: it must be a whole number from 1 to"),
        (lambda m: peftlab.attach(m, "m", peftlab.LoRA(rank=-1)), r"rank is -1"),
        (
            lambda m: peftlab.attach(m, "m", peftlab.LoRA(rank=17)),
            r"rank 17 is larger than the matrix at encoder.0.self.q .*at most 16",
        ),
        (
            lambda m: peftlab.attach(m, "m", peftlab.LoRA(rank_pattern={"v": 10**9})),
            r"rank_pattern.v is 1000000000: it must be",
        ),
        (lambda m: peftlab.attach(m, "m", peftlab.LoRA(rank_pattern={"w": 2})), r"unknown target in a pattern 'w'"),
        (
            lambda m: peftlab.attach(m, "m", peftlab.LoRA(targets=("query",))),
            r"unknown target 'query'.*there are all, q, k",
        ),
        (lambda m: peftlab.attach(m, "m", peftlab.LoRA(targets=("dwon",))), r"did you mean 'down'"),
        (lambda m: peftlab.attach(m, "m", peftlab.LoRA(targets=())), r"targets is \(\): name at least one"),
        (
            lambda m: peftlab.attach(m, "m", peftlab.LoRA(layers=(7,))),
            r"layer 7 is not there: the model has layers 0 to 1",
        ),
        (lambda m: peftlab.attach(m, "m", peftlab.Adapter(placement="houlsy")), r"did you mean 'houlsby'"),
        (lambda m: peftlab.attach(m, "m", peftlab.Adapter(width=0)), r"width is 0"),
        (lambda m: peftlab.attach(m, "m", peftlab.LoRA(alpha=None)), r"alpha is None: it must be a number"),
        (lambda m: peftlab.attach(m, "m", peftlab.LoRA(alpha=float("nan"))), r"alpha is nan"),
        (lambda m: peftlab.attach(m, "m", peftlab.LoRA(dropout=-0.5)), r"dropout is -0.5"),
        (lambda m: peftlab.attach(m, "m", peftlab.LoRA(targets=(5,))), r"targets is \(5,\)"),
        (lambda m: peftlab.attach(m, "m", peftlab.LoRA(layers=())), r"layers is \(\)"),
        (
            lambda m: peftlab.attach(m, "m", peftlab.LoRA(at=("encoder.0.self.w",))),
            r"did you mean 'encoder.0.self.q'|unknown address",
        ),
        (lambda m: peftlab.attach(m, "m", peftlab.Prompt(tokens=10**9)), r"tokens is 1000000000"),
        (lambda m: peftlab.attach(m, "m", peftlab.PTuning(encoder_layers=10**6)), r"encoder_layers is 1000000"),
        (lambda m: peftlab.attach(m, "m", peftlab.LoRA(), head=peftlab.Classifier("yes")), r"labels is 'yes'"),
        (lambda m: peftlab.attach(m, "m", peftlab.LoRA(), head=peftlab.Classifier(2.5)), r"labels is 2.5"),
        (lambda m: peftlab.attach(m, "m", peftlab.Prompt(tokens=0)), r"tokens is 0"),
        (lambda m: peftlab.attach(m, "m", peftlab.Prompt(init="text")), r"go together"),
        (lambda m: peftlab.attach(m, "m", peftlab.Prompt(init="text", text="x")), r"built without a tokenizer"),
        (lambda m: peftlab.attach(m, "m", peftlab.Prompt(layout="stock")), r"unknown layout 'stock'"),
        (lambda m: peftlab.attach(m, "m", peftlab.PTuning(encoder="gru")), r"unknown encoder 'gru'"),
        (lambda m: peftlab.attach(m, "m", peftlab.Prefix(length=-3)), r"length is -3"),
        (lambda m: peftlab.attach(m, "m", peftlab.Prefix(attention=("cross",))), r"no cross attention for a prefix"),
        (lambda m: peftlab.attach(m, "m", peftlab.Prefix(shared=True)), r"without an MLP"),
        (lambda m: peftlab.attach(m, "m", peftlab.LoRA, None), r"is not a method: give one such as"),
        (lambda m: peftlab.attach(m, "m", peftlab.LoRA(), head=peftlab.Classifier(labels=0)), r"labels is 0"),
        (
            lambda m: peftlab.attach(m, "m", peftlab.LoRA(), head=peftlab.Classifier(labels=2, pool="men")),
            r"did you mean 'mean'",
        ),
        (lambda m: peftlab.detach(m, "ther"), r"unknown adapter 'ther': did you mean 'there'"),
        (lambda m: peftlab.activate(m, ["nobody"]), r"unknown adapter 'nobody'"),
        (lambda m: peftlab.unmerge(m, "there"), r"'there' is not merged"),
        (lambda m: peftlab.combine(m, "m", {}), r"weights is empty"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_attached(call, message):
    model = small()
    add(model, "there", METHODS["lora"])
    state, names = copy.deepcopy(model.state_dict()), dict(model.adapters)
    with pytest.raises(UserError, match=message) as caught:
        call(model)
    assert "\n" not in str(caught.value)
    assert same(model.state_dict(), state)
    assert (model.adapters, model.active) == (names, ("there",))


def test_a_sum_of_different_methods_is_refused():
    model = small()
    for name in ("lora", "prompt", "dora"):
        add(model, name, examples.METHODS[name])
    with pytest.raises(UserError, match="a sum needs adapters of one method: lora is lora, prompt is prompt"):
        peftlab.combine(model, "both", {"lora": 1, "prompt": 1})
    with pytest.raises(UserError, match="adapters of prompt have no weighted sum"):
        peftlab.combine(model, "both", {"prompt": 1})
    with pytest.raises(UserError, match="a sum of DoRAs is not a DoRA"):
        peftlab.combine(model, "both", {"dora": 1})
