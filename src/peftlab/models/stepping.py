"""One token more for each text, a call of C for each block (native/decode.c): torch is asked for nothing in between.

A step of writing computes so little that calling its sixty operations takes longer than the work. This is the short
way for blocks as published models have them, on a processor, with no addition acting; `DecoderBlock.forward` is the way
of all others, and a test holds the two equal.

Shapes: B texts, g hypotheses of each, D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from peftlab import native
from peftlab.layers.attention import Attention, Dot, Scaled
from peftlab.layers.cache import Fixed, Growing
from peftlab.layers.feedforward import FeedForward
from peftlab.layers.linear import Linear
from peftlab.layers.norm import LayerNorm
from peftlab.layers.residual import Absent, PostNorm, PreNorm
from peftlab.layers.site import Site
from peftlab.native.decode import ACTIVATIONS, AttentionMaps, Block, Map, Place, decode
from peftlab.native.norm import Norm

ALIKE = {"swish": "silu", "gelu_pytorch_tanh": "gelu_new"}


class Stepper:
    """The blocks of a decoder, which it holds on to, as the kernel knows them."""

    def __init__(self, blocks: nn.ModuleList) -> None:
        self.blocks = blocks
        self.told: list[Block] = []
        self.panels: list[Tensor] = []
        """the weights as the kernel wants them, to which `told` points"""
        self.rows = 0
        self.work = torch.empty(0)
        """what the kernel writes on its way, the same place at each step"""

    @classmethod
    def of(cls, blocks: nn.ModuleList, like: Tensor) -> Stepper | None:
        """None where the kernel does not know one of the blocks, or is not to compute with tensors like this one."""
        if not native.fits(like, like) or not all(map(known, blocks)):
            return None
        for layer in blocks.modules():
            if isinstance(layer, Linear):
                native.forget(layer.weight)
        return cls(blocks)

    def tell(self, rows: int) -> None:
        """Tell the kernel of the blocks, whose weights are packed where there are more than a few rows."""
        if not self.told or rows > native.UNPACKED >= self.rows:
            panels = self.panels if rows > native.UNPACKED else None
            self.told, self.rows = [tell(block, panels) for block in self.blocks], rows

    def __call__(
        self,
        x: Tensor,
        seen: Tensor | None,
        source_seen: Tensor | None,
        kept: Iterable[tuple[Growing, Fixed]],
    ) -> Tensor:
        """x [B, g, D] → [B, g, D]; seen [B, 1, g, t] and source_seen [B, 1, 1, S], or None for all."""
        B, g, D = x.shape
        self.tell(B * g)
        x = x.clone(memory_format=torch.contiguous_format)
        room = B * g * (4 * D + max(block.up.outputs for block in self.told))
        if self.work.numel() < room:
            self.work = x.new_empty(room)
        seen, source_seen = (None if t is None else t.contiguous() for t in (seen, source_seen))
        for block, (own, cross) in zip(self.told, kept, strict=True):
            own.reserve(x)
            keys, values = own.buffers
            place = Place(B, g, own.length, 0, keys.data_ptr(), values.data_ptr(), keys.stride(0))
            if seen is not None:
                place.seen, place.seen_row, place.seen_query = seen.data_ptr(), seen.stride(0), seen.stride(2)
            if cross.complete is not None:
                keys, values = cross.complete
                place.S, place.source_row = keys.shape[1], keys.stride(0)
                place.source_keys, place.source_values = keys.data_ptr(), values.data_ptr()
                if source_seen is not None:
                    place.source_seen, place.source_seen_row = source_seen.data_ptr(), source_seen.stride(0)
            decode(block, place, x, self.work)
        return x


def known(block: Any) -> bool:
    """Whether the kernel does what a block does."""
    parts = [block.self_attention, block.feedforward]
    if not isinstance(block.cross_attention, Absent):
        parts.append(block.cross_attention)
    return (
        all(type(part) in (PostNorm, PreNorm) and type(part.norm) is LayerNorm for part in parts)
        and len({type(part) for part in parts}) == 1
        and type(block.feedforward.sublayer) is FeedForward
        and ALIKE.get(block.feedforward.sublayer.name, block.feedforward.sublayer.name) in ACTIVATIONS
        and all(type(part.sublayer.score) in (Dot, Scaled) for part in parts if isinstance(part.sublayer, Attention))
        and all(idle(part) for part in parts)
    )


def idle(part: nn.Module) -> bool:
    """Whether no addition acts in a sublayer, and its weights are as the kernel reads them."""
    return all(
        site.idle(None) if isinstance(site, Site) else not isinstance(site, Linear) or site.weight.is_contiguous()
        for site in part.modules()
    )


def tell(block: Any, panels: list[Tensor] | None) -> Block:
    """A block as the kernel is told of it; with a list for `panels` its weights are packed, and left there."""
    own, cross, inner = block.self_attention, block.cross_attention, block.feedforward
    there = not isinstance(cross, Absent)
    name = inner.sublayer.name
    return Block(
        attention_of(own.sublayer, panels),
        attention_of(cross.sublayer, panels) if there else AttentionMaps(),
        map_of(inner.sublayer.up, panels),
        map_of(inner.sublayer.down, panels),
        norm_of(own.norm),
        norm_of(cross.norm) if there else Norm(),
        norm_of(inner.norm),
        there,
        isinstance(own, PreNorm),
        ACTIVATIONS.index(ALIKE.get(name, name)),
    )


def attention_of(layer: Attention, panels: list[Tensor] | None) -> AttentionMaps:
    """The maps of an attention."""
    maps = (map_of(part, panels) for part in (layer.q, layer.k, layer.v, layer.o))
    return AttentionMaps(*maps, layer.heads, layer.score.scale)


def map_of(layer: Linear, panels: list[Tensor] | None) -> Map:
    """A linear map."""
    packed = None if panels is None else native.packed(layer.weight, across=False)
    if panels is not None and packed is not None:
        panels.append(packed)
    return Map(*map(native.address, (layer.weight, packed, layer.bias)), layer.out_features, layer.in_features)


def norm_of(layer: LayerNorm) -> Norm:
    """A layer norm."""
    return Norm(layer.weight.data_ptr(), layer.bias.data_ptr(), layer.eps)
