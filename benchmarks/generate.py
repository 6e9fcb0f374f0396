"""Writing with a small Marian, fp32, against `transformers.generate` on the same weights in the same run.

python -m benchmarks.generate

Both write the same tokens (this is checked), and as many: the end mark is made unlikely.
"""

import argparse
import tempfile
from pathlib import Path

import torch
import transformers
from rich.console import Console
from rich.table import Table

from benchmarks.race import race
from peftlab.data.batch import Batch
from peftlab.generate import Beam, Greedy, Search, write
from peftlab.models.pretrained import load_checkpoint
from peftlab.models.writer import Writer

SOURCE, WRITTEN = 16, 32
"""tokens"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=256, help="width; the feed-forward network has four times as much")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--vocab", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each row of the table")
    given = parser.parse_args()
    torch.manual_seed(0)
    peer = marian(given.dim, given.layers, given.vocab)
    with tempfile.TemporaryDirectory() as folder:
        peer.save_pretrained(folder)
        ours, _, _ = load_checkpoint(Path(folder))
    size = sum(parameter.numel() for parameter in ours.parameters()) / 1e6
    table = Table("search", "rows", "ours tokens/s", "transformers tokens/s", "ratio", "quartiles")
    best = torch.inference_mode()(theirs)
    table.title = f"Marian of {size:.1f}M parameters, {SOURCE} tokens read and {WRITTEN} written"
    for beams in (1, 5):
        for rows in (1, 32):
            ids = torch.randint(3, given.vocab, (rows, SOURCE))
            batch, how = Batch(ids, torch.ones_like(ids)), Greedy() if beams == 1 else Beam(beams)
            assert mine(ours, batch, how) == best(peer, ids, beams), "the two sides write different tokens"
            result = race(
                lambda b=batch, h=how: mine(ours, b, h),  # type: ignore[misc]
                lambda i=ids, k=beams: best(peer, i, k),  # type: ignore[misc]
                given.seconds,
            )
            table.add_row(
                "greedy" if beams == 1 else f"beam {beams}",
                str(rows),
                f"{rows * WRITTEN / result.ours:,.0f}",
                f"{rows * WRITTEN / result.peer:,.0f}",
                f"{result.ratio:.2f}",
                f"{result.low:.2f} … {result.high:.2f}",
            )
    Console().print(table)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; transformers {transformers.__version__}")


def marian(dim: int, layers: int, vocab: int) -> transformers.MarianMTModel:
    """A model with random weights whose scores differ enough that rounding changes no choice."""
    stack = {"layers": layers, "attention_heads": 4, "ffn_dim": 4 * dim}
    both = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in stack.items()}
    marks = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1, "decoder_start_token_id": 2}
    config = transformers.MarianConfig(
        vocab_size=vocab, d_model=dim, scale_embedding=True, max_position_embeddings=128, init_std=0.1, **both, **marks
    )
    model = transformers.MarianMTModel(config).eval()
    model.final_logits_bias[:, 1] = -1e4
    model.generation_config.update(eos_token_id=1, forced_eos_token_id=None, max_length=None)
    return model


def mine(model: Writer, batch: Batch, how: Search) -> list[list[int]]:
    """The tokens of each row."""
    return [found[0].tokens for found in write(model, batch, how, WRITTEN)]


def theirs(model: transformers.MarianMTModel, ids: torch.Tensor, beams: int) -> list[list[int]]:
    """The same by the peer."""
    mask = torch.ones_like(ids)
    written = model.generate(
        input_ids=ids, attention_mask=mask, num_beams=beams, do_sample=False, max_new_tokens=WRITTEN
    )
    return written[:, 1:].tolist()


if __name__ == "__main__":
    main()
