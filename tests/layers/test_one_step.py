"""A sublayer with frozen weights as one step, against the way of all others: values, gradients, and where it is so."""

import pytest
import torch
from both_ways import Change, learn, near, same
from torch import nn

from peftlab import native
from peftlab.layers.addition import Addition, Thin
from peftlab.layers.attention import Attention
from peftlab.layers.feedforward import FeedForward
from peftlab.layers.linear import Linear
from peftlab.layers.masks import look_ahead
from peftlab.layers.norm import LayerNorm
from peftlab.layers.residual import PostNorm, PreNorm
from peftlab.peft.changes import BiasChange, NormChange

pytestmark = pytest.mark.skipif(native.LIBRARY is None, reason="the kernels were not built, or this is not AVX2")


@pytest.fixture(autouse=True)
def all_heights(monkeypatch):
    monkeypatch.setattr(native, "TALL", True)


def changed(layer: Attention, targets: str) -> PostNorm:
    """The layer frozen in its residual wrapper, with a change of low rank on some of its maps."""
    residual = PostNorm(32, layer, LayerNorm(32), dropout=0.2).requires_grad_(False)
    torch.nn.init.normal_(residual.norm.weight)
    torch.nn.init.normal_(residual.norm.bias)
    for target in targets:
        site = layer.get_submodule(target).get_submodule("site")
        site.put("one", Change(32, 4, 32))
        site.active = ("one",)
        for thin in site["one"].parameters():
            torch.nn.init.normal_(thin, std=0.3)  # so that no weight of attention is near 1
    return residual


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize(("B", "T"), [(7, 37), (40, 5), (90, 1), (2, 3)])
def test_changes_that_differ_from_row_to_row_are_added_inside(B, T, integers):
    D, H = 400, 4  # more inputs than int16 sums at once
    x, which = torch.randn(B, T, D), [b % 4 - 1 for b in range(B)]

    def part(changed: bool):
        members = [(torch.randn(r, D) / 20, torch.randn(D, r) / 4, 0.5 + 1 / r) for r in (1, 4, 30)] if changed else []
        return torch.randn(D, D) / 20, torch.randn(D), members

    def exact(given, W, b, members):
        y = given.double() @ W.double().mT + b.double()
        for row, i in enumerate(which):
            if members and i >= 0:
                A, B, factor = members[i]
                y[row] += given[row].double() @ A.double().mT @ B.double().mT * factor
        return y

    parts = [part(changed) for changed in (True, False, True, True)]
    q, k, v = (exact(x, *of).view(B, T, H, -1).transpose(1, 2) for of in parts[:3])
    mixed = ((q @ k.mT * 0.1).softmax(-1) @ v).transpose(1, 2).flatten(2)
    maps = [(W, b, None, native.Changes(members, which) if members else None) for W, b, members in parts]
    none = native.Dropped(0, None)
    with torch.no_grad(), native.computing(integers=integers):
        found, *_ = native.attended(x, maps, None, native.Asked(H, 0.1, None), None, none, none, False)
    expected = exact(mixed, *parts[3])
    assert (found - expected).norm() < (5e-3 if integers else 1e-5) * expected.norm()


@pytest.mark.parametrize("targets", ["", "qv", "o", "qkvo"])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_with_frozen_weights_and_its_norm_are_one_step(targets, masked):
    residual = changed(Attention(32, 4, dropout=0.3), targets)
    x = torch.randn(4, 17, 32)
    mask = (torch.arange(17)[None] < torch.tensor([17, 3, 0, 9])[:, None])[:, None, None] if masked else None
    same(residual.train(), x, mask=mask)
    same(residual.eval(), x, mask=mask)
    with native.computing():
        y = residual(x.requires_grad_(), mask=mask)
        assert type(y.grad_fn).__name__ == "AttendedBackward"
        (once,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], once)
        with torch.no_grad():
            assert torch.equal(residual(x, mask=mask), y)
            with native.computing(again=True):
                assert torch.equal(residual(x, mask=mask), y)
        if "q" in targets:
            assert type(residual(x.detach(), mask=mask).grad_fn).__name__ == "AttendedBackward"
    if targets:
        same(residual, x.detach(), mask=mask, lowest=True)


@pytest.mark.parametrize("make", [lambda: Attention(32, 4, bias=False), lambda: Attention(32, 4, "dot", dropout=0.3)])
@pytest.mark.parametrize(("B", "T"), [(3, 1), (1, 5), (2, 9), (3, 50)])
def test_one_step_of_each_shape_and_mask(make, B, T):
    residual = changed(make(), "qv")
    residual.sublayer.get_parameter("q.site.one.A").data.mul_(0.1)  # so that no weight of "dot" is near 1
    for mask in (None, look_ahead(T), torch.rand(B, 1, T, T) < 0.6, torch.rand(1, 1, 1, T) < 0.6):
        same(residual.train(), torch.randn(B, T, 32) * 0.3, mask=mask)


@pytest.mark.parametrize("targets", ["", "qv", "o", "qkvo"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_in_integers(targets, dropout):
    residual = changed(Attention(32, 4, dropout=dropout), targets)
    near(residual.train(dropout > 0), torch.randn(4, 17, 32), within=2e-3)
    if targets:
        near(residual, torch.randn(4, 17, 32), lowest=True, within=2e-3)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("biases", [False, True])
def test_a_feed_forward_network_in_integers(training, biases):
    residual = changed(FeedForward(32, 500), "")
    if biases:
        for layer in (residual.sublayer.up, residual.sublayer.down):
            layer.site.put("one", BiasChange(layer.bias))
            layer.site.active = ("one",)
    near(residual.train(training), torch.randn(4, 17, 32), within=2e-3)
    if biases:
        near(residual, torch.randn(4, 17, 32), lowest=True, within=2e-3)


def test_every_thread_has_its_own_rows_in_integers():
    """What one product passes on to the next lies where the thread's first rows do."""
    residual, x = changed(FeedForward(32, 500), "").train(), torch.randn(8, 100, 32)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = learn(residual, True, x, integers=True)
        torch.set_num_threads(2)
        for _ in range(10):
            both = learn(residual, True, x, integers=True)
            assert torch.equal(alone[0], both[0])
            assert torch.equal(alone[1], both[1])
    finally:
        torch.set_num_threads(threads)


def test_a_weight_that_does_not_lie_row_by_row():
    residual = changed(Attention(32, 4), "qv")
    q = residual.sublayer.get_submodule("q")
    q.weight = nn.Parameter(q.weight.detach().t(), requires_grad=False)
    same(residual, torch.randn(4, 17, 32))


@pytest.mark.parametrize("make", [lambda: Attention(32, 4, dropout=0.3), lambda: FeedForward(32, 50)])
def test_one_step_reads_what_does_not_lie_row_by_row(make):
    layer = make()
    residual = changed(layer, "qkvo" if isinstance(layer, Attention) else "")
    given, gradient = torch.randn(17, 4, 32), torch.randn(32, 17, 4)
    found = []
    for kernels in (True, False):
        x = given.clone().requires_grad_()
        residual.zero_grad()
        torch.manual_seed(1)
        with native.computing(kernels):
            residual(x.transpose(0, 1)).backward(gradient.permute(2, 1, 0))
        found.append([x.grad, *(p.grad for p in residual.parameters() if p.requires_grad)])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


class Network(Addition):
    """Thin, behind a sublayer; alone it is one step with it."""

    def __init__(self, width: int, inner: int, scale: float) -> None:
        super().__init__()
        self.down, self.up, self.scale = nn.Linear(width, inner), nn.Linear(inner, width), scale

    def forward(self, y, x, join):
        return y + self.scale * self.up(nn.functional.gelu(self.down(y)))

    def thin(self):
        return Thin(self.down.weight, self.down.bias, self.up.weight, self.up.bias, self.scale)


@pytest.mark.parametrize("inner", [1, 6, 70])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("make", [lambda: Attention(32, 4, dropout=0.3), lambda: FeedForward(32, 50)])
def test_a_thin_network_behind_a_sublayer_is_no_more_steps(make, dropout, inner):
    layer = make()
    residual = changed(layer, "qo" if isinstance(layer, Attention) else "")
    residual.dropout.p = dropout
    residual.out.put("one", Network(32, inner, 0.7))
    residual.out.active = ("one",)
    x = torch.randn(5, 40, 32)
    same(residual.train(), x)
    same(residual.eval(), x)
    with native.computing():
        y = residual(x.requires_grad_())
        first = "AttendedBackward" if isinstance(layer, Attention) else "FedForwardBackward"
        assert type(y.grad_fn).__name__ == first
        with torch.no_grad():
            torch.testing.assert_close(residual(x), y, rtol=0, atol=1e-5)
            with native.computing(again=True):
                assert torch.equal(residual(x), y)
            residual.get_parameter("out.one.up.weight").add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    for name in ("down.weight", "down.bias", "up.weight", "up.bias"):
        same(residual, x.detach(), lowest=True)
        residual.get_parameter(f"out.one.{name}").requires_grad_(False)
        same(residual, x.detach())


@pytest.mark.parametrize("targets", ["", "qv", "qkvo"])
def test_attention_whose_norm_is_elsewhere_is_one_step_too(targets):
    layer = changed(Attention(32, 4, dropout=0.3), targets).sublayer
    residual = PreNorm(32, layer, LayerNorm(32), dropout=0.2)
    x = torch.randn(4, 17, 32)
    same(residual.train(), x)
    with native.computing():
        y = residual.eval()(x.requires_grad_())
        assert "AttendedBackward" in {type(step).__name__ for step, _ in y.grad_fn.next_functions}
    same(residual, x.detach())
    if targets:
        same(residual, x.detach(), lowest=True)


def test_a_thin_matrix_that_is_frozen_has_no_gradient():
    residual = changed(Attention(32, 4), "qv")
    residual.sublayer.get_parameter("q.site.one.A").requires_grad_(False)
    residual.sublayer.get_parameter("v.site.one.B").requires_grad_(False)
    same(residual, torch.randn(4, 17, 32))


@pytest.mark.parametrize("name", ["q.site.one.A", "q.weight", "o.weight"])
def test_no_matrix_may_change_before_its_gradient(name):
    residual = changed(Attention(32, 4), "q")
    with native.computing():
        y = residual(torch.randn(4, 17, 32))
        with torch.no_grad():
            residual.sublayer.get_parameter(name).add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_attention_that_is_looked_at_or_learns_is_no_single_step():
    residual, x = changed(Attention(32, 4), "q").eval(), torch.randn(4, 17, 32)
    looks: list = []
    with native.computing():
        whole, seen = residual(x), residual(x, looks=looks)
        assert len(looks) == 1
        torch.testing.assert_close(whole, seen, rtol=0, atol=1e-5)
        residual.sublayer.get_parameter("k.weight").requires_grad_(True)
        assert type(residual(x).grad_fn).__name__ == "JoinBackward"
    same(residual, x)


def test_where_nothing_leads_through_attention_its_weights_do_not_wait():
    residual, x = changed(Attention(32, 4), "o"), torch.randn(4, 17, 32)
    with native.computing():
        assert type(residual(x).grad_fn).__name__ == "JoinBackward"
        assert type(residual(x.requires_grad_()).grad_fn).__name__ == "AttendedBackward"


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_frozen_feed_forward_network_and_its_norm_are_one_step(dropout):
    residual = PostNorm(24, FeedForward(24, 50), LayerNorm(24), dropout).requires_grad_(False)
    torch.nn.init.normal_(residual.norm.weight)
    x = torch.randn(5, 40, 24)
    same(residual.train(), x)
    same(residual.eval(), x)
    with native.computing():
        y = residual(x.requires_grad_())
        assert type(y.grad_fn).__name__ == "FedForwardBackward"
        with torch.no_grad():
            assert torch.equal(residual(x), y)
            with native.computing(again=True):
                assert torch.equal(residual(x), y)


def shifted(residual: PostNorm, *skipped: str, scale: bool = False) -> PostNorm:
    """All frozen, with a change of every bias, that of the norm too, or of all of the norm; not of keys', whose
    gradient is rounding alone.
    """
    residual.requires_grad_(False)
    torch.nn.init.normal_(residual.norm.weight)
    for name, part in list(residual.named_modules()):
        if isinstance(part, Linear | LayerNorm) and name not in ("sublayer.k", *skipped):
            change = BiasChange(part.bias) if isinstance(part, Linear) else NormChange(part.weight, scale)
            torch.nn.init.normal_(change.shift)
            part.site.put("one", change)
            part.site.active = ("one",)
    return residual


@pytest.mark.parametrize("skipped", [(), ("norm",), ("sublayer.up", "sublayer.q"), ("sublayer.down", "sublayer.o")])
@pytest.mark.parametrize("make", [lambda: Attention(32, 4, dropout=0.3), lambda: FeedForward(32, 50)])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("scale", [False, True])
def test_biases_and_norms_that_learn_are_no_more_steps(make, skipped, dropout, scale):
    residual = shifted(PostNorm(32, make(), LayerNorm(32), dropout), *skipped, scale=scale)
    x = torch.randn(5, 40, 32)
    same(residual.train(), x)
    same(residual.eval(), x)
    same(residual, x, lowest=True)
    with native.computing():
        first = "AttendedBackward" if isinstance(residual.sublayer, Attention) else "FedForwardBackward"
        assert type(residual(x.requires_grad_()).grad_fn).__name__ == first


@pytest.mark.parametrize("width", [16, 40])
@pytest.mark.parametrize("learning", [True, False])
@pytest.mark.parametrize("make", [lambda: Attention(32, 4), lambda: FeedForward(32, 50)])
def test_an_input_of_another_width_is_told(make, learning, width):
    residual = PostNorm(32, make(), LayerNorm(32)).requires_grad_(False)
    for again in (False, True):
        x = torch.randn(4, 17, width).requires_grad_(learning)
        with (
            native.computing(again=again),
            torch.set_grad_enabled(learning),
            pytest.raises(RuntimeError, match="shape"),
        ):
            residual(x)


@pytest.mark.parametrize("wrong", [Network(16, 4, 1.0), Network(40, 4, 1.0)])
def test_a_thin_network_of_another_width_is_told(wrong):
    residual = changed(Attention(32, 4), "q")
    residual.out.put("one", wrong)
    residual.out.active = ("one",)
    with native.computing(), pytest.raises(RuntimeError, match="shape"):
        residual(torch.randn(4, 17, 32))


def test_a_sentence_alone_keeps_no_weights():
    residual = PostNorm(32, Attention(32, 4), LayerNorm(32)).requires_grad_(False)
    with torch.no_grad(), native.computing(again=True):
        residual(torch.randn(1, native.UNPACKED, 32))
        assert not hasattr(residual.sublayer.get_parameter("q.weight"), "packed_False")
