"""A training step of masked tokens and of replaced tokens, against `transformers` on the same objective.

python -m benchmarks.pretrain                  # --bf16 where the processor has it

Model, weights, batch, optimizer and precision are the same on both sides, those of configs/mlm-tiny.toml and
configs/electra-tiny.toml, and so are the masks of the first step: both sides have the same loss before it. The peer is
a plain PyTorch loop around `ElectraForMaskedLM` and `ElectraForPreTraining`, with fused AdamW, its embeddings tied as
ELECTRA's are; it gets its masked batches for nothing, ours are masked within the step. The text is random: no time
depends on it.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from benchmarks.race import race
from peftlab.data.tokens import TokenRows
from peftlab.models.encoder import EncoderConfig
from peftlab.models.own import make
from peftlab.models.pretrained import save_checkpoint
from peftlab.models.pretraining import (
    Electra,
    MaskedLanguageModel,
    MaskedTokenHead,
    ReplacedTokenHead,
    make_generator,
)
from peftlab.tasks.masked_tokens import MaskedRows, MaskedTokens, Masking
from peftlab.tasks.next_token import IGNORED
from peftlab.tasks.replaced_tokens import ReplacedTokens, fill
from peftlab.tasks.task import Task
from peftlab.train.config import Config, read_config_file
from peftlab.train.loop import backward
from peftlab.train.memory import keep_freed
from peftlab.train.optim import adamw
from peftlab.train.precision import computing_in

GOAL = 1.5
MARKS = 5
"""[PAD] [UNK] [CLS] [SEP] [MASK], the first ids"""
CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=Path, default=Path("configs"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each race")
    parser.add_argument("--bf16", action="store_true", help="under bf16 autocast, where the processor has it")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    given = parser.parse_args()
    keep_freed()
    torch.set_num_threads(given.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    precision, found = "bf16" if given.bf16 else "fp32", {}
    for name, sides in {"mlm": masked_sides, "electra": replaced_sides}.items():
        config = read_config_file(given.configs / f"{name}-tiny.toml")
        torch.manual_seed(0)
        ours, peer = sides(config, precision)
        result = race(ours, peer, given.seconds)
        tokens = config.train.batch * 128
        found[name] = result._asdict() | {"tokens_second": tokens / result.ours, "peer": tokens / result.peer}
        print(
            f"{name}: {tokens / result.ours:,.0f} tokens a second, transformers {tokens / result.peer:,.0f}:"
            f" {result.ratio:.2f} times ({result.low:.2f} … {result.high:.2f}),"
            f" at least {GOAL:g}: {'met' if result.ratio >= GOAL else 'not met'}"
        )
    if given.json:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        content = {"precision": precision, "threads": given.threads, "versions": versions, **found}
        given.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def rows_of(config: Config, vocab: int, masked: float = 0.8, drawn: float = 0.1) -> MaskedRows:
    """A batch of random text, masked as the configuration says."""
    special = torch.arange(vocab) < MARKS
    text = TokenRows(torch.randint(MARKS, vocab, (config.train.batch * 126,)).int(), 128, [2], [3])
    return MaskedRows(text, Masking(4, special, masked=masked, drawn=drawn))


def encoder_of(config: Config, **settings: Any) -> Any:
    """The encoder of a configuration, in training."""
    asked = config.masked_tokens or config.replaced_tokens
    assert asked is not None
    assert config.model is not None
    return make({"max_length": asked.length, **settings, **config.model}, {"vocab": asked.vocab, "pad": 0}).train()


def our_step(model: Any, task: Task, data: MaskedRows, config: Config, precision: str) -> Callable[[], float]:
    """What the training loop does in a step."""
    trained = list(model.parameters())
    optimizer = adamw(trained, config.train.lr or 1e-3, config.train.weight_decay)
    rows = list(range(config.train.batch))

    def step() -> float:
        loss = backward(model, task, data, rows, 1, precision)
        torch.nn.utils.clip_grad_norm_(trained, config.train.clip)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def their_step(models: list[Any], loss_of: Callable[[], Tensor], config: Config, precision: str) -> Callable[[], float]:
    """The same in a plain loop."""
    trained = list({id(p): p for model in models for p in model.parameters()}.values())
    optimizer = torch.optim.AdamW(trained, config.train.lr or 1e-3, weight_decay=config.train.weight_decay, fused=True)

    def step() -> float:
        with computing_in(precision, CPU):
            loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, config.train.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def stock(encoder: Any, head: Any, kind: Any) -> Any:
    """The same weights in `transformers`."""
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(encoder, "electra", {}, Path(folder), pretrained=head)
        return kind.from_pretrained(folder).train()


def same(ours: Tensor, theirs: Tensor) -> None:
    """Both sides compute the same."""
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=0)


def everywhere(places: Tensor, labels: Tensor) -> Tensor:
    """The labels [B, k] as [B, T], −100 where nothing is asked."""
    return torch.full((len(labels), 128), IGNORED).scatter(1, places, labels)


def masked_sides(config: Config, precision: str) -> tuple[Callable[[], float], Callable[[], float]]:
    """Masked tokens, as BERT."""
    encoder = encoder_of(config)
    head = MaskedTokenHead(encoder.config, "gelu")
    model, data = MaskedLanguageModel(encoder, head), rows_of(config, encoder.config.vocab)
    peer = stock(encoder, head, transformers.ElectraForMaskedLM)
    inputs, labels = data.batch(range(config.train.batch))
    whole = everywhere(inputs.places, labels)
    same(MaskedTokens().loss(model, inputs, labels), peer(inputs.batch.ids, labels=whole).loss)
    theirs = their_step([peer], lambda: peer(inputs.batch.ids, labels=whole).loss, config, precision)
    return our_step(model, MaskedTokens(), data, config, precision), theirs


def replaced_sides(config: Config, precision: str) -> tuple[Callable[[], float], Callable[[], float]]:
    """Replaced tokens, as ELECTRA: generator, drawing, discriminator."""
    asked = config.replaced_tokens
    assert asked is not None
    encoder = encoder_of(config, head="gelu")
    shape: EncoderConfig = encoder.config
    head, generator = ReplacedTokenHead(shape, "gelu"), make_generator(encoder, asked.generator, asked.sharing, "gelu")
    model, data = Electra(encoder, head, generator), rows_of(config, shape.vocab, masked=1.0, drawn=0.0)
    guesser = stock(generator.encoder, generator.head, transformers.ElectraForMaskedLM)
    judge = stock(encoder, head, transformers.ElectraForPreTraining)
    guesser.electra.embeddings = judge.electra.embeddings
    guesser.generator_lm_head.weight = judge.electra.embeddings.word_embeddings.weight
    inputs, labels = data.batch(range(config.train.batch))
    whole = everywhere(inputs.places, labels)
    masked = whole != IGNORED

    def their_loss() -> Tensor:
        guessed = guesser(inputs.batch.ids, labels=whole)
        drawn = torch.multinomial(guessed.logits[masked].detach().float().softmax(-1), 1)[:, 0]
        filled = inputs.batch.ids.masked_scatter(masked, drawn)
        replaced = torch.zeros_like(filled).masked_scatter(masked, (drawn != whole[masked]).long())
        return guessed.loss + asked.weight * judge(filled, labels=replaced).loss

    with torch.no_grad():
        logits = generator(inputs.batch, inputs.places)
        filled = fill(inputs, labels, logits)
        same(
            ReplacedTokens(asked.weight).loss(model, inputs, labels),
            guesser(inputs.batch.ids, labels=whole).loss
            + asked.weight * judge(filled.batch.ids, labels=filled.replaced.long()).loss,
        )
    ours = our_step(model, ReplacedTokens(asked.weight), data, config, precision)
    return ours, their_step([guesser, judge], their_loss, config, precision)


if __name__ == "__main__":
    main()
