"""64 rows that name their own LoRA, out of 16 and out of 1,000 loaded, against the bare base in the same run.

python -m benchmarks.mixed
"""

import random
from collections.abc import Sequence
from typing import Any

import torch

import peftlab
from benchmarks.race import race

ROWS, TOKENS, LOADED = 64, 27, 1000


def main() -> None:
    names = [f"lora{i}" for i in range(LOADED)]
    model, batch = loaded("minilm", names), made_up()
    mixes = {"16 different": [names[i % 16] for i in range(ROWS)], f"out of {LOADED}": random.sample(names, ROWS)}
    with torch.no_grad():
        for title, mix in mixes.items():
            result = race(lambda: model(batch), lambda mix=mix: model(batch, adapters=mix), seconds=20)  # type: ignore[misc]
            times = f"bare {result.ours * 1e3:.0f} ms, mixed {result.peer * 1e3:.0f} ms, {result.ratio:.2f} times"
            print(f"{title} LoRAs: {times} (quartiles {result.low:.2f} … {result.high:.2f})")


def loaded(base: str, names: Sequence[str]) -> Any:
    """A base with LoRAs of which none acts by itself."""
    model = peftlab.load(base).model.requires_grad_(False)
    for name in names:
        peftlab.attach(model, name, peftlab.LoRA(rank=8))
    peftlab.activate(model, [])
    return model


def made_up() -> peftlab.Batch:
    """Rows without padding."""
    ids = torch.randint(1000, 30000, (ROWS, TOKENS))
    return peftlab.Batch(ids, torch.ones_like(ids))


if __name__ == "__main__":
    main()
