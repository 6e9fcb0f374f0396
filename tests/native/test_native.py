"""The kernels in C against torch in double precision, and NumPy's generator."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peftlab import native
from peftlab.layers.dropout import Seeds, draw_kept

pytestmark = pytest.mark.skipif(native.LIBRARY is None, reason="the kernels were not built, or this is not AVX2")

sizes = st.integers(1, 70)


def close(ours: Tensor, exact: Tensor) -> None:
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5 * float(exact.abs().max()))


@settings(deadline=None, max_examples=60)
@given(
    M=st.sampled_from([1, 2, 3, 4, 5, 6, 7, 47, 48, 49, 97, 200]), N=sizes, K=st.integers(1, 600), bias=st.booleans()
)
def test_products_of_every_shape(M: int, N: int, K: int, bias: bool):
    torch.manual_seed(M * N + K)
    x, w, g = torch.randn(M, K), torch.randn(N, K), torch.randn(M, N)
    b = torch.randn(N) if bias else None
    close(native.linear(x, w, b), F.linear(x.double(), w.double(), None if b is None else b.double()))
    close(native.linear_input(g, w), g.double() @ w.double())
    close(native.linear_weight(g, x), g.double().t() @ x.double())
    y, dx = g.clone(), x.clone()
    native.add_linear(y, x, w)
    native.add_linear_input(dx, g, w)
    close(y, g.double() + x.double() @ w.double().t())
    close(dx, x.double() + g.double() @ w.double())


def test_products_of_the_sizes_of_a_model():
    x, w, b = torch.randn(13, 32, 384), torch.randn(1536, 384), torch.randn(1536)
    close(native.linear(x, w, b), F.linear(x.double(), w.double(), b.double()))
    assert native.linear(x[:, :1], w, b).shape == (13, 1, 1536)  # rows that do not follow each other


@pytest.mark.parametrize("M", [17, 63, 64, 65, 90, 161])
@pytest.mark.parametrize("N", [24, 50, 256, 384, 500])
def test_a_weight_that_is_kept_packed_is_followed_when_it_changes(M: int, N: int):
    x, w, g = torch.randn(M, 500), torch.nn.Parameter(torch.randn(N, 500)), torch.randn(M, N)
    for _ in range(2):
        assert torch.equal(native.linear(x, w, kept=True), native.linear(x, w))
        assert torch.equal(native.linear_input(g, w, kept=True), native.linear_input(g, w))
        assert native.packed(w, across=False) is native.packed(w, across=False)
        with torch.no_grad():
            w.mul_(2)


def test_a_weight_may_be_forgotten_that_a_fused_optimizer_changed():
    x, w = torch.randn(90, 50), torch.nn.Parameter(torch.randn(30, 50))
    native.linear(x, w, kept=True)
    optimizer = torch.optim.AdamW([w], lr=0.1, fused=True)
    w.grad = torch.ones_like(w)
    optimizer.step()
    native.forget(w)
    assert torch.equal(native.linear(x, w, kept=True), native.linear(x, w))


def test_products_do_not_depend_on_the_threads():
    x, w = torch.randn(100, 300), torch.randn(333, 300)
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append((native.linear(x, w), native.linear(x[:5], w), native.linear_input(native.linear(x, w), w)))
    torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(found[0], found[1], strict=True))
    assert all(torch.equal(one, other) for one, other in zip(found[0], found[2], strict=True))


def test_what_is_not_finite_stays_so():
    x = torch.randn(60, 40)
    x[3, 5] = torch.nan
    assert native.linear(x, torch.randn(20, 40))[3].isnan().all()
    assert native.gelu(torch.tensor([torch.nan]))[0].isnan()
    q = torch.randn(1, 1, 4, 8)
    q[0, 0, 2] = torch.nan
    assert native.attend(q, torch.randn(1, 1, 5, 8), torch.randn(1, 1, 5, 8), 1.0, None)[0, 0, 2].isnan().all()


def exact(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, keep: Tensor, growth: float) -> Tensor:
    """The equation."""
    scores = q @ k.mT * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(torch.float32).min)
    weights = scores.softmax(-1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    return weights * keep * growth @ v


@settings(deadline=None, max_examples=60)
@given(
    B=st.integers(1, 3),
    H=st.integers(1, 3),
    Tq=st.sampled_from([1, 2, 6, 13, 47, 48, 49, 100]),
    Tk=st.sampled_from([1, 5, 8, 15, 16, 17, 33, 130]),
    d=st.sampled_from([1, 4, 16, 20, 32, 64]),
    masked=st.sampled_from(["no", "keys", "each", "shared"]),
    dropped=st.booleans(),
)
def test_attention_of_every_shape(B: int, H: int, Tq: int, Tk: int, d: int, masked: str, dropped: bool):
    torch.manual_seed(Tq * Tk + d)
    q, k, v = (torch.randn(B, T, H, d).transpose(1, 2) for T in (Tq, Tk, Tk))
    shape = {"keys": (B, 1, 1, Tk), "each": (B, 1, Tq, Tk), "shared": (1, 1, Tq, Tk)}.get(masked)
    mask = None if shape is None else torch.rand(shape) > 0.4  # some queries see nothing
    keep = (torch.rand(B, H, Tq, Tk) > 0.2).byte() if dropped else None
    growth = 1.25 if dropped else 1.0
    doubles = [t.double().requires_grad_() for t in (q, k, v)]
    expected = exact(*doubles, 0.7, mask, torch.ones(()) if keep is None else keep, growth)
    close(native.attend(q, k, v, 0.7, mask, keep, growth), expected.detach())
    gradient = torch.randn(q.shape)
    wanted = torch.autograd.grad(expected, doubles, gradient.double())
    for ours, theirs in zip(native.attend_back(q, k, v, gradient, 0.7, mask, keep, growth), wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("cut", [1, 6554, 65535, 65536])
@pytest.mark.parametrize("count", [1, 3, 4, 255, 256, 257, 10_001])
def test_draws_are_those_of_numpy(count: int, cut: int):
    torch.manual_seed(count)
    ours = draw_kept(torch.Size([count]), cut)
    torch.manual_seed(count)
    bits = np.random.SFC64(Seeds()).random_raw(-(-count // 4)).view(np.uint16)[:count]  # type: ignore[arg-type]
    assert ours.tolist() == (bits >= cut).tolist()


def test_gelu_and_its_slope():
    x = torch.cat([torch.linspace(-12, 12, 100_003), torch.tensor([0.0, -50.0, 50.0, 1e-30])])
    exact = x.double().requires_grad_()
    y = F.gelu(exact)
    (slope,) = torch.autograd.grad(y.sum(), exact)
    torch.testing.assert_close(native.gelu(x).double(), y.detach(), rtol=1e-6, atol=2e-6)
    torch.testing.assert_close(native.gelu_back(x, torch.ones_like(x)).double(), slope, rtol=1e-6, atol=5e-7)
    assert native.gelu(x, out=x) is x


@settings(deadline=None, max_examples=40)
@given(B=st.integers(1, 4), g=st.integers(1, 5), V=st.sampled_from([2, 7, 8, 9, 40, 1001]), data=st.data())
def test_the_likeliest_tokens(B: int, g: int, V: int, data: st.DataObject):
    torch.manual_seed(B * V + g)
    never = data.draw(st.sampled_from([None, 0, V - 1]))
    scores, totals = torch.randn(B * g, V) * 5, torch.randn(B, g)
    log_p = scores.double().log_softmax(1)
    if never is not None:
        log_p[:, never] = -torch.inf
    best, tokens = log_p.max(1)
    found, ours = native.likeliest(scores, never)
    assert torch.equal(found, tokens)
    torch.testing.assert_close(ours.double(), best, rtol=1e-5, atol=1e-5)

    count = min(2 * g, g * (V - 1))
    best, index = (log_p.view(B, g, V) + totals[:, :, None].double()).flatten(1).topk(count)
    ours, found = native.continuations(scores, totals, never, count)
    assert torch.equal(found, index)
    torch.testing.assert_close(ours.double(), best, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(native.log_softmax(scores.clone(), never).double(), log_p, rtol=1e-5, atol=1e-5)


def test_hypotheses_that_do_not_count_are_not_gone_on_with():
    scores, totals = torch.randn(3, 4), torch.tensor([[-torch.inf, 0.0, -torch.inf]])
    best, index = native.continuations(scores, totals, 0, 6)
    assert best[0, 3:].tolist() == [-torch.inf] * 3
    assert set(index[0, :3].tolist()) == {5, 6, 7}


def test_only_what_is_asked_for_is_computed_by_the_kernels():
    x = torch.randn(2, 3)
    assert not native.fits(x, x)
    with native.computing():
        with native.computing():
            assert native.fits(x, x)
        assert native.fits(x, x)
        assert not native.fits(x, x.double())
        assert not native.fits(x.to("meta"), x)
        with ThreadPoolExecutor(1) as pool:
            assert not pool.submit(native.fits, x, x).result()
    assert not native.fits(x, x)


def test_it_can_be_turned_off():
    code = "from peftlab import native; print(native.LIBRARY)"
    environment = {**os.environ, "PEFTLAB_NATIVE": "0"}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).strip() == "None"


@settings(deadline=None, max_examples=40)
@given(R=st.integers(1, 5), T=st.sampled_from([1, 5, 16, 17, 40]), N=sizes, K=st.integers(1, 100), r=st.integers(1, 30))
def test_changes_of_low_rank_that_differ_from_row_to_row(R, T, N, K, r):
    x, y = torch.randn(R, T, K), torch.randn(R, T, N)
    members = [(torch.randn(r + i, K), torch.randn(N, r + i), 0.7 + i) for i in range(3)]
    which = [b % 4 - 1 for b in range(R)]  # the first has none, the fifth again
    exact = y.double()
    for b, i in enumerate(which):
        if i >= 0:
            A, B, factor = members[i]
            exact[b] += (x[b].double() @ A.double().mT * factor) @ B.double().mT
    native.add_changes(y, x, native.Changes(members, which))
    close(y, exact)
    with pytest.raises(AssertionError):
        native.add_changes(y, x, native.Changes(members, [*which, -1]))
    with pytest.raises(AssertionError):
        native.add_changes(y, x, native.Changes([(torch.randn(r, K + 1), torch.randn(N, r), 1.0)], [0] * R))
