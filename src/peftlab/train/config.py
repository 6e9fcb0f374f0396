"""What a run is: one strict schema, written in TOML, overridden with `--set section.key=value`.

base = "minilm"
[task]
name = "reviews"
[method]
name = "lora"
rank = 8
[train]
steps = 300
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

import tomli_w
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from peftlab.data.files import is_file
from peftlab.errors import UserError, unknown
from peftlab.peft import make_method
from peftlab.peft.method import Method
from peftlab.train.precision import pick_device, pick_precision


class Section(BaseModel):
    """Unknown keys are errors; values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Task(Section):
    """What to solve."""

    name: str = "reviews"
    """a short name, a folder, or a file"""
    text: str | None = None
    """of a file: the column of the text"""
    pair: str | None = None
    """of a file: the column of a second text"""
    label: str | None = None
    """of a file: the column of the label"""
    test: str | None = None
    """of a file: another file to test on; otherwise a fifth of the rows is kept for it"""
    limit: int | None = Field(None, ge=1)
    """train on at most so many rows"""
    test_limit: int | None = Field(None, ge=1)
    """test on at most so many rows of each part"""
    max_length: int = Field(128, ge=4)
    """longer texts lose their end"""


class Sentences(Section):
    """Sentences word by word."""

    name: str = "ud-english-ewt"
    """a short name, a file, or a folder with train.conllu (or .conll, .jsonl), dev.… and test.…"""
    max_length: int = Field(512, ge=4)
    """tokens of a sentence, at most as many as the base has positions; longer ones lose their last words, which then
    count as wrong"""
    layers: int | None = Field(None, ge=1)
    """blocks of the base that are used, the first so many; None: all. MiniLM, which was trained on whole sentences,
    knows most of words in the midst of its six"""
    limit: int | None = Field(None, ge=1)
    """train on at most so many sentences"""
    test_limit: int | None = Field(None, ge=1)
    """test, and choose the best checkpoint, by at most so many sentences"""


class Tag(Sentences):
    """What to tag, in the place of [task]."""

    column: Literal["upos", "xpos"] | None = None
    """of CoNLL-U: which parts of speech, the universal ones or the language's own [upos]"""
    dropout: float = Field(0.1, ge=0, lt=1)
    """before the head"""


class Parse(Sentences):
    """What to parse, in the place of [task]."""

    arc: int = Field(500, ge=1, le=8192)
    """width of a word's two views, as a dependent and as a head, by which heads are chosen"""
    label: int = Field(100, ge=1, le=8192)
    """the same for relations"""
    dropout: float = Field(0.33, ge=0, lt=1)
    """on the views"""


class Translate(Section):
    """What to translate, in the place of [task]."""

    name: str = "multi30k"
    """a short name, a folder with train.en, train.de …, or two files with a comma between them"""
    direction: str | None = None
    """of a folder: the language that is read and the one that is written [en-de]"""
    lowercase: bool = False
    """whether all is read, written and scored in lower case"""
    vocab: int = Field(8000, ge=300)
    """tokens of the vocabulary that both languages share, which a [model] learns from the training texts; a base has
    its own"""
    max_length: int = Field(128, ge=4)
    """tokens of a text; longer ones lose their end"""
    joined: int = Field(1, ge=1, le=10)
    """also texts of two, three … up to so many pairs joined, to train and to test on"""
    smoothing: float = Field(0.1, ge=0, lt=1)
    """share of each label that goes to all tokens alike"""
    beam: int = Field(5, ge=1)
    """texts that are followed at once when it is tested"""
    length_penalty: float = 1.0
    """the power of the length that their log-probability is divided by"""
    limit: int | None = Field(None, ge=1)
    """train on the first so many pairs"""
    test_limit: int | None = Field(None, ge=1)
    """test on the first so many pairs of each part"""


class LanguageModel(Section):
    """What to go on with, in the place of [task]."""

    name: str = "wikitext2"
    """a short name, a file, or a folder with train.txt, valid.txt and test.txt, or with any text files (*.txt)"""
    tokenizer: str | None = None
    """the folder of the tokenizer that a [model] is to have; None: a byte-level BPE vocabulary learned from the
    training text; a base has its own"""
    lowercase: bool = False
    """whether all is read and written in lower case"""
    vocab: int = Field(8000, ge=300)
    """tokens of the vocabulary that is learned"""
    units: Literal["bytes"] | None = None
    """bytes: a token of a [model] is a byte, and no vocabulary is learned; None: a piece of a word"""
    length: int = Field(128, ge=2)
    """tokens that are read at once; the text is cut into such rows"""
    loss_chunk: int = Field(0, ge=0)
    """tokens of a batch that are scored at a time, to save memory where the vocabulary is large; 0: all"""
    temperature: float = Field(0.8, gt=0)
    """of the tokens that `predict` draws: below 1 the likely becomes likelier"""
    top_p: float = Field(0.95, gt=0, le=1)
    """only the likeliest tokens that together have this probability"""
    max_new: int = Field(100, ge=1)
    """the most tokens that are written where the line does not end before"""
    limit: int | None = Field(None, ge=1)
    """train on the first so many lines"""
    test_limit: int | None = Field(None, ge=1)
    """test on the first so many lines of each part"""


class Pretraining(Section):
    """What text to pretrain an encoder on, in the place of [task]."""

    name: str = "wikitext2"
    """a short name, a file, or a folder with train.txt, valid.txt and test.txt, or with any text files (*.txt)"""
    tokenizer: str | None = None
    """the folder of the tokenizer that a [model] is to have; None: a WordPiece vocabulary learned from the training
    text; a base has its own"""
    vocab: int = Field(8000, ge=30)
    """tokens of that vocabulary"""
    lowercase: bool = False
    """whether it reads all in lower case"""
    length: int = Field(128, ge=8)
    """tokens of a row; the text is cut into such rows"""
    share: float = Field(0.15, gt=0, le=0.5)
    """of the tokens that is masked"""
    whole_words: bool = False
    """whether all pieces of a word are masked, or none"""
    limit: int | None = Field(None, ge=1)
    """train on the first so many lines"""
    test_limit: int | None = Field(None, ge=1)
    """test, and choose the best checkpoint, by the first so many lines of each part"""


class MaskedTokens(Pretraining):
    """Guess masked tokens, as BERT does."""


class ReplacedTokens(Pretraining):
    """Find tokens that a generator replaced, as ELECTRA does."""

    generator: float = Field(0.25, gt=0, le=1)
    """its width as a fraction of the discriminator's, which is the base that is kept"""
    sharing: Literal["none", "embeddings", "all"] = "embeddings"
    """the weights that both have; all needs generator = 1"""
    weight: float = Field(50.0, gt=0)
    """of the discriminator's loss, beside the generator's"""
    adversarial: bool = False
    """whether the generator learns to fool the discriminator, by policy gradient, and not to guess right"""
    two_stage: bool = False
    """whether the generator learns alone in the first half of the steps; the discriminator starts as its copy and
    learns alone in the second; needs generator = 1 and sharing = none"""


class Images(Section):
    """What images to label, in the place of [task]."""

    name: str = "digits"
    """digits, fashion-mnist, a folder of IDX files, of class folders or of Parquet files, or a hub id"""
    classes: tuple[str, ...] | None = Field(None, min_length=2)
    """only images of these, numbered in this order; None: of all that there are"""
    size: int | None = Field(None, ge=2, le=4096)
    """side in pixels that images are brought to; None: what the base was made for, or what a [model]'s data has"""
    augment: bool = False
    """whether images are moved, turned and zoomed a little, another way each time they are seen in training"""
    flip: bool = False
    """whether every second is also mirrored then: for photos, not for digits"""
    broken: Literal["stop", "skip"] = "stop"
    """what to do at a file that is no image, or a class without any: stop, or tell it and go on without"""
    limit: int | None = Field(None, ge=1)
    """train on at most so many images"""
    test_limit: int | None = Field(None, ge=1)
    """test on at most so many images of each part"""


class Train(Section):
    """How to train."""

    steps: int | None = Field(None, ge=1)
    """optimizer steps; None: as many as `epochs` need"""
    epochs: float = Field(3, gt=0)
    """passes over the training rows, where no number of steps is given"""
    batch: int = Field(32, ge=1)
    """rows a step"""
    accumulate: int = Field(1, ge=1)
    """parts that a step's rows are computed in"""
    lr: float | None = Field(None, gt=0)
    """peak learning rate, but for a head that has its own; None: the method's own"""
    head_lr: float | None = Field(None, gt=0)
    """that of the head; None: 0.002 for a tagger's or a parser's, which are new and large, for others as `lr`"""
    weight_decay: float = Field(0.01, ge=0)
    """of AdamW, on matrices"""
    warmup: float = Field(0.06, ge=0, lt=1)
    """share of the steps in which the rate rises"""
    schedule: Literal["linear", "cosine", "constant", "inverse_sqrt"] = "linear"
    """how it falls after that"""
    clip: float = Field(1.0, gt=0)
    """largest norm of the gradient"""
    validation: float = Field(0.1, gt=0, lt=1)
    """share of the training rows that chooses the best checkpoint; never the test"""
    evaluations: int = Field(5, ge=1)
    """how often in a run"""
    patience: int | None = Field(None, ge=1)
    """stop after so many evaluations without a better one; None: never"""
    pool: Literal["first", "mean"] = "mean"
    """what the head reads: the mean of the tokens, or the first, as `transformers`' own classifiers do"""
    nonfinite: Literal["stop", "skip"] = "stop"
    """what to do at a step whose loss or gradient is not finite; it never reaches the weights"""
    checkpoint: float = Field(60.0, ge=0)
    """seconds between checkpoints, from which an interrupted run goes on; 0: after each step"""
    cache: int | None = Field(None, ge=0)
    """bytes for what is frozen below the lowest block that learns, so that it is computed once and not in each epoch;
    computed once it has no dropout. None: 2 GiB, but no more than a quarter of the memory that is free; 0: none"""
    tensorboard: bool = False
    """also write TensorBoard's files (pip install 'peftlab[tensorboard]')"""
    precision: Literal["auto", "fp32", "bf16", "int16"] = "auto"
    """auto: bf16 where a GPU, or a processor by tiles, is fast with it; int16 where there is a base and our own kernels
    multiply by its weights with 16-bit integers; else fp32. A labeller, tagger or parser that was trained in int16
    answers in it, too, all others in fp32"""
    threads: int | None = Field(None, ge=1)
    """None: all cores; it changes sums in their last bits, so it is part of a run"""
    seed: int = Field(0, ge=0, lt=2**32)
    """of initial weights, order of rows and dropout"""


PRETRAINING = ("masked_tokens", "replaced_tokens")
"""tasks that train every weight, whoever says nothing of a method"""
TASKS = ("tag", "parse", "translate", "language_model", "images", *PRETRAINING)
"""sections that stand in the place of [task]"""


class Config(Section):
    """A run."""

    base: str = "minilm"
    """short name, folder or hub id"""
    task: Task = Field(default_factory=Task)
    tag: Tag | None = None
    """the task, where it is to tag words"""
    parse: Parse | None = None
    """the task, where it is to parse sentences"""
    translate: Translate | None = None
    """the task, where it is to translate"""
    language_model: LanguageModel | None = None
    """the task, where it is to go on with a text"""
    images: Images | None = None
    """the task, where it is to label images"""
    masked_tokens: MaskedTokens | None = None
    """the task, where a base is to be pretrained as BERT was"""
    replaced_tokens: ReplacedTokens | None = None
    """the task, where it is to be pretrained as ELECTRA was"""
    model: dict[str, Any] | None = None
    """a model of one's own in the place of a base: its `kind`, and what its configuration leaves open"""
    method: dict[str, Any] = Field(default_factory=lambda: {"name": "lora"})
    """`name`, and the method's own settings"""
    train: Train = Field(default_factory=Train)

    @property
    def layers(self) -> int | None:
        """The blocks of the base that are used, where it is not all."""
        asked = self.tag or self.parse
        return None if asked is None else asked.layers

    @property
    def pretrains(self) -> bool:
        """Whether the task is to pretrain a base."""
        return any(getattr(self, name) is not None for name in PRETRAINING)

    def build_method(self, where: str = "the configuration") -> Method:
        """The method with its settings."""
        return make_method(self.method, where)

    def completed(self, before: Config | None = None) -> Config:
        """With all that was left to the method's defaults and to the machine; where the run began before, as there."""
        method = self.build_method()
        started = self.train if before is None else before.train
        # not asked for again: a machine that lacks what a finished run had can still read it
        kept = self.train.precision == "auto" and started.precision != "auto"
        fresh = self.model is not None
        found = {
            "lr": self.train.lr or (method.lr if self.model is None else FRESH),
            "precision": started.precision if kept else pick_precision(self.train.precision, pick_device(), fresh),
            "threads": self.train.threads or started.threads or torch.get_num_threads(),
        }
        settings = {key: value for key, value in asdict(method).items() if value is not None}
        train = self.train.model_copy(update=found)
        return self.model_copy(update={"method": {"name": method.name, **settings}, "train": train})

    def fingerprint(self, *hashes: str) -> str:
        """SHA-256 of the configuration and, by their hashes, of data and base: two runs that share it are the same.

        How often it is saved and who watches changes nothing in it.
        """
        settings = self.model_dump(exclude={"train": {"checkpoint", "tensorboard"}}, exclude_none=True)
        text = json.dumps([settings, hashes], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_toml(self) -> str:
        """As it is written into the run's folder."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


FRESH = 5e-4
"""learning rate of a [model] of one's own, where none is asked for: it starts from nothing"""


def read_config(text: str, overrides: Sequence[str] = (), where: str = "the configuration") -> Config:
    """A configuration from TOML, with `section.key=value` on top."""
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"{where} is not valid TOML: {error}") from None
    for override in overrides:
        override_value(content, override)
    return make_config(content, where)


def make_config(content: Mapping[str, Any], where: str = "the configuration") -> Config:
    """Check and complete settings; the first mistake is told in one sentence."""
    if "model" in content or any(name in content for name in PRETRAINING):  # there is nothing that could be adapted
        content = {"method": {"name": "full"}, **content}
    try:
        config = Config.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        *path, key = first["loc"]
        if first["type"] == "extra_forbidden":
            section: Any = Config
            for name in path:
                kind = section.model_fields[name].annotation
                section = next((part for part in get_args(kind) if isinstance(part, type(Section))), kind)
            place = f"key of [{'.'.join(map(str, path))}] in {where}" if path else f"key in {where}"
            raise unknown(place, str(key), section.model_fields) from None
        dotted = ".".join(map(str, first["loc"]))
        raise UserError(f"{dotted} in {where} is {first['input']!r}: {first['msg'].lower()}") from None
    tasks = [name for name in TASKS if getattr(config, name) is not None]
    if len(tasks) > 1:
        raise UserError(f"{where} has [{tasks[0]}] and [{tasks[1]}]: a run has one task, so leave one of them out")
    config.build_method(where)
    return config


def override_value(content: dict[str, Any], override: str) -> None:
    """`train.lr=1e-3` into nested settings; the value is TOML, or else a text."""
    key, equals, value = override.partition("=")
    if not equals:
        raise UserError(f"--set {override!r} has no value: write section.key=value, such as train.lr=1e-3")
    try:
        parsed = tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        parsed = value
    *path, last = key.strip().split(".")
    for name in path:
        content = content.setdefault(name, {})
        if not isinstance(content, dict):
            raise UserError(f"--set {override!r}: {name} is a value, not a section")
    content[last] = parsed


def read_config_file(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration in a file."""
    if not is_file(path):
        raise UserError(f"{path} is missing: give a TOML file, such as one of a run's folder")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from None
    return read_config(text, overrides, str(path))
