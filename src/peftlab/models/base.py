"""A base: a pretrained model with its tokenizer, or its reader of images, by short name, folder or hub id.

base = load("minilm")
out = base.model(base.encode([("a premise", "a hypothesis")]))
base.save("folder")        # what `transformers` loads
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from torch import Tensor

from peftlab.data.batch import Batch, Images
from peftlab.data.files import check_manifest, make_folder, sha256, write_bytes, write_manifest
from peftlab.data.images import ImageReader
from peftlab.data.sources import READER_FILES, fetch_base
from peftlab.data.tensors import weight_files
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.layers.embedding import Embedding
from peftlab.models.encoder import Reader
from peftlab.models.heads import Classifier, ClassifierHead
from peftlab.models.pretrained import load_checkpoint, save_checkpoint
from peftlab.models.pretraining import PretrainingHead
from peftlab.models.sentence import model_files


@dataclass(frozen=True, repr=False)
class Base:
    """What `load` gives."""

    name: str
    """what it was loaded by"""
    model: Any
    """that reads or writes texts, or reads images"""
    reader: Tokenizer | ImageReader
    """what makes batches for it"""
    family: str
    """the published family (`models/families.py`)"""
    settings: dict[str, Any]
    """the checkpoint's own config.json, kept for writing it again"""

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.model.config

    @property
    def tokenizer(self) -> Tokenizer:
        """Of a base that reads text."""
        if not isinstance(self.reader, Tokenizer):
            raise UserError(f"{self.name} reads images and has no tokenizer: give it pixels by base.images(pixels)")
        return self.reader

    def images(self, pixels: Tensor) -> Images:
        """Pixels of 8 bits [B, C, H, W], of any size, to a batch on the model's device."""
        if not isinstance(self.reader, ImageReader):
            raise UserError(f"{self.name} reads text and no images: give it texts by base.encode(texts)")
        return self.reader.read(pixels).to(next(self.model.parameters()).device)

    def encode(
        self,
        texts: str | Sequence[str | tuple[str, str]],
        truncate: bool = False,
        pad_side: Literal["left", "right"] = "right",
    ) -> Batch:
        """Texts, or pairs of texts, to a batch on the model's device.

        A text longer than the positions, less those that active virtual tokens take, is an error unless `truncate`.
        """
        batch = self.tokenizer.encode(texts, max_length=self.room, truncate=truncate, pad_side=pad_side)
        return batch.to(next(self.model.parameters()).device)

    @property
    def room(self) -> Any:
        """How many tokens a text may have: the positions, less those that active virtual tokens take."""
        return self.model.room

    def shallow(self, layers: int | None) -> Base:
        """With its first blocks alone; None: as it is.

        The last blocks of a base that was trained on whole texts know less of single words than those before them.
        """
        if layers is not None:
            if not isinstance(self.model, Reader):
                raise UserError(f"{self.name} is a {type(self.model).__name__}, of which no blocks can be left out")
            self.model.shorten(layers)
        return self

    def save(
        self,
        folder: str | Path,
        head: str | None = None,
        max_length: int | None = None,
        pretrained: PretrainingHead | None = None,
    ) -> None:
        """Write model, configuration and reader as `transformers` reads them, with a manifest of their SHA-256.

        With `head`, the name of an adapter, its classifier is written too: for `AutoModelForSequenceClassification`,
        or where it pools the mean for `SentenceTransformer`, which cuts texts after `max_length` tokens (None: after
        as many as there are positions). With `pretrained` that head is, for `AutoModelForMaskedLM` or ELECTRA's
        `AutoModelForPreTraining`.
        """
        folder = Path(folder)
        make_folder(folder)
        about = self.model.adapters[head].head if head in self.model.adapters else None
        mean = isinstance(about, Classifier) and about.pool == "mean"
        if head is None or about is None or not mean or isinstance(self.reader, ImageReader):
            files = {}
            names = save_checkpoint(self.model, self.family, self.settings, folder, head, pretrained)
        else:
            module = cast(ClassifierHead, self.model.head.get(head))
            files = model_files(module, max_length or self.config.max_length)
            names = save_checkpoint(self.model, self.family, self.settings | about.settings, folder)
        for file, content in files.items():
            (folder / file).parent.mkdir(exist_ok=True)
            write_bytes(folder / file, content)
        write_manifest(folder, [*names, *files, *self.reader.save(folder)])

    def __repr__(self) -> str:
        tensors = {tensor.data_ptr(): tensor.numel() for tensor in self.model.base_state().values()}
        return f"Base({self.name!r}: {self.family}, {self.model.shape}, {sum(tensors.values()) / 1e6:.1f}M parameters)"


class Loaded(NamedTuple):
    """A base that is in memory, and the hash of what it was read from."""

    base: Base
    fingerprint: str


def base_fingerprint(name: str | Path) -> str:
    """The SHA-256 of a base's weights, configuration and reader."""
    folder = fetch_base(str(name))
    files = [*weight_files(folder), "config.json", *READER_FILES]
    found = [[file, sha256(folder / file)] for file in files if (folder / file).is_file()]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def load(name: str | Path) -> Base:
    """`peftlab.load`, for those who have torch already."""
    return open_base(name, fetch_base(str(name)))


def open_base(name: str | Path, folder: Path) -> Base:
    """The base of that name, whose files are in the folder."""
    if folder.is_relative_to(Path(name).expanduser()):  # a path; what was fetched by a name is checked already
        check_manifest(folder)
    model, family, settings = load_checkpoint(folder)
    if model.reads_images:
        return Base(str(name), model, ImageReader.load(folder, settings), family, settings)
    tokenizer = Tokenizer.load(folder)
    for module in model.modules():
        if isinstance(module, Embedding):
            module.tokenise = tokenizer.ids
    return Base(str(name), model, tokenizer, family, settings)
