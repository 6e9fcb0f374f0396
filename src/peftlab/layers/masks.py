"""Masks: which query may see which key. True is "may see"; a mask is [B or 1, 1, Tq or 1, Tk] and combines with `&`.

    padding(batch.mask) & look_ahead(T)        # a decoder's self-attention
    padding(source.mask)                       # cross-attention: keys are the source's tokens

None means that everything may be seen, which is faster than a mask full of True.
"""

import torch
from torch import Tensor


def padding(mask: Tensor) -> Tensor:
    """[B, Tk], True at real tokens → [B, 1, 1, Tk]: no query sees a padded key."""
    return mask[:, None, None, :]


def look_ahead(T: int, past: int = 0, device: torch.device | None = None) -> Tensor:
    """[1, 1, T, past + T]: query t sees the `past` keys before the window, and keys 0 … t of it.

    >>> look_ahead(3)[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    return torch.ones(T, past + T, dtype=torch.bool, device=device).tril(past)[None, None]


def weigh(scores: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """[..., Tk] → the scores, the smallest number there is where the mask forbids, and their softmax. A query that may
    see nothing yields zeros, not NaN.
    """
    if mask is None:
        return scores, scores.softmax(-1)
    # not −∞, which would make a row of nothing NaN, in the gradient too
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores, scores.softmax(-1).masked_fill(~mask, 0.0)
