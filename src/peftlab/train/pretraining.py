"""Pretraining an encoder on text: one of one's own with a vocabulary that it learns, or a base that goes on.

    [masked_tokens]            base = "folder of a BERT, an ELECTRA or a run"
    name = "wikitext2"         [replaced_tokens]
    [model]                    name = "letters/"
    kind = "encoder"
    …

What is left in the run's folder is a base like any other, with the head that it was pretrained with:

    peftlab train configs/electra-tiny.toml --out runs/my-electra
    peftlab compare --base runs/my-electra
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from peftlab.data.sources import fetch_base
from peftlab.data.text import Text, load_text
from peftlab.data.tokenizer import Tokenizer
from peftlab.data.tokens import learn_vocabulary, token_rows
from peftlab.errors import UserError, unknown
from peftlab.models.base import Base, load
from peftlab.models.encoder import Encoder
from peftlab.models.flops import TRAINED, electra_training_flops, masked_flops
from peftlab.models.model import Model
from peftlab.models.own import make
from peftlab.models.pretrained import head_activation, load_head, published_as
from peftlab.models.pretraining import (
    Electra,
    MaskedLanguageModel,
    MaskedTokenHead,
    ReplacedTokenHead,
    make_generator,
)
from peftlab.peft import Full
from peftlab.tasks.masked_tokens import MaskedRows, MaskedTokens, masking
from peftlab.tasks.replaced_tokens import ReplacedTokens
from peftlab.tasks.task import Task
from peftlab.train.artefact import trained_folder
from peftlab.train.asking import ask
from peftlab.train.config import Config, Pretraining
from peftlab.train.config import ReplacedTokens as ReplacedTokensConfig
from peftlab.train.loop import Training
from peftlab.train.precision import pick_device
from peftlab.train.stop import Stop
from peftlab.train.vocabulary import check_tokenizer, tokenizer_hash
from peftlab.train.work import Work


class PretrainingWork(Work):
    """What both tasks share."""

    section: ClassVar[str]
    """of the configuration"""
    head: ClassVar[type[MaskedTokenHead] | type[ReplacedTokenHead]]
    """that the base is pretrained with"""
    settings: ClassVar[dict[str, Any]] = {}
    """of a model of one's own, where it says nothing else"""
    shares: ClassVar[dict[str, float]] = {}
    """what becomes of masked tokens, where it is not as in BERT"""

    def __init__(self, config: Config, asked: Pretraining) -> None:
        super().__init__(config)
        if type(config.build_method()) is not Full:
            raise UserError(f"pretraining trains every weight, and {config.method['name']} does not: use full")
        self.asked = asked
        data = load_text(asked.name)
        few = slice(asked.test_limit)
        tests = {name: part[few] for name, part in data.tests.items()}
        self.data = replace(data, train=data.train[: asked.limit], validation=data.validation[few], tests=tests)
        self.name = data.name

    def hashes(self) -> tuple[str, ...]:
        return self.data.fingerprint(), *self.base_hash(), *tokenizer_hash(self.asked.tokenizer)

    @abstractmethod
    def model(self) -> Model:
        """The base with what it is pretrained with."""

    @abstractmethod
    def task(self) -> Task:
        """What is learned."""

    @abstractmethod
    def flops(self) -> float:
        """The operations of the training, forward and backward, without evaluations."""

    def training(self) -> Training:
        self.base = self.open()
        length = min(self.asked.length, self.base.room)
        how = masking(self.base.tokenizer, self.asked.share, self.asked.whole_words, **self.shares)

        def rows(part: Text, name: str) -> MaskedRows:
            text = token_rows(self.base.tokenizer, part, length, f"the {name} part of {self.name}")
            return MaskedRows(text, how, fixed=name != "train")

        self.rows = rows(self.data.train, "train")
        held = rows(self.data.validation, "validation")
        self.tests = {name: rows(part, name) for name, part in self.data.tests.items()}
        model = self.model().to(pick_device())
        self.now = Training(model, self.config.build_method(), self.task(), self.rows, held, self.config.train)
        return self.now

    def open(self) -> Base:
        """The encoder to be trained, with its tokenizer."""
        asked = self.asked
        if self.config.model is None:
            base = load(self.config.base)
            if not isinstance(base.model, Encoder):
                kind = f"base {base.name!r} is of the kind {type(base.model).__name__}"
                raise UserError(f"{kind}: give a BERT, an ELECTRA or another encoder, or a [model] to train")
            check_tokenizer(self.section, asked.tokenizer, base)
            return base
        settings = {"kind": "encoder", "max_length": asked.length, **self.settings, **self.config.model}
        if settings["kind"] != "encoder":
            raise unknown("kind in [model]", str(settings["kind"]), ("encoder",))
        if asked.tokenizer is not None:
            tokenizer = Tokenizer.load(asked.tokenizer)
        else:
            tokenizer = learn_vocabulary(self.data.train.lines, "wordpiece", asked.vocab, asked.lowercase)
        model = make(settings, {"vocab": tokenizer.vocab_size, "pad": tokenizer.pad or 0})
        if model.config.max_length < asked.length:
            lengths = f"model.max_length is {model.config.max_length} and {self.section}.length {asked.length}"
            raise UserError(f"{lengths}: the model needs as many positions as a row has tokens")
        return Base("model", model, tokenizer, published_as(model.config, self.head), {})

    def pretrained(self) -> Any:
        """The head: the base's own where it has one, a new one else."""
        head = self.head(self.base.config, head_activation(self.head, self.base.family, self.base.config))
        if self.config.model is None:
            load_head(fetch_base(self.config.base), self.base.family, head)
        return head

    def test(self, training: Training, stop: Stop) -> dict[str, list[Any]]:
        return {
            name: ask(training.model, part, training.task.judge, training.precision, stop)
            for name, part in self.tests.items()
        }

    def result(self, answers: dict[str, list[Any]]) -> dict[str, Any]:
        """How well masked tokens are guessed, and replaced ones found, in each test part and in all; and the cost."""
        task = self.now.task
        every = task.measures([row for rows in answers.values() for row in rows])
        said = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in every.items())
        tests = {name: task.measures(rows) for name, rows in answers.items()}
        return {**every, "said": said, "tests": tests, "tokens": self.now.progress.tokens, "flops": self.flops()}

    def save(self, folder: Path) -> list[Path]:
        """The base with its head; where no family has a place for it, the base alone."""
        place = trained_folder(folder, self.config)
        model: Any = self.now.model.cpu()
        segments = self.base.model.embedding.segments
        if self.config.model is not None and segments is not None:
            # a row is one text: the others were never seen, and what is no longer trained can't make up for it
            segments.weight.data[1:] = segments.weight.data[0]
        self.base.save(place, pretrained=model.head)
        return [place]

    @property
    def seen(self) -> float:
        """Rows that were trained on."""
        return self.now.progress.tokens / self.rows.text.length


class PretrainingMasked(PretrainingWork):
    """Masked tokens, as BERT."""

    section, head = "masked_tokens", MaskedTokenHead

    def __init__(self, config: Config) -> None:
        assert config.masked_tokens is not None
        super().__init__(config, config.masked_tokens)

    def model(self) -> Model:
        return MaskedLanguageModel(self.base.model, self.pretrained())

    def task(self) -> Task:
        return MaskedTokens()

    def flops(self) -> float:
        model: Any = self.now.model
        return TRAINED * self.seen * masked_flops(model, self.rows.text.length, self.rows.places)


class PretrainingElectra(PretrainingWork):
    """Replaced tokens, as ELECTRA; the discriminator is what is kept."""

    section, head = "replaced_tokens", ReplacedTokenHead
    settings: ClassVar[dict[str, Any]] = {"head": "gelu"}
    shares: ClassVar[dict[str, float]] = {"masked": 1.0, "drawn": 0.0}
    asked: ReplacedTokensConfig

    def __init__(self, config: Config) -> None:
        asked = config.replaced_tokens
        assert asked is not None
        if asked.two_stage and (asked.generator != 1 or asked.sharing != "none"):
            raise UserError(
                "replaced_tokens.two_stage makes the discriminator a copy of the generator, which then no longer "
                'learns: it needs generator = 1 and sharing = "none"'
            )
        if asked.two_stage and config.model is None:
            raise UserError(
                f"replaced_tokens.two_stage begins with a new generator, so that nothing of base {config.base!r} would "
                "be left: give a [model] in its place, or leave two_stage out"
            )
        if asked.two_stage and asked.adversarial:
            raise UserError("replaced_tokens: adversarial needs both networks at once, two_stage has one: choose one")
        super().__init__(config, asked)

    def model(self) -> Model:
        asked, encoder = self.asked, self.base.model
        activation = head_activation(MaskedTokenHead, self.base.family, self.base.config)
        generator = make_generator(encoder, asked.generator, asked.sharing, activation)
        return Electra(encoder, self.pretrained(), generator, asked.adversarial)

    def task(self) -> Task:
        return ReplacedTokens(self.asked.weight)

    def training(self) -> Training:
        training = super().training()
        if self.asked.two_stage:
            training.method = TwoStages(training.steps // 2)
        return training

    def flops(self) -> float:
        model: Any = self.now.model
        alone = (self.now.steps // 2) / self.now.steps if self.asked.two_stage else 0.0
        return self.seen * electra_training_flops(model, self.rows.text.length, self.rows.places, alone)


@dataclass(frozen=True)
class TwoStages(Full):
    """First the generator alone, then the discriminator, which starts as its copy (the paper's section 3.2)."""

    switch: int = 0
    """the step of the second stage's beginning"""

    def thaw(self, model: Any, step: int) -> None:
        second = step >= self.switch
        # a run that goes on within the second stage has both networks as they were, and all of them unfrozen
        if second and not model.head.out.weight.requires_grad:
            model.encoder.load_state_dict(model.generator.encoder.state_dict(), strict=False)
        for part in (model.encoder, model.head):
            part.requires_grad_(second)
        model.generator.requires_grad_(not second)
