"""The rows of the race track, with their goals (ratios: above 1 ours is better)."""

from benchmarks.row import Row

TRAINED = ("bitfit", "lora", "adapter", "prefix", "p_tuning", "prompt")
LENGTHS, BATCHES = (32, 64, 128, 256, 512), (1, 4, 16, 64)


def training(name: str, method: str, epochs: int, goals: tuple[float, float], about: str) -> Row:
    """A row of training."""
    asked = {"method": method, "epochs": epochs, "rows": 4000}
    return Row(f"train-{name}", "training", about, *goals, asked=asked, quick={"rows": 160})


def mixing(loaded: int, about: str) -> Row:
    """A row of mixed batches; the bare base may be faster by 15 %."""
    return Row(f"mixed-{loaded}", "mixing", about, 1 / 1.15, 1.3, asked={"loaded": loaded}, rounds=15)


def writing(search: str, beams: int, batch: int) -> Row:
    """A row of writing."""
    asked = {"beams": beams, "batch": batch, "dim": 256, "layers": 3}
    about = f"{search}, {batch} row{'s' if batch > 1 else ''} of 32 tokens by a small Marian"
    return Row(f"generate-{search}-{batch}", "writing", about, 2.0, 2.0, asked=asked, rounds=9)


ROWS = {
    row.name: row
    for row in (
        *(
            training(method.replace("_", "-"), method, 1, (4.0, 1.3), f"an epoch of {method.replace('_', '-')}")
            for method in TRAINED
        ),
        training("full", "full", 1, (3.0, 1.1), "an epoch of every weight"),
        training("head", "head", 3, (8.0, 3.0), "three epochs of the head alone"),
        training("top2", "top2", 3, (5.0, 1.6), "three epochs of LoRA in the top two blocks"),
        Row(
            "predict",
            "predicting",
            "labels of 10,000 sentences by a merged LoRA",
            4.0,
            1.3,
            {"rows": 10_000},
            {"rows": 320},
        ),
        mixing(16, "64 rows with 16 different LoRAs; default: the bare base"),
        mixing(1000, "64 rows with as many LoRAs out of 1,000; default: the bare base"),
        Row(
            "grid",
            "gridding",
            "a comparison of 8 methods with 2 seeds",
            5.0,
            1.4,
            {"steps": 60, "tested": 872},
            {"steps": 6, "tested": 64},
            rounds=2,
        ),
        Row(
            "memory",
            "stepping",
            "peak above the loaded weights, LoRA, 32 rows of 128 tokens",
            1 / 0.6,
            1 / 0.8,
            {"tokens": 128, "batch": 32, "steps": 3},
            unit="bytes",
            fresh=True,
        ),
        Row(
            "start",
            "starting",
            "--help, import, or load and first prediction; peer: import and load",
            1 / 0.3,
            None,
            points=({"command": "help"}, {"command": "import"}, {"command": "predict"}),
            rounds=5,
        ),
        writing("greedy", 1, 1),
        writing("greedy", 1, 32),
        writing("beam", 5, 1),
        writing("beam", 5, 32),
        Row(
            "scaling",
            "stepping",
            "a step of LoRA by tokens and batch: the worst of all",
            1.0,
            None,
            {"steps": 2},
            {"steps": 1},
            points=(
                *({"tokens": tokens, "batch": 8} for tokens in LENGTHS),
                *({"tokens": 64, "batch": batch} for batch in BATCHES),
            ),
            rounds=7,
        ),
    )
}


def chosen(names: str | None) -> list[Row]:
    """Rows by names with commas between them; a first part such as `train` is all that begin with it."""
    if names is None:
        return list(ROWS.values())
    found: dict[str, Row] = {}
    for name in names.split(","):
        matching = {key: row for key, row in ROWS.items() if key == name or key.startswith(f"{name}-")}
        if not matching:
            raise ValueError(f"no row is called {name!r}: choose among {', '.join(ROWS)}")
        found |= matching
    return list(found.values())
