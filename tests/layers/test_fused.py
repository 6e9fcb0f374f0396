"""What layers compute with our own kernels, against torch's way of the same layer, gradients included."""

import pytest
import torch
from torch import nn

from peftlab import native
from peftlab.layers.addition import Addition, LowRank, Thin
from peftlab.layers.attention import Attention
from peftlab.layers.feedforward import FeedForward
from peftlab.layers.linear import Linear
from peftlab.layers.masks import look_ahead
from peftlab.layers.norm import LayerNorm
from peftlab.layers.residual import PostNorm, PreNorm
from peftlab.peft.changes import BiasChange, NormChange

pytestmark = pytest.mark.skipif(native.LIBRARY is None, reason="the kernels were not built, or this is not AVX2")


def learn(
    module: nn.Module, kernels: bool, *given: torch.Tensor, lowest: bool = False, **choices
) -> list[torch.Tensor | None]:
    """The output, and the gradients of the inputs, unless it is the lowest module, and of all weights."""
    inputs = [t.clone().requires_grad_(not lowest) for t in given]
    module.zero_grad()
    torch.manual_seed(1)  # dropout draws the same
    with native.computing(kernels):
        y = module(*inputs, **choices)
        (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    return [y.detach(), *(t.grad for t in inputs), *(p.grad for p in module.parameters())]


def same(module: nn.Module, *given: torch.Tensor, **choices) -> None:
    ours, theirs = (learn(module, kernels, *given, **choices) for kernels in (True, False))
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()) + 1e-6)


@pytest.fixture(autouse=True)
def all_heights(monkeypatch):
    monkeypatch.setattr(native, "TALL", True)


@pytest.mark.parametrize("rows", [(3, 5), (70, 3), (1, 1), (200,)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(rows, bias):
    same(Linear(20, 90, bias), torch.randn(*rows, 20))
    same(Linear(80, 100, bias), torch.randn(*rows, 80))  # its weight's gradient is torch's


def test_what_is_frozen_has_no_gradient():
    layer = Linear(20, 30).requires_grad_(False)
    same(layer, torch.randn(60, 20))
    with native.computing():
        assert layer(torch.randn(60, 20)).requires_grad is False


class Change(Addition):
    """Of low rank; alone it is one step with the map that it changes."""

    def __init__(self, inputs: int, rank: int, outputs: int) -> None:
        super().__init__()
        self.A, self.B = nn.Parameter(torch.randn(rank, inputs)), nn.Parameter(torch.randn(outputs, rank))

    def forward(self, x, y, weight, bias):
        return 0.7 * x @ self.A.mT @ self.B.mT

    def low_rank(self):
        return LowRank(self.A, self.B, 0.7)


@pytest.mark.parametrize("rows", [(3, 5), (70, 3), (1, 1), (200,)])
@pytest.mark.parametrize("rank", [1, 8, 70])
@pytest.mark.parametrize("bias", [True, False])
def test_a_change_of_low_rank(rows, rank, bias):
    layer = Linear(80, 100, bias).requires_grad_(False)
    layer.site.put("one", Change(80, rank, 100))
    layer.site.active = ("one",)
    same(layer, torch.randn(*rows, 80))
    x = torch.randn(80, *rows).movedim(0, -1)  # does not lie row by row
    layer.zero_grad()
    with native.computing():
        y = layer(x)
        assert type(y.grad_fn).__name__ == "LowRankProductBackward"
        y.sum().backward(retain_graph=True)
        once = layer.site["one"].A.grad.clone()
        y.sum().backward()
        torch.testing.assert_close(layer.site["one"].A.grad, 2 * once)
        with torch.no_grad():
            assert torch.equal(layer(x), y)  # as a reversible layer needs it
    for frozen in ("A", "B"):
        layer.site["one"].get_parameter(frozen).requires_grad_(False)
        same(layer, x)


def test_changes_that_are_not_one_of_low_rank_alone():
    layer = Linear(80, 100)
    for name in ("one", "two"):
        layer.site.put(name, Change(80, 4, 100))
    layer.site.active = ("one",)
    same(layer, torch.randn(60, 80))  # the weight learns as well
    layer.requires_grad_(False)
    layer.site.active = ("one", "two")
    same(layer, torch.randn(60, 80))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", ["gelu", "relu"])
def test_feed_forward(name, frozen):
    network = FeedForward(16, 50, name).requires_grad_(not frozen)
    for rows in (1, 25, 60):
        x = torch.randn(3, rows, 16)
        same(network, x)
        with torch.no_grad():
            expected = network(x)
            with native.computing():
                torch.testing.assert_close(network(x), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("frozen", [False, True])
def test_where_a_sublayer_is_joined(frozen, dropout):
    residual = PostNorm(24, Linear(24, 24), LayerNorm(24), dropout)
    torch.nn.init.normal_(residual.norm.weight)
    torch.nn.init.normal_(residual.norm.bias)
    residual.norm.requires_grad_(not frozen)
    same(residual.train(), torch.randn(5, 40, 24))
    same(residual.eval(), torch.randn(2, 3, 24))
    with torch.no_grad():
        x = torch.randn(5, 3, 24)
        expected = residual(x)
        with native.computing():
            torch.testing.assert_close(residual(x), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("masked", [False, True])
def test_attention(dropout, masked):
    torch.manual_seed(0)
    layer = Attention(24, 3, dropout=dropout)
    x = torch.randn(4, 17, 24)
    mask = torch.arange(17)[None] < torch.tensor([17, 3, 0, 9])[:, None] if masked else None
    same(layer.train(), x, mask=None if mask is None else mask[:, None, None])
    same(layer.eval(), x, torch.randn(4, 11, 24))  # to another sequence
    with torch.no_grad(), native.computing():
        looks: list = []
        torch.testing.assert_close(layer(x), layer(x, looks=looks), rtol=0, atol=1e-5)


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


def test_a_small_shift_of_a_large_bias_is_not_rounded_away():
    layer = Linear(4, 3).requires_grad_(False)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.ones_(layer.bias)
    layer.site.put("one", BiasChange(layer.bias))
    layer.site.active = ("one",)
    torch.nn.init.constant_(layer.site["one"].shift, 1e-3)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer(torch.ones(2, 4)).float(), torch.full((2, 3), 1.001), rtol=0, atol=1e-6)
    layer.site["one"].double()  # torch adds it, whatever it is
    with native.computing():
        torch.testing.assert_close(layer(torch.ones(20, 4)).float(), torch.full((20, 3), 1.001), rtol=0, atol=1e-6)


def test_frozen_weights_are_kept_for_those_who_compute_again():
    network, x = FeedForward(32, 64).requires_grad_(False), torch.randn(40, 32)
    with torch.no_grad():
        with native.computing():
            network(x)
        assert not hasattr(network.up.weight, "packed_False")
        for _ in range(2):
            expected = network(x)
            with native.computing(again=True):
                torch.testing.assert_close(network(x), expected, rtol=0, atol=1e-6)
            assert hasattr(network.up.weight, "packed_False")
            network.up.weight.mul_(2.0)  # what was kept of it is worth nothing now
            network.down.weight.mul_(2.0)
        learning = FeedForward(32, 64)
        with native.computing(again=True):
            learning(x)
        assert not hasattr(learning.up.weight, "packed_False")


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


def test_a_model_that_is_called_computes_with_torch():
    layer, x = Linear(64, 300), torch.randn(10, 64)
    assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
