"""The peer of `benchmarks/compare.py`: stock `transformers` and `peft` in a plain PyTorch loop.

python -m benchmarks.peer --task path/to/SST-2 --grouped
"""

import argparse
import json
from typing import Any

import peft
import torch
import transformers
from torch.utils.data import DataLoader
from transformers.trainer_pt_utils import LengthGroupedSampler

from benchmarks.compare import LENGTH, LORA, LR, SETTINGS, WARM_UP, arguments, measure, training_rows
from peftlab.data.sources import fetch_base


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--grouped", action="store_true", help="rows of like length share a batch")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(json.dumps(peer(parser.parse_args())))


def peer(given: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    folder = fetch_base("minilm")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    config = peft.LoraConfig(
        task_type="SEQ_CLS",
        r=LORA.rank,
        lora_alpha=LORA.alpha,
        lora_dropout=LORA.dropout,
        target_modules=["query", "value"],
    )
    model = peft.get_peft_model(model, config).train()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    examples = training_rows(given)
    ids = tokenizer(examples.texts, truncation=True, max_length=LENGTH, padding=False)["input_ids"]
    lengths = [len(row) for row in ids]
    data: Any = [{"input_ids": row, "labels": label} for row, label in zip(ids, examples.labels, strict=True)]
    loader = DataLoader(
        data,
        SETTINGS.batch,
        shuffle=None if given.grouped else True,
        sampler=LengthGroupedSampler(SETTINGS.batch, lengths=lengths) if given.grouped else None,
        collate_fn=transformers.DataCollatorWithPadding(tokenizer),
    )
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=LR, weight_decay=SETTINGS.weight_decay)
    steps = WARM_UP + len(loader)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(SETTINGS.warmup * steps), steps)

    def step(batch: Any) -> tuple[int, float]:
        with torch.autocast("cpu", torch.bfloat16, enabled=given.bf16):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, SETTINGS.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        return batch["input_ids"].numel(), loss.item()

    return measure(model, lambda: loader, step, sum(lengths))


if __name__ == "__main__":
    main()
