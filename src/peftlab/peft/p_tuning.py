"""P-tuning: virtual tokens made by a small network, which makes them easier to learn than on their own.

Liu et al. 2021 (arXiv 2103.10385): a bidirectional LSTM and an MLP over n learned inputs; stock `peft`'s choice is an
MLP alone. After training `peftlab.fold` computes the vectors once and lets the network go; a saved adapter keeps it
beside them, so that training can go on.

    peftlab.attach(base.model, "mine", peftlab.PTuning(tokens=20, encoder="lstm"))

Shapes: n virtual tokens, E embedding width, h hidden width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from peftlab.layers.addition import Addition
from peftlab.layers.embedding import Embedding
from peftlab.models.family import Family
from peftlab.models.model import Place
from peftlab.peft.method import Method, Stock, check_choice, check_number, check_whole
from peftlab.peft.virtual import LAYOUTS, MOST, VirtualTokens, prompt_config, read_prompt, why_not_prompt


@dataclass(frozen=True)
class PTuning(Method):
    """Virtual tokens, learned through an encoder."""

    name = "p_tuning"
    about = "learned vectors before the text, made by an LSTM or MLP (Liu et al. 2021)"
    kinds = ("tokens",)
    lr = 3e-3
    size_field = "hidden"
    stock_type = "P_TUNING"

    tokens: int = 20
    """how many virtual tokens"""
    encoder: str = "mlp"
    """mlp, lstm (the paper's), or none: the folded vectors alone"""
    hidden: int | None = None
    """width of the encoder; None: the embedding's"""
    encoder_layers: int = 2
    """of the LSTM"""
    dropout: float = 0.0
    """between the LSTM's layers, in training"""
    layout: str = "native"
    """native, or peft: where the virtual tokens stand (see `peft/virtual.py`)"""

    def __post_init__(self) -> None:
        check_whole(1, MOST, tokens=self.tokens)
        check_whole(1, 8, encoder_layers=self.encoder_layers)
        check_number(0, 0.99, dropout=self.dropout)
        check_choice("encoder", self.encoder, ENCODERS)
        check_choice("layout", self.layout, LAYOUTS)
        if self.hidden is not None:
            check_whole(1, MOST, hidden=self.hidden)

    def build(self, places: Mapping[str, Place]) -> dict[str, Addition]:
        built: dict[str, Addition] = {}
        for key, place in places.items():
            assert isinstance(place.owner, Embedding)
            words = place.owner.words.weight
            start = torch.randn(self.tokens, words.shape[1], device=words.device)
            encoder = ENCODERS[self.encoder](words.shape[1], self.hidden or words.shape[1], self)
            built[key] = EncodedTokens(start, self.layout, encoder)
        return built

    def folded(self) -> PTuning:
        return replace(self, encoder="none", hidden=None)

    def why_not_stock(self, family: Family) -> str | None:
        return why_not_prompt(self.layout)

    def to_stock(self, additions: Mapping[str, Addition], names: Mapping[str, str], config: Any) -> Stock:
        ((_, virtual),) = additions.items()
        assert isinstance(virtual, EncodedTokens)
        own = {
            "encoder_reparameterization_type": "LSTM" if self.encoder == "lstm" else "MLP",
            "encoder_hidden_size": self.hidden or config.embedding_dim or config.dim,
            "encoder_num_layers": self.encoder_layers,
            "encoder_dropout": self.dropout,
        }
        return Stock(prompt_config(self.tokens, config) | own, {"prompt_embeddings": virtual.vectors().detach()})

    @classmethod
    def from_stock(cls, stock: Stock, names: Mapping[str, str]) -> tuple[PTuning, dict[str, dict[str, Tensor]]]:
        vectors = read_prompt(stock)
        (key,) = (key for key in names if key.endswith(".tokens"))
        return cls(tokens=vectors.shape[0], encoder="none", layout="peft"), {key: {"weight": vectors}}


class EncodedTokens(VirtualTokens):
    """Vectors = encoder(weight)."""

    def __init__(self, inputs: Tensor, layout: str, encoder: nn.Module) -> None:
        super().__init__(inputs, layout)
        self.encoder = encoder

    def vectors(self) -> Tensor:
        return self.encoder(self.weight)

    def folded(self) -> Addition:
        return EncodedTokens(self.vectors().detach().clone(), "peft" if self.placed else "native", nn.Identity())


class LSTMEncoder(nn.Module):
    """The paper's: a bidirectional LSTM, then two linear maps.

    The LSTM is called as a function, because `torch.compile` refuses the module.
    """

    def __init__(self, width: int, hidden: int, method: PTuning) -> None:
        super().__init__()
        self.layers, self.hidden, self.dropout = method.encoder_layers, hidden, method.dropout
        self.lstm = nn.ParameterList(nn.LSTM(width, hidden, self.layers, bidirectional=True).parameters())
        self.mlp = nn.Sequential(nn.Linear(2 * hidden, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, width))

    def forward(self, inputs: Tensor) -> Tensor:
        """[n, E] → [n, E]."""
        start = inputs.new_zeros(2 * self.layers, 1, self.hidden)
        options = (True, self.layers, self.dropout, self.training, True, True)  # biases, …, both ways, batch first
        states, _, _ = torch.lstm(inputs[None], (start, start), list(self.lstm), *options)
        return self.mlp(states)[0]


def mlp(width: int, hidden: int, method: PTuning) -> nn.Module:
    """Three linear maps with ReLU between them."""
    return nn.Sequential(
        nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, width)
    )


ENCODERS: dict[str, Any] = {"lstm": LSTMEncoder, "mlp": mlp, "none": lambda *_: nn.Identity()}
