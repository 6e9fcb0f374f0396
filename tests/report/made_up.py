"""Made-up but realistic results: eight methods, three seeds, two tasks, a failed run, a collapsed one, hostile text."""

import numpy as np

from peftlab.compare.results import ComparedTask, Comparison, RunResult
from peftlab.compare.statistics import collapsed

HOSTILE = "</script><img src=x onerror=alert(1)>"

#        logit on the first task and the second, spread between seeds, trainable without head, ms a step, memory
METHODS = {
    "full": (2.05, 1.50, 0.07, 22_713_216, 141.0, 1_490e6),
    "lora": (2.06, 1.42, 0.06, 73_728, 84.0, 1_120e6),
    "adapter": (1.98, 1.46, 0.06, 599_424, 92.0, 1_180e6),
    "prefix": (1.72, 1.18, 0.09, 92_160, 88.0, 1_150e6),
    "p_tuning": (1.40, 0.86, 0.16, 207_744, 103.0, 1_260e6),
    "prompt": (1.36, 0.80, 0.20, 7_680, 101.0, 1_250e6),
    "bitfit": (1.80, 1.20, 0.07, 51_072, 79.0, 1_090e6),
    "head": (0.98, 0.42, 0.01, 0, 31.0, 640e6),
}
BASE = 22_713_216
SENTENCE = (
    "a film of quiet wit that earns its tears , though the last act drags and the score insists too much on being heard"
    " while the two leads carry scenes that lesser actors would have dropped and the camera never looks away"
)
WORDS = SENTENCE.split()


def made_up(seeds: int = 3, rows: int = 800, quick: bool = False, methods: tuple[str, ...] = tuple(METHODS)):
    """A comparison as a real one would leave it; the same each time."""
    rng = np.random.default_rng(7)
    tasks, runs = [], []
    for t, (name, labels, balance) in enumerate(
        [("reviews", ["rotten", "fresh"], 0.58), ("questions", ["yes", f"no {HOSTILE}"], 0.5)]
    ):
        gold = (rng.random(rows) < balance).astype(int)
        texts = [" ".join(rng.choice(WORDS, int(rng.integers(6, 40)))) for _ in range(rows)]
        texts[3] = f"a row that attacks the page {HOSTILE}"
        tasks.append(ComparedTask(name, labels, gold.tolist(), texts=texts))
        ease = 1.6 * rng.standard_normal(rows)
        for method in methods:
            quality, spread = METHODS[method][t], METHODS[method][2]
            own = ease + 0.6 * rng.standard_normal(rows)
            for seed in range(seeds):
                logit = quality + spread * rng.standard_normal() + own + 0.9 * rng.standard_normal(rows)
                given = np.where(logit > 0, gold, 1 - gold)
                runs.append(_run(rng, method, name, seed, given, gold, float(np.mean(logit > 0))))
    return Comparison(
        title="Five methods and their baselines on minilm",
        base="minilm",
        tasks=tasks,
        runs=runs,
        versions={"peftlab": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
        hashes={"minilm": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db", "reviews": "a1" * 32},
        command=f"peftlab compare --tasks reviews,questions --seeds {seeds} --base minilm",
        config='base = "minilm"\n[train]\nsteps = 300\nbatch = 32\n',
        quick=quick,
    )


def _run(rng, method, task, seed, given, gold, accuracy):
    _, _, _, trainable, ms, memory = METHODS[method]
    if (method, task, seed) == ("p_tuning", "questions", 1):
        return RunResult(method, task, seed, "failed", f"it ran out of memory at step 41 {HOSTILE}", run="runs/p")
    steps = range(30, 301, 30)
    fall = np.linspace(0.69, 0.72 - 0.4 * accuracy, len(steps)) + 0.01 * rng.standard_normal(len(steps))
    rise = accuracy - (accuracy - 0.5) * np.exp(-np.arange(1, len(steps) + 1) / 2) + 0.008 * rng.standard_normal(10)
    note, status = "", "done"
    if (method, task, seed) == ("prompt", "questions", 2):
        given, fall, rise = np.ones_like(given), np.full(len(steps), 0.694), np.full(len(steps), 0.5)
        note, status = collapsed(given, gold, fall.tolist()), "collapsed"
    jitter = 1 + 0.04 * rng.standard_normal()
    f1 = accuracy - 0.004
    return RunResult(
        method,
        task,
        seed,
        status,
        note,
        {"accuracy": float(np.mean(given == gold)), "f1": f1, "matthews": 2 * f1 - 1},
        trainable=trainable + 148_610,
        trainable_without_head=trainable,
        base_parameters=BASE,
        adapter_bytes=4 * (trainable + 148_610),
        peak_memory=int(memory * jitter),
        ms_step=ms * jitter,
        tokens_second=620 / ms * 1000 / jitter,
        seconds=0.3 * ms * jitter + 6,
        steps=300,
        run=f"runs/{method}-{task}-{seed}",
        predictions=given.tolist(),
        curve=[{"step": s, "loss": float(a), "score": float(b)} for s, a, b in zip(steps, fall, rise, strict=True)],
        settings={"lr": {"full": 5e-5, "prompt": 0.01}.get(method, 1e-3), "batch": 32, "schedule": "linear"},
    )
