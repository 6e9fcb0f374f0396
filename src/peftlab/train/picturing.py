"""Training a classifier of images: a Vision Transformer of one's own, or a base with an adapter and a head.

[images]                   base = "folder of a ViT, a DeiT or a run's model"
name = "digits"            [images]
[model]                    name = "flowers/"
kind = "vit"               [method]
…                          name = "lora"
"""

from __future__ import annotations

from peftlab.data.augment import Augment
from peftlab.data.examples import Labelled
from peftlab.data.images import ImageReader
from peftlab.data.pictures import Pictures, load_pictures
from peftlab.errors import UserError, unknown
from peftlab.models.base import Base, load
from peftlab.models.own import OWN, make
from peftlab.tasks.classify import Pictured
from peftlab.train.classifying import Labelling, limited
from peftlab.train.config import Config

KINDS = ("vit", "cnn")
"""models of one's own that read images"""


class Picturing(Labelling[Pictures]):
    """Labels for images."""

    light = False
    given: Base
    """the base, where there is one: its images' size decides how the data is read"""

    def __init__(self, config: Config) -> None:
        assert config.images is not None
        self.asked = config.images
        super().__init__(config)

    def read(self) -> Labelled[Pictures]:
        asked, size = self.asked, self.asked.size
        if self.config.model is not None:
            channels = self.config.model.get("channels")
        else:
            self.given = load(self.config.base)
            if not self.given.model.reads_images:
                kind = f"base {self.given.name!r} is of the kind {type(self.given.model).__name__}"
                raise UserError(f"{kind}: give a ViT, a DeiT, or a [model] to train")
            size, channels = size or self.given.config.image, self.given.config.channels
        data = load_pictures(asked.name, size, channels, asked.broken, asked.classes)
        return limited(data, asked.limit, asked.test_limit)

    def open(self) -> Base:
        """A base; or a model of one's own, of the images' size, that knows the mean and deviation of their pixels."""
        if self.config.model is None:
            return self.given
        settings, pixels = {"kind": "vit", **self.config.model}, self.data.train.pixels
        if settings["kind"] not in KINDS:
            raise unknown("kind in [model]", str(settings["kind"]), KINDS)
        size = self.asked.size or max(pixels.shape[2:])
        model = make({"channels": pixels.shape[1], **settings}, {"image": size})
        return Base("model", model, ImageReader.of(pixels), OWN, {})

    def texts(self, part: Pictures) -> list[str]:
        return [f"image {row}" for row in part.rows]

    def first(self, count: int) -> list[str]:
        train = self.data.train
        size = "×".join(map(str, train.pixels.shape[2:]))
        return [f"{self.labels[label]}: an image of {size} pixels" for label in train.labels[:count]]

    def encoded(self, part: Pictures, training: bool = False) -> Pictured:
        reader, config = self.base.reader, self.base.config
        assert isinstance(reader, ImageReader)
        size = self.asked.size or config.image
        augment = Augment(flip=self.asked.flip) if training and self.asked.augment else None
        return Pictured(part, reader, size, config.channels, config.tokens(size), augment)
