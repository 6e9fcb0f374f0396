"""Virtual tokens: vectors in the place of words, before the real ones. Prompt tuning and P-tuning differ in how they
are made; `layout` says where they stand.

    native   they have no position, the real tokens keep theirs, and the head reads the first real token
    peft     as stock `peft`: they take the first positions and the real ones move; a first-token head reads virtual 0

Shapes: B rows, n virtual tokens, E embedding width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from peftlab.errors import UserError
from peftlab.layers.addition import Addition, Virtual
from peftlab.peft.method import Stock

LAYOUTS = ("native", "peft")
MOST = 8_192
"""the largest number of virtual tokens, and width of a network that makes them"""


class VirtualTokens(Addition):
    """n learned vectors; subclasses may make them by a network."""

    def __init__(self, vectors: Tensor, layout: str) -> None:
        super().__init__()
        self.placed = layout == "peft"
        self.moves = vectors.shape[0] if self.placed else 0
        self.weight = nn.Parameter(vectors)

    @property
    def group(self) -> type[Addition]:
        return VirtualTokens

    @property
    def size(self) -> int:
        return self.weight.shape[0]

    def vectors(self) -> Tensor:
        """[n, E]."""
        return self.weight

    def forward(self, rows: int) -> Virtual:
        vectors = self.vectors().expand(rows, -1, -1)
        return Virtual(
            vectors,
            mask=vectors.new_ones(rows, self.size, dtype=torch.bool),
            placed=vectors.new_full((rows, self.size), self.placed, dtype=torch.bool),
            shift=vectors.new_full((rows,), self.moves, dtype=torch.long),
            full=True,
        )

    def mixed(self, rows: Sequence[VirtualTokens | None], size: int) -> Callable[[int], Virtual]:
        """Left-padded, so that a row's own tokens stand next to its text."""
        made = {id(row): row.vectors() for row in rows if row is not None}
        vectors = self.weight.new_zeros(len(rows), size, self.weight.shape[1])
        vectors = torch.stack([left_pad(None if row is None else made[id(row)], vectors[0]) for row in rows])
        used = torch.tensor([0 if row is None else row.size for row in rows], device=vectors.device)
        mask = torch.arange(size, device=vectors.device) >= size - used[:, None]
        placed = mask & torch.tensor([[row is not None and row.placed] for row in rows], device=vectors.device)
        shift = torch.tensor([0 if row is None else row.moves for row in rows], device=vectors.device)
        return MixedVirtual(Virtual(vectors, mask, placed, shift, full=False))

    def folded(self) -> Addition:
        return VirtualTokens(self.vectors().detach().clone(), "peft" if self.placed else "native")


@dataclass(frozen=True)
class MixedVirtual:
    """Tokens of its own for each row."""

    virtual: Virtual

    def __call__(self, rows: int) -> Virtual:
        return self.virtual


def left_pad(tensor: Tensor | None, empty: Tensor) -> Tensor:
    """The tensor's rows at the end of `empty`."""
    if tensor is None or tensor.shape[0] == empty.shape[0]:
        return empty if tensor is None else tensor
    return torch.cat([empty[: empty.shape[0] - tensor.shape[0]], tensor])


def why_not_prompt(layout: str) -> str | None:
    """Why stock `peft` can't load virtual tokens of a layout."""
    return (
        None if layout == "peft" else 'its layout is "native", and stock peft has its own: train with layout = "peft"'
    )


def prompt_config(tokens: int, config: Any) -> dict[str, Any]:
    """What stock `peft` writes for every adapter of the prompt family."""
    return {
        "num_virtual_tokens": tokens,
        "token_dim": config.embedding_dim or config.dim,
        "num_transformer_submodules": 1,
        "num_attention_heads": config.heads,
        "num_layers": config.layers,
    }


def read_prompt(stock: Stock) -> Tensor:
    """The one tensor [n, …] of a stock adapter of the prompt family."""
    for name in stock.tensors:
        if name != "prompt_embeddings":
            raise UserError(f"the adapter's tensor {name} belongs to nothing that this model has")
    vectors = stock.tensors["prompt_embeddings"]
    if vectors.ndim != 2:
        raise UserError(f"the adapter's prompt_embeddings has shape {list(vectors.shape)}: it must be tokens × width")
    return vectors
