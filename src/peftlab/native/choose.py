"""What a search takes from the scores of a vocabulary (choose.c).

Shapes: R = B · g rows, of B texts with g hypotheses each, V tokens of the vocabulary.
"""

from __future__ import annotations

from ctypes import c_long, c_void_p

import torch
from torch import Tensor

from peftlab.native.library import LIBRARY, declare

declare("log_softmax", c_void_p, *[c_long] * 3)
declare("likeliest", c_void_p, *[c_long] * 3, *[c_void_p] * 2)
declare("continuations", *[c_void_p] * 2, *[c_long] * 5, *[c_void_p] * 2)


def excluded(never: int | None, V: int) -> int:
    """A token of the vocabulary that is never taken, as C is told: −1 for none."""
    return -1 if never is None or never >= V else never


def log_softmax(scores: Tensor, never: int | None) -> Tensor:
    """log p [R, V], written over the scores; −∞ for a token that is `never` taken."""
    R, V = scores.shape
    scores = scores.contiguous()
    LIBRARY.log_softmax(scores.data_ptr(), R, V, excluded(never, V))
    return scores


def likeliest(scores: Tensor, never: int | None) -> tuple[Tensor, Tensor]:
    """The likeliest token [R] of scores [R, V] but one that is `never` taken, and log p [R] of it."""
    R, V = scores.shape
    scores, tokens, log_p = scores.contiguous(), torch.empty(R, dtype=torch.long), torch.empty(R)
    LIBRARY.likeliest(scores.data_ptr(), R, V, excluded(never, V), tokens.data_ptr(), log_p.data_ptr())
    return tokens, log_p


def continuations(scores: Tensor, totals: Tensor, never: int | None, count: int) -> tuple[Tensor, Tensor]:
    """The `count` best of totals [B, g] + log p of scores [B · g, V], the best first; of each `which · V + token`."""
    (B, g), V = totals.shape, scores.shape[1]
    scores, totals = scores.contiguous(), totals.contiguous()
    best, index = torch.empty(B, count), torch.empty(B, count, dtype=torch.long)
    given = scores.data_ptr(), totals.data_ptr(), B, g, V, excluded(never, V), count
    LIBRARY.continuations(*given, best.data_ptr(), index.data_ptr())
    return best, index
