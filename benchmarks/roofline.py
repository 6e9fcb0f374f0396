"""How much of the machine a row uses: the matrix products that its work needs, over the fastest ones of such shapes.

python -m benchmarks.roofline --threads 2

The peak is measured on the spot, of the products of one step: 32 rows of 27 tokens through MiniLM's three shapes of
matrices, by torch, or in int16, which torch has not, by our own kernel. What a row needs follows from a formula
(`peftlab.models.flops`) over its real tokens: a pass forward, one backward through the activations, for `full` one more
for the weights; what is frozen below everything that trains is needed once, however many epochs there are. A method's
own small products are left out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence

import torch

from peftlab import native
from peftlab.models.encoder import EncoderConfig
from peftlab.models.flops import TRAINED, block_flops, encoder_flops
from peftlab.train.precision import pick_precision

TOKENS = 32 * 27
SHAPES = ((384, 384), (384, 1536), (1536, 384))
VIRTUAL = {"prompt": 20, "p_tuning": 20}
"""tokens that a method puts before the text"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each shape")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(json.dumps(peaks(given.seconds)))


def peaks(seconds: float) -> dict[str, float]:
    """FLOP/s by precision: fp32, and what the processor computes with by itself."""
    return {name: peak(name, seconds) for name in {"fp32", pick_precision("auto", torch.device("cpu"))}}


@torch.inference_mode()
def peak(precision: str, seconds: float) -> float:
    """The products of all shapes over the sum of their shortest times."""
    total, dtype = 0.0, torch.bfloat16 if precision == "bf16" else torch.float32
    for a, b in SHAPES:
        x, weight = torch.randn(TOKENS, a, dtype=dtype), torch.randn(b, a, dtype=dtype)
        end, shortest = time.perf_counter() + seconds, float("inf")
        while time.perf_counter() < end:
            start = time.perf_counter()
            if precision == "int16":
                with native.computing(integers=True):
                    native.linear(x, weight, kept=True)
            else:
                torch.nn.functional.linear(x, weight)
            shortest = min(shortest, time.perf_counter() - start)
        total += shortest
    return sum(2.0 * TOKENS * a * b for a, b in SHAPES) / total


def predicting(config: EncoderConfig, lengths: Sequence[int]) -> float:
    """What it takes to label rows of these lengths by their first token."""
    return sum(encoder_flops(config, T, 1) for T in lengths)


def training(config: EncoderConfig, lengths: Sequence[int], method: str, epochs: int = 1) -> float:
    """What it takes to train on them, by the method's name; `top2`: LoRA in the top two blocks."""
    if method == "head":
        return predicting(config, lengths)
    if method == "top2":
        top = sum(block_flops(config, T, T) + block_flops(config, T, 1) for T in lengths)
        return predicting(config, lengths) - top + epochs * (TRAINED - 1) * top
    passes = TRAINED if method == "full" else TRAINED - 1
    return epochs * passes * predicting(config, [T + VIRTUAL.get(method, 0) for T in lengths])


def writing(dim: int, layers: int, vocab: int, read: int, written: int) -> float:
    """What an encoder–decoder with feed-forward networks of four times its width needs to read so many tokens and to
    write so many, those of all beams; attention's scores, which are few, are left out.
    """
    square = 2.0 * dim * dim
    encoder, decoder = (4 + 2 * 4) * square, (4 + 2 + 2 * 4) * square  # q k v o; then those of q and o to the source
    return layers * (read * (encoder + 2 * square) + written * decoder) + written * 2.0 * dim * vocab


if __name__ == "__main__":
    main()
