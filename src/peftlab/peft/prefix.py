"""Prefix tuning: n keys and values before those of the tokens, in every attention layer.

Li & Liang 2021 (arXiv 2101.00190) make them by an MLP over n learned inputs, one MLP for all layers; P-tuning v2 (Liu
et al. 2021, arXiv 2110.07602) learns them directly, which is the default here.

    peftlab.attach(base.model, "mine", peftlab.Prefix(length=20))

Shapes: n keys and values, D model width, h hidden width of the MLP, L attention layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from peftlab.errors import UserError
from peftlab.layers.addition import Addition, KeysValues
from peftlab.layers.attention import Attention
from peftlab.layers.embedding import Embedding
from peftlab.layers.site import Address
from peftlab.models.family import Family
from peftlab.models.model import Place
from peftlab.peft.method import Method, Stock, check_choice, check_number, check_whole
from peftlab.peft.virtual import LAYOUTS, MOST, VirtualTokens, left_pad, prompt_config, read_prompt, why_not_prompt


@dataclass(frozen=True)
class Prefix(Method):
    """Keys and values in every attention layer."""

    name = "prefix"
    about = "learned keys and values before those of every attention layer (Li & Liang 2021)"
    kinds = ("kv", "tokens")
    needs = "kv"
    lr = 3e-2
    size_field = "length"
    stock_type = "PREFIX_TUNING"

    length: int = 20
    """how many keys and values"""
    mlp: int | None = None
    """hidden width of the MLP that makes them; None learns them directly"""
    shared: bool = False
    """one MLP for all layers, as in the paper, instead of one a layer"""
    attention: tuple[str, ...] = ("encoder", "decoder", "cross")
    """on which attention of the model, where it has it: the encoder's or the decoder's to itself, or that between"""
    init_std: float = 0.02
    """standard deviation of keys and values at the start, learned directly"""
    layout: str = "native"
    """native, or peft: stock `peft` moves the positions of the real tokens by the prefix's length"""

    def __post_init__(self) -> None:
        check_whole(1, MOST, length=self.length)
        check_choice("layout", self.layout, LAYOUTS)
        object.__setattr__(self, "attention", tuple(self.attention))
        for kind in self.attention:
            check_choice("attention", kind, ("encoder", "decoder", "cross"))
        if self.mlp is not None:
            check_whole(1, MOST, mlp=self.mlp)
        check_number(0, 10, init_std=self.init_std)
        if self.mlp is None and self.shared:
            raise UserError("shared is true without an MLP: give mlp = its hidden width")

    def build(self, places: Mapping[str, Place]) -> dict[str, Addition]:
        chosen = {
            key: place.owner
            for key, place in places.items()
            if place.site.kind == "kv" and self.kind(place.address) in self.attention
        }
        if not chosen:
            raise UserError(f"the model has no {' or '.join(self.attention)} attention for a prefix")
        built: dict[str, Addition] = {}
        inputs: Inputs | None = None
        for key, owner in chosen.items():
            assert isinstance(owner, Attention)
            D, device = owner.k.out_features, owner.k.weight.device
            if self.mlp is None:
                start = torch.randn(2, self.length, D, device=device) * self.init_std
                built[key] = PrefixPair(start[0], start[1])
            else:
                inputs = inputs if inputs is not None and self.shared else Inputs(self.length, D, self.mlp)
                built[key] = MadePair(inputs, self.mlp, D)
        if self.layout == "peft":
            for key, place in places.items():
                if isinstance(place.owner, Embedding):
                    built[key] = Shift(self.length, place.owner.words.weight)
        return built

    @staticmethod
    def kind(address: Address) -> str:
        """Which attention is at an address."""
        return "cross" if address.sublayer == "cross" else address.stack

    def folded(self) -> Prefix:
        return replace(self, mlp=None, shared=False)

    def why_not_stock(self, family: Family) -> str | None:
        if not family.past_keys:
            return f"{family.architecture} of transformers takes no keys and values from outside"
        return why_not_prompt(self.layout)

    def to_stock(self, additions: Mapping[str, Addition], names: Mapping[str, str], config: Any) -> Stock:
        pairs = [pair.pair() for pair in additions.values() if isinstance(pair, PrefixPair)]
        flat = torch.cat(
            [part.detach() for pair in pairs for part in pair], 1
        )  # [n, L·2·D]: K, V of each layer in turn
        own = {"prefix_projection": False, "encoder_hidden_size": config.dim, "token_dim": config.dim}
        return Stock(prompt_config(self.length, config) | own, {"prompt_embeddings": flat})

    @classmethod
    def from_stock(cls, stock: Stock, names: Mapping[str, str]) -> tuple[Prefix, dict[str, dict[str, Tensor]]]:
        flat = read_prompt(stock)
        keys = [key for key in names if key.endswith(".kv")]
        if flat.shape[1] % (2 * len(keys)):
            raise UserError(f"prompt_embeddings is {flat.shape[1]} wide, which {len(keys)} layers do not divide")
        parts = flat.chunk(2 * len(keys), 1)
        tensors = {key: {"keys": parts[2 * i], "values": parts[2 * i + 1]} for i, key in enumerate(keys)}
        return cls(length=flat.shape[0], layout="peft"), tensors


class PrefixPair(Addition):
    """Keys and values, learned directly."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.keys = nn.Parameter(keys)
        self.values = nn.Parameter(values)

    @property
    def group(self) -> type[Addition]:
        return PrefixPair

    @property
    def size(self) -> int:
        return self.keys.shape[0]

    def pair(self) -> tuple[Tensor, Tensor]:
        """[n, D] each."""
        return self.keys, self.values

    def forward(self, rows: int) -> KeysValues:
        keys, values = self.pair()
        return KeysValues(keys.expand(rows, -1, -1), values.expand(rows, -1, -1), None)

    def mixed(self, rows: Sequence[PrefixPair | None], size: int) -> Callable[[int], KeysValues]:
        made = {id(row): row.pair() for row in rows if row is not None}
        like = self.pair()[0]
        empty = like.new_zeros(size, like.shape[1])
        keys, values = (
            torch.stack([left_pad(None if row is None else made[id(row)][i], empty) for row in rows]) for i in (0, 1)
        )
        used = torch.tensor([0 if row is None else row.size for row in rows], device=keys.device)
        return MixedPairs(KeysValues(keys, values, torch.arange(size, device=keys.device) >= size - used[:, None]))

    def folded(self) -> Addition:
        keys, values = self.pair()
        return PrefixPair(keys.detach().clone(), values.detach().clone())


@dataclass(frozen=True)
class MixedPairs:
    """Keys and values of its own for each row."""

    pairs: KeysValues

    def __call__(self, rows: int) -> KeysValues:
        return self.pairs


class Inputs(nn.Module):
    """What an MLP starts from, and its first map: tanh(W₁e)."""

    def __init__(self, length: int, width: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(length, width))
        self.map = nn.Linear(width, hidden)

    def forward(self) -> Tensor:
        """[n, h]."""
        return torch.tanh(self.map(self.weight))


class MadePair(PrefixPair):
    """Keys and values made by an MLP; the layers may share its first half."""

    def __init__(self, inputs: Inputs, hidden: int, dim: int) -> None:
        Addition.__init__(self)
        self.inputs = inputs
        self.make = nn.Linear(hidden, 2 * dim)

    @property
    def size(self) -> int:
        return self.inputs.weight.shape[0]

    def pair(self) -> tuple[Tensor, Tensor]:
        keys, values = self.make(self.inputs()).chunk(2, 1)
        return keys, values


class Shift(VirtualTokens):
    """No virtual token at all: only the real tokens' positions move, as they do in stock `peft`."""

    def __init__(self, length: int, words: Tensor) -> None:
        Addition.__init__(self)
        self.placed, self.moves = False, length
        self.register_buffer("weight", words.new_zeros(0, words.shape[1]), persistent=False)

    def folded(self) -> Addition:
        return self
