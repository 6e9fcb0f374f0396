"""The whole Transformer: an encoder reads the source, a decoder that attends to it writes the target.

Vaswani et al. 2017 (arXiv 1706.03762), figure 1. Marian and BART are configurations of it.

    model = Seq2Seq(seq2seq_config(vocab=8000, dim=256, layers=3, heads=4, inner=1024, start=1, end=2))
    model(Pair(source, target)).logits                       # teacher forcing: position t speaks of token t + 1

Shapes: B rows, S tokens of the source, T of the target, n virtual tokens, D width, H heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from peftlab.data.batch import Batch, Pair
from peftlab.errors import UserError
from peftlab.layers import masks
from peftlab.layers.attention import Look
from peftlab.layers.site import Route
from peftlab.models.decoder import Decoder, DecoderConfig, DecoderMemory, Looks, Source
from peftlab.models.encoder import Encoder, EncoderConfig
from peftlab.models.model import Output
from peftlab.models.writer import Choice, Memory, Writer


@dataclass(frozen=True)
class Seq2SeqConfig:
    """The choices of an encoder–decoder."""

    encoder: EncoderConfig
    decoder: DecoderConfig
    shared: bool = True
    """whether source and target have one vocabulary and one table of vectors"""

    def __post_init__(self) -> None:
        if self.encoder.dim != self.decoder.dim:
            raise UserError(f"the encoder is {self.encoder.dim} wide, the decoder {self.decoder.dim}: make them equal")
        if self.shared and self.encoder.vocab != self.decoder.vocab:
            counts = f"{self.encoder.vocab} and {self.decoder.vocab}"
            raise UserError(f"the vocabularies have {counts} tokens: shared = true needs one")
        if not self.decoder.cross or self.decoder.start is None:
            raise UserError("the decoder of an encoder–decoder needs cross = true and a start token")


def seq2seq_config(start: int, end: int, shared: bool = True, tied: bool = True, **both: Any) -> Seq2SeqConfig:
    """Encoder and decoder of the same choices, which are those of `StackConfig`."""
    encoder = EncoderConfig(**{"segments": 0, **both})
    return Seq2SeqConfig(encoder, DecoderConfig(**both, cross=True, tied=tied, start=start, end=end), shared)


class Seq2Seq(Writer):
    """An encoder and a decoder."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config.encoder)
        self.decoder = Decoder(config.decoder, self.encoder.embedding.words if config.shared else None)
        self.marks, self.max_length = self.decoder.marks, config.decoder.max_length

    @property
    def room(self) -> int | None:
        return self.encoder.room

    @property
    def shape(self) -> str:
        return f"encoder of {self.encoder.shape}, decoder of {self.decoder.shape}"

    def forward(
        self,
        pair: Pair,
        adapters: Sequence[str | None] | None = None,
        attention: bool = False,
        route: Route | None = None,
    ) -> Output:
        """The scores of the token that follows each of the target's."""
        if adapters is not None:
            route = self.route(adapters, stable=False)
        output = self.states(pair, attention, route)
        return replace(output, scores=self.read(output.hidden, route))

    def states(self, pair: Pair, attention: bool = False, route: Route | None = None) -> Output:
        """The same without the scores, which a loss reads at real tokens alone."""
        of_source: list[Look] | None = [] if attention else None
        looks = Looks([], []) if attention else None
        source, m = self.look(pair.source, route, of_source)
        x, n = self.decoder.states(pair.target, source, route, looks)
        if of_source is None or looks is None:
            return Output(x[:, n:])
        return Output(
            x[:, n:],
            attention=tuple(look.weights[:, :, n:] for look in looks.own),
            cross=tuple(look.weights[:, :, n:] for look in looks.cross),
            source=tuple(look.weights[:, :, m:] for look in of_source),
        )

    def look(self, batch: Batch, route: Route | None, looks: list[Look] | None = None) -> tuple[Source, int]:
        """What the decoder will attend to; virtual tokens of the encoder are part of it. Gives their number too."""
        states = self.encoder.states(batch, route, looks)
        return Source(states.x, None if states.full else masks.padding(states.mask)), states.virtual

    def read(self, hidden: Tensor, route: Route | None = None) -> Tensor:
        """[..., D] → [..., V] the scores of all tokens."""
        return self.decoder.read(hidden, route)

    def begin(
        self, batch: Batch, adapters: Sequence[str | None] | None = None, room: int = 0
    ) -> tuple[DecoderMemory, Tensor]:
        choice = Choice.of(self, adapters)
        source, _ = self.look(batch, choice.route)
        assert self.marks.start is not None
        first = torch.full((len(batch), 1), self.marks.start, device=batch.ids.device)
        return self.decoder.prefill(Batch(first, torch.ones_like(first)), source, choice, room)

    def next(self, tokens: Tensor, memory: Memory) -> Tensor:
        return self.decoder.next(tokens, memory)
