"""One training step of each method on MiniLM, fp32, against stock `peft` on the same weights and shapes in one run.

python -m benchmarks.peft_step
"""

from collections.abc import Callable
from typing import Any

import peft
import torch
import torch.nn.functional as F
import transformers
from rich.console import Console
from rich.table import Table

import peftlab
from benchmarks.race import race
from peftlab.data.sources import fetch_base

ROWS, TOKENS, LABELS = 32, 32, 2
SEQ_CLS: dict[str, Any] = {"task_type": "SEQ_CLS"}
PAIRS: dict[str, tuple[Any, Any]] = {
    "lora q, v": (
        peftlab.LoRA(rank=8, dropout=0.1),
        peft.LoraConfig(**SEQ_CLS, r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["query", "value"]),
    ),
    "lora all": (
        peftlab.LoRA(rank=8, targets="all"),
        peft.LoraConfig(
            **SEQ_CLS,
            r=8,
            lora_alpha=16,
            target_modules=["query", "key", "value", "output.dense", "intermediate.dense"],
        ),
    ),
    "dora q, v": (
        peftlab.LoRA(rank=8, dora=True),
        peft.LoraConfig(**SEQ_CLS, r=8, lora_alpha=16, use_dora=True, target_modules=["query", "value"]),
    ),
    "prompt 20": (peftlab.Prompt(tokens=20), peft.PromptTuningConfig(**SEQ_CLS, num_virtual_tokens=20)),
    "p-tuning 20, mlp": (
        peftlab.PTuning(tokens=20, encoder="mlp", hidden=128),
        peft.PromptEncoderConfig(**SEQ_CLS, num_virtual_tokens=20, encoder_hidden_size=128),
    ),
    "p-tuning 20, lstm": (
        peftlab.PTuning(tokens=20, encoder="lstm", hidden=128),
        peft.PromptEncoderConfig(
            **SEQ_CLS, num_virtual_tokens=20, encoder_hidden_size=128, encoder_reparameterization_type="LSTM"
        ),
    ),
    "prefix 20": (peftlab.Prefix(length=20), peft.PrefixTuningConfig(**SEQ_CLS, num_virtual_tokens=20)),
    "full": (peftlab.Full(), None),
}


def main() -> None:
    transformers.logging.set_verbosity_error()
    ids, labels = torch.randint(1000, 30000, (ROWS, TOKENS)), torch.randint(LABELS, (ROWS,))
    title = f"one training step, fp32, {ROWS} rows of {TOKENS} tokens"
    table = Table("method", "trainable", "ours ms", "peft ms", "ratio", "quartiles", title=title)
    for name, (method, config) in PAIRS.items():
        mine, count = our_step(method, ids, labels)
        theirs, their_count = peer_step(config, ids, labels)
        assert count == their_count or name == "full", (name, count, their_count)
        result = race(mine, theirs, seconds=10)
        table.add_row(
            name,
            f"{count:,}",
            f"{result.ours * 1e3:.0f}",
            f"{result.peer * 1e3:.0f}",
            f"{result.ratio:.2f}",
            f"{result.low:.2f} … {result.high:.2f}",
        )
    Console().print(table)
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}"
    print(f"{versions}; {torch.get_num_threads()} threads")


def our_step(method: peftlab.LoRA, ids: torch.Tensor, labels: torch.Tensor) -> tuple[Callable[[], None], int]:
    model = peftlab.load("minilm").model
    peftlab.attach(model, "mine", method, head=peftlab.Classifier(labels=LABELS))
    peftlab.freeze(model)
    batch = peftlab.Batch(ids, torch.ones_like(ids))
    return step(model, lambda: model(batch).logits, labels)


def peer_step(config: Any, ids: torch.Tensor, labels: torch.Tensor) -> tuple[Callable[[], None], int]:
    auto = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(fetch_base("minilm"), num_labels=LABELS, attn_implementation="sdpa")
    model = model if config is None else peft.get_peft_model(model, config)
    mask = torch.ones_like(ids)
    return step(model, lambda: model(input_ids=ids, attention_mask=mask).logits, labels)


def step(model: torch.nn.Module, logits: Callable[[], Any], labels: torch.Tensor) -> tuple[Callable[[], None], int]:
    """Forward, backward and AdamW's step, the same for both; and the number of parameters that train."""
    model.train()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-4)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(logits(), labels).backward()
        optimizer.step()

    return run, sum(parameter.numel() for parameter in trainable)


if __name__ == "__main__":
    main()
