"""64 rows that name their own LoRA, out of those that are loaded: against the bare base, and `peft`'s mixed batches.

The bare base stands where the other rows have the peer as it comes, and computes in the precision of the mix.
"""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import torch

from benchmarks.contestant import Contestant, Repeated
from benchmarks.mixed import ROWS, TOKENS, loaded, made_up
from benchmarks.row import Settings
from peftlab.data.sources import fetch_base
from peftlab.models.flops import encoder_flops
from peftlab.train.precision import computing_in, pick_precision


def build(side: str, asked: dict[str, Any], settings: Settings) -> Contestant:
    torch.manual_seed(0)
    torch.set_num_threads(settings.threads)
    names = [f"lora{i}" for i in range(asked["loaded"])]
    mix = random.Random(0).sample(names, ROWS) if len(names) >= ROWS else [names[i % len(names)] for i in range(ROWS)]
    precision = pick_precision(settings.precision, torch.device("cpu"))
    if side == "best":
        return theirs(names, mix, settings)
    model, batch = loaded(settings.base, names if side == "ours" else []), made_up()
    given = {"adapters": mix} if side == "ours" else {}

    @torch.inference_mode()
    def work() -> None:
        with computing_in(precision, torch.device("cpu")):
            model(batch, **given)

    flops = ROWS * encoder_flops(model.config, TOKENS)
    return Repeated(work, model, tokens=ROWS * TOKENS, flops=flops, precision=precision)


def theirs(names: list[str], mix: list[str], settings: Settings) -> Contestant:
    import peft
    import transformers

    from benchmarks.peer import how

    best = how("best", settings)
    stock = transformers.AutoModel.from_pretrained(fetch_base(settings.base))
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"])
    model = peft.get_peft_model(stock, config, adapter_name=names[0])
    add_adapters(model, names)
    model.eval()
    batch = made_up()
    inputs = {"input_ids": batch.ids, "attention_mask": batch.mask.long()}

    def work() -> None:
        with best.answering, best.computing:
            model(**inputs, adapter_names=mix)

    return Repeated(work, model)


def add_adapters(model: Any, names: list[str]) -> None:
    """What `model.add_adapter` puts into each layer for a name, from the first on, which is there.

    That method looks through all adapters for each new one, so that a thousand take a quarter of an hour.
    """
    from peft.tuners.lora import LoraLayer

    first, *others = names
    for layer in [module for module in model.modules() if isinstance(module, LoraLayer)]:
        settings = (layer.r, layer.lora_alpha, layer.scaling, layer.use_rslora, layer.use_dora, layer.lora_bias)
        for kept in (*settings, layer.lora_A, layer.lora_B, layer.lora_dropout):
            for name in others:
                kept[name] = deepcopy(kept[first])
    for name in others:
        model.peft_config[name] = deepcopy(model.peft_config[first])
