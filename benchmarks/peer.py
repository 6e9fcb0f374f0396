"""The peer: stock `transformers` and `peft`, by the calls of their own guides, in a plain PyTorch loop.

    python -m benchmarks.peer --task path/to/SST-2 --grouped        # a side of benchmarks/compare.py

As it comes, rows are padded to the longest of their batch (`DataCollatorWithPadding`) and all is fp32; at its best rows
of like length share a batch (`Trainer`'s `group_by_length`), the optimizer is fused, and products are bf16 where that
is faster. Attention is SDPA both times: it is what `from_pretrained` takes by itself.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from torch.utils.data import DataLoader
from transformers.trainer_pt_utils import LengthGroupedSampler

from benchmarks.compare import LENGTH, LR, SETTINGS, WARM_UP, arguments, measure, training_rows
from benchmarks.row import Settings
from peftlab.data.examples import Examples
from peftlab.data.sources import fetch_base
from peftlab.train.precision import bf16_pays

QV: dict[str, Any] = {"lora_alpha": 16, "target_modules": ["query", "value"]}
VIRTUAL = {"task_type": "SEQ_CLS", "num_virtual_tokens": 20}


@dataclass(frozen=True)
class How:
    """Its settings; without any, as it comes."""

    grouped: bool = False
    """rows of like length share a batch"""
    bf16: bool = False
    """under bf16 autocast"""
    fused: bool = False
    """one kernel for all of AdamW"""
    inference_mode: bool = False
    """instead of no_grad, where nothing trains"""
    compiled: bool = False

    @property
    def computing(self) -> Any:
        """What a forward pass runs in."""
        return torch.autocast("cpu", torch.bfloat16, enabled=self.bf16)

    @property
    def answering(self) -> Any:
        """The same where nothing trains."""
        return torch.inference_mode() if self.inference_mode else torch.no_grad()


def how(side: str, settings: Settings) -> How:
    """The peer as it comes (`default`), or at its best."""
    if side == "default":
        return How()
    bf16 = settings.precision == "bf16" or (settings.precision != "fp32" and bf16_pays(torch.device("cpu")))
    return How(grouped=True, bf16=bf16, fused=True, inference_mode=True, compiled=settings.compile)


def classifier(folder: Path, labels: int, method: str, how: How) -> Any:
    """A classifier on a base, of which what the method says trains."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=labels)
    model = adapted(model, method).train()
    return torch.compile(model, dynamic=True) if how.compiled else model


def adapted(model: Any, method: str) -> Any:
    """The method by our name; `peft` has no bottleneck adapters, so in their place is a LoRA of as many parameters."""
    D, L = model.config.hidden_size, model.config.num_hidden_layers
    if method in ("full", "head", "bitfit"):
        for name, parameter in model.named_parameters():
            bias = method == "bitfit" and name.endswith("bias")
            parameter.requires_grad_(method == "full" or bias or name.startswith("classifier"))
        return model
    width = max(1, D // 16)
    rank = round(2 * (2 * D * width + width + D) / (4 * D))  # two bottlenecks a block; A and B, of q and of v
    configs = {
        "lora": lambda: peft.LoraConfig(task_type="SEQ_CLS", r=8, **QV),
        "top2": lambda: peft.LoraConfig(task_type="SEQ_CLS", r=8, layers_to_transform=[L - 2, L - 1], **QV),
        "adapter": lambda: peft.LoraConfig(task_type="SEQ_CLS", r=rank, **QV),
        "prefix": lambda: peft.PrefixTuningConfig(**VIRTUAL),
        "p_tuning": lambda: peft.PromptEncoderConfig(**VIRTUAL, encoder_hidden_size=128),
        "prompt": lambda: peft.PromptTuningConfig(**VIRTUAL),
    }
    return peft.get_peft_model(model, configs[method]())


def tokenised(tokenizer: Any, examples: Examples, length: int = LENGTH) -> list[dict[str, Any]]:
    """What a `Dataset` would give, row by row."""
    columns = tokenizer(*columns_of(examples.texts), truncation=True, max_length=length, padding=False)
    rows = zip(*columns.values(), examples.labels, strict=True)
    return [dict(zip([*columns, "labels"], row, strict=True)) for row in rows]


def columns_of(texts: Sequence[str] | Sequence[tuple[str, str]]) -> list[list[str]]:
    """Texts, or first and second texts."""
    rows = [(text,) if isinstance(text, str) else text for text in texts]
    return [list(column) for column in zip(*rows, strict=True)]


class Loop:
    """What `Trainer` does in a step, without its bookkeeping."""

    def __init__(
        self, model: Any, tokenizer: Any, data: Any, how: How, batch: int = SETTINGS.batch, steps: int | None = None
    ) -> None:
        self.model, self.how = model, how
        lengths = [len(row["input_ids"]) for row in data]
        self.loader: Any = DataLoader(
            data,
            batch,
            shuffle=None if how.grouped else True,
            sampler=LengthGroupedSampler(batch, lengths=lengths) if how.grouped else None,
            collate_fn=transformers.DataCollatorWithPadding(tokenizer),
        )
        self.trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        decay = SETTINGS.weight_decay
        self.optimizer = torch.optim.AdamW(self.trainable, lr=LR, weight_decay=decay, fused=how.fused or None)
        steps = steps or len(self.loader)
        rise = round(SETTINGS.warmup * steps)
        self.schedule = transformers.get_linear_schedule_with_warmup(self.optimizer, rise, steps)

    def step(self, batch: Any) -> tuple[int, float]:
        """Gives the tokens with padding, and the loss."""
        with self.how.computing:
            loss = self.model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trainable, SETTINGS.clip)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        return batch["input_ids"].numel(), loss.item()


def labels_of(model: Any, tokenizer: Any, texts: Sequence[Any], how: How, batch: int = SETTINGS.batch) -> list[int]:
    """The label of each text, in their order."""
    ids = tokenizer(*columns_of(texts), truncation=True, max_length=LENGTH, padding=False)
    order = list(range(len(texts)))
    if how.grouped:
        order.sort(key=lambda row: len(ids["input_ids"][row]))
    found: dict[int, int] = {}
    with how.answering, how.computing:
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            inputs = tokenizer.pad({key: [ids[key][row] for row in rows] for key in ids}, return_tensors="pt")
            found |= dict(zip(rows, model(**inputs).logits.argmax(-1).tolist(), strict=True))
    return [found[row] for row in range(len(texts))]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--grouped", action="store_true", help="rows of like length share a batch")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(json.dumps(compared(parser.parse_args())))


def compared(given: argparse.Namespace) -> dict[str, Any]:
    """The side of `benchmarks/compare.py`: an epoch of LoRA."""
    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    folder, settings = fetch_base("minilm"), How(grouped=given.grouped, bf16=given.bf16)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = classifier(folder, 2, "lora", settings)
    data = tokenised(tokenizer, training_rows(given))
    loop = Loop(model, tokenizer, data, settings, steps=WARM_UP + -(-len(data) // SETTINGS.batch))
    return measure(model, lambda: loop.loader, loop.step, sum(len(row["input_ids"]) for row in data))


if __name__ == "__main__":
    main()
