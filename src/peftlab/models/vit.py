"""The Vision Transformer: an image is cut into patches, a patch becomes a token, and the encoder's blocks do the rest.

Dosovitskiy et al. 2020 (arXiv 2010.11929), pre-norm; DeiT (Touvron et al. 2020, arXiv 2012.12877) is the same with a
second mark, the distillation token. Any resolution can be given: positions are interpolated when it is read.

    vit = ViT(ViTConfig(dim=64, layers=4, heads=4, inner=128, image=28, patch=4, channels=1))
    vit(Images(pixels)).hidden                  # [B, 1 + 49, 64]

Shapes: B images, T tokens, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from peftlab.errors import UserError
from peftlab.layers.patches import ImageEmbedding
from peftlab.models.encoder import Pooler, Reader
from peftlab.models.stack import BlocksConfig, scatter


@dataclass(frozen=True, kw_only=True)
class ViTConfig(BlocksConfig):
    """The choices of a Vision Transformer."""

    image: int = 224
    """side in pixels of the square images that the positions are made for"""
    patch: int = 16
    """side of a patch"""
    channels: int = 3
    """of a pixel: 3 colours, or 1"""
    distilled: bool = False
    """DeiT's distillation token behind the class token"""
    tanh: bool = False
    """the pooler of `transformers`' base, a tanh layer on the class token; no head reads it"""
    residual: Literal["post", "pre", "none"] = "pre"
    """where the norm stands, or no residual connection"""
    dropout: float = 0.0
    """on embeddings and on each sublayer's output"""
    attention_dropout: float = 0.0
    """on attention weights"""

    head: ClassVar[str] = "first"
    """one linear map of the class token as it is"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("image", "patch", "channels")
        if self.patch > self.image:
            raise UserError(f"patch is {self.patch}, image is {self.image}: an image must have a whole patch")

    def tokens(self, side: int) -> int:
        """How many an image of this side becomes, with the marks."""
        return 1 + self.distilled + (side // self.patch) ** 2


class ViT(Reader):
    """A reader of images."""

    config: ViTConfig
    reads_images = True

    def __init__(self, config: ViTConfig) -> None:
        c = config
        embedding = ImageEmbedding(c.channels, c.image, c.patch, c.dim, c.distilled, c.dropout)
        super().__init__(c, embedding, Pooler(c.dim) if c.tanh else None)
        if not embedding.cls.is_meta:
            initialise(self, embedding)

    @property
    def shape(self) -> str:
        c = self.config
        side = c.image // c.patch
        return f"{c.layers} layers, {c.dim} wide, {c.heads} heads, {side}×{side} patches of {c.patch}×{c.patch}"


@torch.no_grad()
def initialise(vit: ViT, embedding: ImageEmbedding) -> None:
    """The initial weights: all normal with `init_std`, tokens and positions too; biases zero, norms one."""
    scatter(vit, vit.config.init_std)
    for vectors in (embedding.cls, embedding.distillation, embedding.positions.table):
        if vectors is not None:
            nn.init.normal_(vectors, std=vit.config.init_std)
