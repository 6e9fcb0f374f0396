"""A residual network: what the Vision Transformer is measured against, with locality and translation built in.

    x + conv(relu(norm(conv(relu(norm(x))))))

He et al. 2016 (arXiv 1603.05027). The norm is over groups of features (Wu & He 2018, arXiv 1803.08494): batch norm
keeps averages beside its weights, and what it makes of an image depends on the others in the batch.

    cnn = CNN(CNNConfig(dim=128, stages=3, blocks=1, image=28, channels=1))
    cnn(Images(pixels)).hidden                  # [B, 7·7, 128]

Each stage has half the height and width of the one before, and twice its features. The places of the last are what a
classifier is given as tokens; since there is no class token, their mean stands for it.

    python -m pytest tests/models/test_cnn.py

Shapes: B images, C channels, H × W pixels, D features, h × w places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peftlab.data.batch import Images
from peftlab.errors import UserError
from peftlab.layers.addition import States
from peftlab.layers.site import HeadSite, Route, check_route, name_sites
from peftlab.models.model import Model, Output


@dataclass(frozen=True, kw_only=True)
class CNNConfig:
    """The choices of a residual network."""

    dim: int
    """features of the last stage"""
    stages: int = 3
    """each but the first with half the height and width of the one before"""
    blocks: int = 2
    """a stage, of two convolutions each"""
    groups: int = 8
    """that features are normalised in"""
    image: int = 224
    """side in pixels of the images that it is made for; it reads others, too"""
    channels: int = 3
    """of a pixel: 3 colours, or 1"""

    head: ClassVar[str] = "first"
    """one linear map, as for a ViT"""
    init_std: ClassVar[float] = 0.02
    """of that map"""

    def __post_init__(self) -> None:
        for name in ("dim", "stages", "blocks", "groups", "image", "channels"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise UserError(f"{name} is {value!r}: it must be a whole number of at least 1")
        whole = self.groups * 2 ** (self.stages - 1)
        if self.dim % whole:
            raise UserError(f"dim is {self.dim}: it must be a multiple of {whole}, so that every stage has its groups")

    @property
    def widths(self) -> list[int]:
        """Features of each stage."""
        return [self.dim >> left for left in reversed(range(self.stages))]

    def tokens(self, side: int) -> int:
        """How many places the last stage has of an image."""
        return (-(-side // 2 ** (self.stages - 1))) ** 2


class ResidualBlock(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x)))))); with a stride or more features, x goes through a 1×1 convolution."""

    def __init__(self, before: int, dim: int, stride: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, before)
        self.conv1 = nn.Conv2d(before, dim, 3, stride, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, dim)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1, bias=False)
        same = before == dim and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, dim, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, before, H, W] → [B, D, ⌈H / stride⌉, ⌈W / stride⌉]."""
        y = self.conv1(F.relu(self.norm1(x)))
        return self.shortcut(x) + self.conv2(F.relu(self.norm2(y)))


class CNN(Model):
    """A reader of images. Of sites it has a head's alone: it is trained as a whole, or its head is."""

    config: CNNConfig
    reads_images = True

    def __init__(self, config: CNNConfig) -> None:
        super().__init__()
        c = self.config = config
        self.stem = nn.Conv2d(c.channels, c.widths[0], 3, padding=1, bias=False)
        self.stages = nn.ModuleList()
        for before, dim in zip([c.widths[0], *c.widths], c.widths, strict=False):
            first = ResidualBlock(before, dim, 1 if before == dim else 2, c.groups)
            rest = (ResidualBlock(dim, dim, 1, c.groups) for _ in range(c.blocks - 1))
            self.stages.append(nn.Sequential(first, *rest))
        self.norm = nn.GroupNorm(c.groups, c.dim)
        self.head = HeadSite()
        name_sites(self, "encoder")
        initialise(self)

    @property
    def shape(self) -> str:
        c = self.config
        return f"{c.stages} stages of {c.blocks} residual block(s), {c.dim} wide"

    def forward(
        self,
        images: Images,
        adapters: Sequence[str | None] | None = None,
        route: Route | None = None,
        logits_only: bool = False,
    ) -> Output:
        """The last map's places; all of it is needed for the logits, too."""
        if adapters is not None:
            route = self.route(adapters, stable=False)
        check_route(route, len(images))
        C, known = images.pixels.shape[1], self.config.channels
        if known != C:
            raise UserError(f"the images have {C} channel(s), the model reads {known}: convert them")
        x = self.stem(images.pixels.to(self.stem.weight.dtype))
        for stage in self.stages:
            x = stage(x)
        x = F.relu(self.norm(x)).flatten(2).transpose(1, 2)  # [B, h·w, D]
        states = States(x.mean(1), x, x.new_ones(x.shape[:2], dtype=torch.bool), None)
        scores, counts = self.head(states, route) or (None, None)
        return Output(x, scores=scores, counts=counts)


@torch.no_grad()
def initialise(cnn: CNN) -> None:
    """The initial weights: normal, so that relu keeps the variance (He et al. 2015, arXiv 1502.01852); norms one."""
    for module in cnn.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
