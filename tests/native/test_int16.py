"""Products in 16-bit integers (native/int16.c) against NumPy's integers, and against what torch computes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peftlab import native
from peftlab.errors import UserError
from peftlab.layers import linear
from peftlab.native.product import linear_gelu
from peftlab.train.precision import pick_answering, pick_precision

pytestmark = pytest.mark.skipif(native.LIBRARY is None, reason="the kernels were not built, or this is not AVX2")

PIECE = 384
CPU = torch.device("cpu")


def in_integers(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row as integers, and its scale: as fine as integers and their sums of 32 bits allow."""
    largest, norm = np.abs(numbers).max(1, keepdims=True), np.sqrt((numbers**2).sum(1, keepdims=True))
    scale = np.maximum(largest / 32767, norm / 46300).astype(np.float32)
    return np.rint(numbers * (np.float32(1) / scale)).astype(np.int64), scale.astype(np.float64)


def product(x: Tensor, w: Tensor) -> Tensor:
    """x [M, K] · w [N, K]ᵀ, piece by piece."""
    total = np.zeros((len(x), len(w)))
    for k in range(0, x.shape[1], PIECE):
        (a, of_a), (b, of_b) = (in_integers(t[:, k : k + PIECE].numpy()) for t in (x, w))
        sums = a @ b.T
        assert np.abs(sums).max() < 2**31
        total += sums * of_a * of_b.T
    return torch.from_numpy(total)


@settings(deadline=None, max_examples=60)
@given(
    M=st.sampled_from([17, 18, 47, 48, 49, 97, 200]), N=st.integers(25, 90), K=st.integers(25, 900), bias=st.booleans()
)
def test_products_of_every_shape(M: int, N: int, K: int, bias: bool):
    torch.manual_seed(M * N + K)
    x, w, g = torch.randn(M, K) * torch.rand(M, 1), torch.randn(N, K), torch.randn(M, N)
    b = torch.randn(N) if bias else None
    with native.computing(integers=True):
        y, dx = native.linear(x, w, b, kept=True), native.linear_input(g, w, kept=True)
    # a number in the middle of two integers may be rounded to either, as its scale is
    torch.testing.assert_close(y.double(), product(x, w) + (0 if b is None else b), rtol=1e-4, atol=5e-3)
    torch.testing.assert_close(dx.double(), product(g, w.t().contiguous()), rtol=1e-4, atol=5e-3)


@pytest.mark.parametrize(("N", "K"), [(384, 384), (1536, 384), (384, 1536)])
def test_it_is_ten_times_as_exact_as_bf16(N: int, K: int):
    x, w, g = torch.randn(200, K), torch.randn(N, K) * 0.05, torch.randn(200, N)
    with native.computing(integers=True):
        ours = native.linear(x, w, kept=True), native.linear_input(g, w, kept=True)
    exact = x.double() @ w.double().t(), g.double() @ w.double()
    rounded = x.bfloat16().double() @ w.bfloat16().double().t(), g.bfloat16().double() @ w.bfloat16().double()
    for found, right, coarse in zip(ours, exact, rounded, strict=True):
        error, of_bf16 = float((found - right).norm() / right.norm()), float((coarse - right).norm() / right.norm())
        assert error < 2.5e-4
        assert error < of_bf16 / 10


@pytest.mark.parametrize("size", [1e-32, 1e-18, 1.0, 1e18, 1e35])
def test_no_sum_is_too_large(size: float):
    """All of a row and a column as large as each other: the largest sum that there can be."""
    x, w = torch.full((20, 384), size), torch.cat([torch.ones(30, 384), -torch.ones(30, 384)])
    with native.computing(integers=True):
        y = native.linear(x, w, kept=True)
    torch.testing.assert_close(y, F.linear(x, w), rtol=1e-3, atol=0.0)


def test_what_is_zero_stays_so_and_what_is_not_finite_is_told():
    x, w = torch.randn(60, 400), torch.randn(50, 400)
    x[3], x[5, 7], x[6, 399], w[9] = 0.0, float("nan"), float("inf"), 0.0
    with native.computing(integers=True):
        y = native.linear(x, w, kept=True)
    assert (y[3] == 0).all()
    assert (y[:5, 9] == 0).all()
    broken = ~y.isfinite().all(1)
    assert broken.nonzero().flatten().tolist() == [5, 6]
    assert not y[[5, 6]].isfinite().any()


@pytest.mark.parametrize("M", [0, 1, 5, 16])
def test_few_rows(M: int):
    g, w = torch.randn(M, 385), torch.randn(385, 11)
    with native.computing(integers=True):
        dx = native.linear_input(g, w, kept=True)
        native.add_linear_input(more := torch.ones(M, 11), g, w)
    assert dx.shape == (M, 11)
    torch.testing.assert_close(dx, g @ w, rtol=1e-3, atol=2e-2)
    torch.testing.assert_close(more, 1 + g @ w, rtol=1e-3, atol=2e-2)


def test_what_follows_a_product():
    x, w, b, g = torch.randn(90, 384), torch.randn(200, 384) * 0.05, torch.randn(200), torch.randn(90, 200)
    with native.computing(integers=True):
        y, slope = linear_gelu(x, w, b, learning=True, kept=True)
        before = native.linear(x, w, b, kept=True).requires_grad_()
        steep = native.linear_input(g, w, slope=x, kept=True)
        flat = native.linear_input(g, w, kept=True)
    expected = F.gelu(before)
    expected.sum().backward()
    torch.testing.assert_close(y, expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(slope, before.grad, rtol=1e-5, atol=1e-5)
    assert torch.equal(steep, flat * x)


def test_products_do_not_depend_on_the_threads_or_on_other_rows():
    x, w = torch.randn(500, 700), torch.randn(300, 700)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with native.computing(integers=True):
                found.append(native.linear(x, w, kept=True))
                found.append(torch.cat([native.linear(part, w, kept=True) for part in x.split(100)]))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(other, found[0]) for other in found[1:])


def test_a_weight_is_kept_in_both_ways_and_followed_when_it_changes():
    x, w = torch.randn(60, 384), torch.nn.Parameter(torch.randn(50, 384), requires_grad=False)
    for _ in range(2):
        numbers = native.linear(x, w, kept=True)
        with native.computing(integers=True):
            integers = native.linear(x, w, kept=True)
            assert native.packed(w, across=False) is native.packed(w, across=False)
        assert not torch.equal(numbers, integers)
        torch.testing.assert_close(numbers, integers, rtol=0.0, atol=0.05)
        w.mul_(2.0)
    native.forget(w)
    assert vars(w) == {}


def test_a_weight_that_learns_is_followed_from_step_to_step(monkeypatch):
    monkeypatch.setattr(native, "TALL", True)
    learning = torch.nn.Linear(384, 200)
    w, b, x = learning.weight, learning.bias, torch.randn(120, 384, requires_grad=True)
    for _ in range(3):
        with native.computing(integers=True):
            y = linear.product(x, w, b)
            found = torch.autograd.grad(y.square().sum(), (x, w, b))
        assert not torch.equal(y, native.linear(x.detach(), w.detach(), b.detach()))
        expected = F.linear(x, w, b)
        gradients = torch.autograd.grad(expected.square().sum(), (x, w, b))
        for ours, right in zip((y, *found), (expected, *gradients), strict=True):
            assert (ours - right).norm() < 5e-4 * right.norm()
        with torch.no_grad():
            w.sub_(found[1], alpha=0.01)


@pytest.mark.parametrize(("rows", "width"), [(native.MANY - 1, 384), (native.MANY, native.WIDE - 1)])
def test_what_learns_and_is_small_is_in_fp32(rows: int, width: int):
    x, w = torch.randn(rows, 384), torch.randn(width, 384, requires_grad=True)
    with native.computing():
        numbers = linear.product(x, w)
    with native.computing(integers=True):
        assert torch.equal(linear.product(x, w), numbers)
    assert vars(w) == {}


def test_it_is_chosen_where_the_kernels_have_it(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    for there, precision in ((True, "int16"), (False, "fp32")):
        monkeypatch.setattr(native, "INTEGERS", there)
        assert pick_precision("auto", CPU) == precision
        assert pick_precision("auto", CPU, fresh=True) == "fp32"
        assert [pick_answering(trained, CPU) for trained in ("int16", "bf16", "fp32")] == [precision, "fp32", "fp32"]
    with pytest.raises(UserError, match=r"train\.precision: int16 needs .* fp32 or bf16"):
        pick_precision("int16", CPU)
