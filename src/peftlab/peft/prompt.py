"""Prompt tuning: n vectors before the text are all that learns.

Lester et al. 2021 (arXiv 2104.08691). They start at random, as words of the vocabulary, or as a text.

    peftlab.attach(base.model, "mine", peftlab.Prompt(tokens=20, init="text", text="Is this review positive?"))

Shapes: n virtual tokens, E embedding width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from peftlab.errors import UserError
from peftlab.layers.addition import Addition
from peftlab.layers.embedding import Embedding
from peftlab.models.family import Family
from peftlab.models.model import Place
from peftlab.peft.method import Method, Stock, check_choice, check_whole
from peftlab.peft.virtual import LAYOUTS, MOST, VirtualTokens, prompt_config, read_prompt, why_not_prompt


@dataclass(frozen=True)
class Prompt(Method):
    """Virtual tokens, learned directly."""

    name = "prompt"
    about = "learned vectors before the text, nothing else (Lester et al. 2021)"
    kinds = ("tokens",)
    lr = 1e-2
    size_field = "tokens"
    stock_type = "PROMPT_TUNING"

    tokens: int = 20
    """how many virtual tokens"""
    init: str = "vocabulary"
    """random, vocabulary (words drawn from it; of images random) or text"""
    text: str | None = None
    """with init = "text": repeated or cut to the number of tokens"""
    layout: str = "native"
    """native, or peft: where the virtual tokens stand (see `peft/virtual.py`)"""

    def __post_init__(self) -> None:
        check_whole(1, MOST, tokens=self.tokens)
        check_choice("init", self.init, ("random", "vocabulary", "text"))
        check_choice("layout", self.layout, LAYOUTS)
        if (self.init == "text") != (self.text is not None):
            raise UserError('init = "text" and text = "…" go together: give both or neither')

    def build(self, places: Mapping[str, Place]) -> dict[str, Addition]:
        return {key: VirtualTokens(self.start(place.owner), self.layout) for key, place in places.items()}

    def start(self, embedding: Any) -> Tensor:
        """The initial vectors [n, E]."""
        assert isinstance(embedding, Embedding)
        words = embedding.words.weight.detach()
        if self.init == "random":
            return torch.randn(self.tokens, words.shape[1], device=words.device) * words.std()
        if self.init == "vocabulary":
            return embedding.drawn(self.tokens)
        ids = embedding.tokenise(self.text or "")
        if not ids:
            raise UserError(f"text is {self.text!r}, which has no words: give some to start from")
        return words[torch.tensor([ids[i % len(ids)] for i in range(self.tokens)], device=words.device)].clone()

    def why_not_stock(self, family: Family) -> str | None:
        return why_not_prompt(self.layout)

    def to_stock(self, additions: Mapping[str, Addition], names: Mapping[str, str], config: Any) -> Stock:
        (virtual,) = additions.values()
        own = {"prompt_tuning_init": "RANDOM"}
        return Stock(
            prompt_config(self.tokens, config) | own, {"prompt_embeddings": virtual.get_parameter("weight").detach()}
        )

    @classmethod
    def from_stock(cls, stock: Stock, names: Mapping[str, str]) -> tuple[Prompt, dict[str, dict[str, Tensor]]]:
        vectors = read_prompt(stock)
        (key,) = (key for key in names if key.endswith(".tokens"))
        return cls(tokens=vectors.shape[0], init="random", layout="peft"), {key: {"weight": vectors}}
