"""Attention of one query a row, without keys and values: their matrices change sides.

    score     q · (W x + b)          =  (qᵀW) · x + q · b           the query is mapped, and not each token
    mixture   Σ w_t (W x_t + b)      =  W (Σ w_t x_t) + b Σ w_t     the sum is mapped, and not each token

So the tokens themselves are looked at, once a head. A head that reads the first token alone asks the last block for no
other: keys and values of T tokens are 2·T·D² multiplications, this is 2·(D² + H·T·D), a ninth for 13 tokens of MiniLM.

By a kernel of our own where they compute (native/one_query.c), else by torch.

    python -m pytest tests/layers/test_one_query.py

Shapes: B rows, T tokens, D model width, H heads, d = D / H.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from peftlab import native
from peftlab.layers.dropout import draw_kept, growth, in_65536
from peftlab.layers.dropout import dropout as drop
from peftlab.layers.linear import Map
from peftlab.layers.masks import weigh


def attend_one(q: Tensor, memory: Tensor, k: Map, v: Map, scale: float, mask: Tensor | None, dropout: float) -> Tensor:
    """q [B, H, 1, d], memory [B, T, D], mask [B, 1, 1, T] → [B, H, 1, d]: softmax(QKᵀ · scale) V, where k and v would
    make the keys and the values of memory. The keys' bias is one number for all scores of a query: it changes none of
    its weights.
    """
    q = q[:, :, 0]
    if by_kernel(q, memory, k, v):
        return OneQuery.apply(q, memory, k.whole, v.whole, v.bias, k.bias, scale, mask, in_65536(dropout))[:, :, None]
    scores = to_tokens(q * scale, k) @ memory.transpose(1, 2)  # [B, H, T]
    if k.bias is not None and k.bias.requires_grad:  # it learns nothing, and is told so
        scores = scores + (q * k.bias.view(q.shape[1:])).sum(-1, keepdim=True)
    weights = drop(weigh(scores, None if mask is None else mask[:, 0])[1], dropout)  # [B, H, T]
    mixed = from_tokens(weights @ memory, v)
    if v.bias is not None:
        mixed = mixed + weights.sum(-1, keepdim=True) * v.bias.view(mixed.shape[1:])
    return mixed[:, :, None]


def by_kernel(q: Tensor, memory: Tensor, k: Map, v: Map) -> bool:
    """Whether our own kernel is to compute it; what does not fit together torch tells."""
    B, H, d = q.shape
    square = k.weight.shape == v.weight.shape == (H * d, H * d) and memory.shape[::2] == (B, H * d)
    told = k.weight, v.weight, *(() if v.bias is None else (v.bias,))
    return square and native.fits(q, memory) and all(native.takes(t) and t.is_contiguous() for t in told)


class OneQuery(torch.autograd.Function):
    """The kernel and that of its gradients; the keys' bias learns nothing, and is told so."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        memory: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        k_bias: Tensor | None,
        scale: float,
        mask: Tensor | None,
        cut: int,
    ) -> Tensor:
        q, memory, k, v = (t.contiguous() for t in (q, memory, k, v))
        keep = draw_kept(torch.Size([*q.shape[:2], memory.shape[1]]), cut) if cut else None
        mixed, kept = native.ask_tokens(q, memory, k, v, bias, scale, mask, keep, growth(cut))
        ctx.save_for_backward(q, memory, k, v, bias, mask, keep, kept, k_bias)
        ctx.scale, ctx.growth = scale, growth(cut)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, memory, k, v, bias, mask, keep, kept, k_bias = ctx.saved_tensors
        given = gradient.contiguous(), q, memory, k, v, bias, ctx.scale, mask, keep, ctx.growth, kept
        found = native.ask_tokens_back(*given, ctx.needs_input_grad[1:5])
        return *found, torch.zeros_like(k_bias) if ctx.needs_input_grad[5] else None, None, None, None


def to_tokens(q: Tensor, k: Map) -> Tensor:
    """[B, H, d] → [B, H, D]: what a head asks for in keys, in tokens."""
    H = q.shape[1]
    asked = by_head(q, heads_of(k.weight, H))
    if k.change is None:
        return asked
    A, B, scale = k.change
    return asked + by_head(q * scale, heads_of(B, H)) @ A


def from_tokens(x: Tensor, v: Map) -> Tensor:
    """[B, H, D] → [B, H, d]: a head's sum of tokens, in values."""
    H = x.shape[1]
    values = by_head(x, heads_of(v.weight, H).transpose(1, 2))
    if v.change is None:
        return values
    A, B, scale = v.change
    return values + by_head(x @ A.t() * scale, heads_of(B, H).transpose(1, 2))


def heads_of(weight: Tensor, heads: int) -> Tensor:
    """[D, n] → [H, d, n]: the outputs of each head."""
    return weight.view(heads, -1, weight.shape[1])


def by_head(x: Tensor, matrices: Tensor) -> Tensor:
    """x [B, H, a], matrices [H, a, b] → [B, H, b]: each head has its own."""
    return (x.transpose(0, 1) @ matrices).transpose(0, 1)
