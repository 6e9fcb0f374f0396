"""A batch whose rows name their own adapter: equal to each row alone, in one pass, and compiled once."""

import random

import pytest
import torch
from examples import FIVE, METHODS, add, batch, row, shake, small

import peftlab
from peftlab import native
from peftlab.data.batch import Batch
from peftlab.errors import UserError

TOLERANCE = 1e-10  # in double precision, where what differs is not rounding


def check_rows(model, b: Batch, names: list[str | None]) -> None:
    """Each row of the mixed batch equals that row alone with its adapter active and no padding."""
    model.double()
    mixed = model(b, adapters=names)
    logits = mixed.logits
    for i, name in enumerate(names):
        peftlab.activate(model, [] if name is None else [name])
        alone = model(row(b, i))
        torch.testing.assert_close(mixed.hidden[i, b.mask[i]], alone.hidden[0], rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(mixed.pooled[i], alone.pooled[0], rtol=0, atol=TOLERANCE)
        mine = None if logits is None else logits[i]
        assert (mine is None) == (alone.logits is None)
        if mine is not None:
            torch.testing.assert_close(mine, alone.logits[0], rtol=0, atol=TOLERANCE)


@pytest.fixture(scope="module")
def loaded():
    """A model with every method attached; heads with two or three labels, none for one of them."""
    torch.manual_seed(1)
    model = small()
    for i, (name, method) in enumerate(METHODS.items()):
        add(model, name, method, labels=None if name == "lora" else 2 + i % 2)
    return model


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pairs", [False, True])
def test_all_methods_in_one_batch_equal_each_row_alone(loaded, side, pairs):
    names = [*METHODS, None, "lora", "houlsby"]
    lengths = [3 + i % 5 for i in range(len(names))]
    check_rows(loaded, batch(*lengths, side=side, pairs=pairs), names)


@pytest.mark.parametrize("name", [*METHODS, None])
def test_each_method_beside_none(loaded, name):
    check_rows(loaded, batch(5, 2, 4), [name, None, name])


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("lengths", [(1,), (4,), (1, 1), (1, 6)])
def test_a_batch_of_one_and_a_sequence_of_one_token(loaded, name, lengths):
    check_rows(loaded, batch(*lengths), [name] * len(lengths))


def test_adapters_of_one_method_and_different_sizes():
    model = small()
    for rank in (1, 2, 5):
        add(model, f"r{rank}", peftlab.LoRA(rank=rank, alpha=rank + 1), labels=rank + 1)
    for tokens in (1, 4):
        add(model, f"p{tokens}", peftlab.Prompt(tokens=tokens), labels=2)
        add(model, f"s{tokens}", peftlab.Prompt(tokens=tokens, layout="peft"), labels=2)
        add(model, f"k{tokens}", peftlab.Prefix(length=tokens), labels=2)
        add(model, f"a{tokens}", peftlab.Adapter(width=tokens), labels=2)
    names = [*model.adapters, None]
    check_rows(model, batch(*(2 + i % 4 for i in range(len(names)))), names)


@pytest.mark.parametrize("family", ["tanh", "gelu", "relu"])
def test_heads_with_a_dense_layer_and_means(family):
    model = small(head=family)
    peftlab.attach(model, "a", METHODS["lora"], head=peftlab.Classifier(labels=2))
    peftlab.attach(model, "b", METHODS["prompt"], head=peftlab.Classifier(labels=("x", "y", "z"), pool="mean"))
    check_rows(model, batch(4, 2, 3), ["a", "b", None])


def test_logits_are_a_tensor_where_labels_are_equal_and_a_list_where_not(loaded):
    b = batch(3, 3, 3)
    assert loaded(b, adapters=["prompt", "prompt", "prompt"]).logits.shape[0] == 3
    mixed = loaded(b, adapters=["prompt", "lora", "prompt-peft"]).logits
    assert [None if scores is None else scores.shape for scores in mixed] == [(2,), None, (3,)]
    assert loaded(b, adapters=[None, None, None]).logits is None


def test_one_pass_through_the_base_whatever_the_number_of_adapters():
    model = small()
    for i in range(8):
        add(model, f"l{i}", peftlab.LoRA(rank=2))
    calls = []
    handle = model.blocks[0].self_attention.sublayer.q.register_forward_hook(lambda *_: calls.append(1))
    model(batch(*[4] * 8), adapters=[f"l{i}" for i in range(8)])
    handle.remove()
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["lora"], "1 adapters are named for a batch of 2 rows"),
        (["lora", "lroa"], "unknown adapter 'lroa': did you mean 'lora'"),
        (["lora", "full"], "adapter 'full' trains the base itself"),
    ],
)
def test_names_that_do_not_fit_are_told(names, message):
    model = small()
    add(model, "lora", METHODS["lora"])
    add(model, "full", peftlab.Full())
    with pytest.raises(UserError, match=message):
        model(batch(3, 3), adapters=names)


def test_rows_may_not_choose_while_something_is_merged():
    model = small()
    add(model, "lora", METHODS["lora"])
    peftlab.merge(model, "lora")
    with pytest.raises(UserError, match="lora is merged into the base: unmerge it"):
        model(batch(3, 3), adapters=["lora", None])


@pytest.mark.parametrize("kernels", [False, True])
def test_real_weights_in_single_precision(minilm, kernels):
    base = peftlab.load(minilm)
    methods = {"lora": peftlab.LoRA(), "adapter": peftlab.Adapter(), "prompt": peftlab.Prompt(), "none": peftlab.Head()}
    methods |= {"p": peftlab.PTuning(), "prefix": peftlab.Prefix(), "dora": peftlab.LoRA(dora=True)}
    for name, method in methods.items():
        peftlab.attach(base.model, name, method, head=peftlab.Classifier(labels=3))
        for key, addition in base.model.additions(name).items():
            if not key.endswith("tokens"):
                shake(addition.parameters(), 0.02)
    texts = ["a film", "what a long and winding film this was", "no", "yes, it is", "a b c", "fine.", "so-so", "hm"]
    b, names = base.encode(texts), [*methods, None]
    with torch.no_grad(), native.computing(kernels):
        mixed = base.model(b, adapters=names)
        for i, name in enumerate(names):
            peftlab.activate(base.model, [] if name is None else [name])
            alone = base.model(base.encode([texts[i]]))
            torch.testing.assert_close(mixed.hidden[i, b.mask[i]], alone.hidden[0], rtol=0, atol=1e-5)
            if name is not None:
                torch.testing.assert_close(mixed.logits[i], alone.logits[0], rtol=0, atol=1e-5)
    assert mixed.logits[-1] is None


@pytest.mark.skipif(native.LIBRARY is None, reason="the kernels were not built, or this is not AVX2")
@pytest.mark.parametrize("integers", [False, True])
def test_loras_of_many_ranks_are_added_inside_a_sublayer(minilm, integers, monkeypatch):
    monkeypatch.setattr(native, "TALL", True)
    base, asked = peftlab.load(minilm), []
    for rank in (1, 8, 30):
        peftlab.attach(base.model, f"r{rank}", peftlab.LoRA(rank=rank, targets=("q", "v", "o")))
        for addition in base.model.additions(f"r{rank}").values():
            shake(addition.parameters(), 0.05)
    base.model.requires_grad_(False)
    attended = native.attended
    monkeypatch.setattr(native, "attended", lambda x, maps, *rest: asked.append(maps) or attended(x, maps, *rest))
    b, names = base.encode(["film " * n for n in (60, 2, 19, 33, 44, 7)]), ["r8", None, "r30", "r1", "r8", "r30"]
    with torch.no_grad(), native.computing(again=True, integers=integers):
        mixed = base.model(b, adapters=names).hidden
        assert len(asked) == base.config.layers
        assert [part.changes is not None for part in asked[0]] == [True, False, True, True]
        for i, name in enumerate(names):
            peftlab.activate(base.model, [] if name is None else [name])
            alone = base.model(row(b, i)).hidden[0]
            torch.testing.assert_close(mixed[i, b.mask[i]], alone, rtol=0, atol=2e-3 if integers else 1e-5)
            if name is not None:
                peftlab.activate(base.model, [])
                assert (base.model(row(b, i)).hidden[0] - alone).abs().max() > 0.02


@pytest.mark.skipif(native.LIBRARY is None, reason="the kernels were not built, or this is not AVX2")
def test_a_route_that_is_held_follows_matrices_that_moved():
    model, b = small().requires_grad_(False), batch(5, 3)
    add(model, "lora", METHODS["lora"])
    with torch.no_grad(), native.computing():
        route = model.route(["lora", None])
        before = model(b, route=route).hidden
        held = [part.data for part in model.parameters()]  # so that nothing else lies where they lay
        for addition in model.additions("lora").values():
            for part in addition.parameters():
                part.data = part.data * 3
        after = model(b, route=route).hidden
        assert torch.equal(after, model(b, adapters=["lora", None]).hidden)
    assert (after[0] - before[0]).abs().max() > 1e-3
    assert held


# — compiled —


@pytest.fixture
def counted():
    """A compiler backend that runs graphs as they are, and the number of graphs it was given."""
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    yield backend, graphs
    torch._dynamo.reset()


@pytest.mark.parametrize("name", METHODS)
def test_each_method_is_one_whole_graph(name, counted):
    backend, graphs = counted
    model = small()
    add(model, "mine", METHODS[name], labels=2)
    b = batch(5, 3)
    expected = model(b)
    with torch.no_grad():
        out = torch.compile(model, fullgraph=True, backend=backend)(b)
    torch.testing.assert_close(out.hidden, expected.hidden, rtol=0, atol=1e-6)
    torch.testing.assert_close(out.logits, expected.logits, rtol=0, atol=1e-6)
    assert len(graphs) == 1


def test_all_five_together_are_one_whole_graph(counted):
    backend, graphs = counted
    model, b = small(), batch(5, 3)
    for name in FIVE:
        add(model, name, METHODS[name], labels=2)
    expected = model(b)
    out = torch.compile(model, fullgraph=True, backend=backend)(b)
    torch.testing.assert_close(out.hidden, expected.hidden, rtol=0, atol=1e-6)
    assert len(graphs) == 1


def test_twenty_mixes_are_compiled_once(loaded, counted):
    backend, graphs = counted
    compiled = torch.compile(loaded, fullgraph=True, backend=backend)
    pick, b = random.Random(0), batch(5, 3, 4, 5)
    for _ in range(20):
        names = [pick.choice([*METHODS, None]) for _ in range(4)]
        route = loaded.route(names)
        with torch.no_grad():
            expected, out = loaded(b, adapters=names), compiled(b, route=route)
        torch.testing.assert_close(out.hidden, expected.hidden, rtol=0, atol=1e-5)
        mine, theirs = out.logits, expected.logits
        assert type(mine) is type(theirs)
        for i in range(4):
            if theirs is None or theirs[i] is None:
                assert mine is None or mine[i] is None
            else:
                torch.testing.assert_close(mine[i], theirs[i], rtol=0, atol=1e-5)
    assert len(graphs) == 1


@pytest.mark.slow
def test_inductor_compiles_all_five_and_their_gradients():
    torch._dynamo.reset()
    model, b = small(dropout=0.0, attention_dropout=0.0), batch(5, 3)
    for name in FIVE:
        add(model, name, METHODS[name], labels=2)
    peftlab.freeze(model)
    trainable = [p for p in model.parameters() if p.requires_grad]
    model.train()
    compiled = torch.compile(model, fullgraph=True)
    grads = []
    for run in (model, compiled):
        loss = run(b).hidden.square().mean()
        grads.append(torch.autograd.grad(loss, trainable, allow_unused=True))
    for eager, graph in zip(*grads, strict=True):
        if eager is not None:
            torch.testing.assert_close(graph, eager, rtol=1e-3, atol=1e-5)
    torch._dynamo.reset()
