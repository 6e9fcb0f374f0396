"""A forward pass of MiniLM, fp32, no padding, against `transformers` with SDPA on the same weights in the same run.

python -m benchmarks.forward
"""

import torch
import transformers
from rich.console import Console
from rich.table import Table

import peftlab
from benchmarks.race import race
from peftlab.data.sources import fetch_base

SHAPES = [(1, 16), (1, 128), (8, 16), (8, 64), (32, 27), (32, 128), (64, 16)]


def main() -> None:
    folder = fetch_base("minilm")
    model = peftlab.load("minilm").model
    peer = transformers.AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    table = Table(
        "rows × tokens", "ours ms", "transformers ms", "ratio", "quartiles", title="forward, fp32, no padding"
    )
    for rows, tokens in SHAPES:
        ids = torch.randint(1000, 30000, (rows, tokens))
        mask = torch.ones_like(ids)
        batch = peftlab.Batch(ids, mask)
        with torch.inference_mode():
            result = race(lambda b=batch: model(b), lambda i=ids, m=mask: peer(input_ids=i, attention_mask=m))  # type: ignore[misc]
        table.add_row(
            f"{rows} × {tokens}",
            f"{result.ours * 1e3:.1f}",
            f"{result.peer * 1e3:.1f}",
            f"{result.ratio:.2f}",
            f"{result.low:.2f} … {result.high:.2f}",
        )
    Console().print(table)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
