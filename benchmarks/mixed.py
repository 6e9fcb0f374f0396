"""64 rows that name their own LoRA, out of 16 and out of 1,000 loaded, against the bare base in the same run.

python -m benchmarks.mixed
"""

import random

import torch

import peftlab
from benchmarks.race import race

ROWS, TOKENS, LOADED = 64, 27, 1000


def main() -> None:
    model = peftlab.load("minilm").model.requires_grad_(False)
    ids = torch.randint(1000, 30000, (ROWS, TOKENS))
    batch = peftlab.Batch(ids, torch.ones_like(ids))
    for i in range(LOADED):
        peftlab.attach(model, f"lora{i}", peftlab.LoRA(rank=8))
    peftlab.activate(model, [])
    names = list(model.adapters)
    mixes = {"16 different": [names[i % 16] for i in range(ROWS)], f"out of {LOADED}": random.sample(names, ROWS)}
    with torch.no_grad():
        for title, mix in mixes.items():
            result = race(lambda: model(batch), lambda mix=mix: model(batch, adapters=mix), seconds=20)  # type: ignore[misc]
            times = f"bare {result.ours * 1e3:.0f} ms, mixed {result.peer * 1e3:.0f} ms, {result.ratio:.2f} times"
            print(f"{title} LoRAs: {times} (quartiles {result.low:.2f} … {result.high:.2f})")


if __name__ == "__main__":
    main()
