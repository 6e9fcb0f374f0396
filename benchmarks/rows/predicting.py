"""Labels for many sentences by a merged LoRA, from texts to labels: ours is what `peftlab predict` does with a run."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.contestant import Contestant, Repeated
from benchmarks.roofline import predicting
from benchmarks.row import Settings
from benchmarks.rows.training import configured
from peftlab.data.examples import limit
from peftlab.data.glue import load_task
from peftlab.data.sources import fetch_base


def build(side: str, asked: dict[str, Any], settings: Settings) -> Contestant:
    torch.manual_seed(0)
    torch.set_num_threads(settings.threads)
    data = load_task(settings.task)
    texts, labels = list(limit(data.train, asked["rows"], seed=0).texts), data.labels
    return (ours if side == "ours" else theirs)(side, texts, labels, settings)


def ours(side: str, texts: list[Any], labels: tuple[str, ...], settings: Settings) -> Contestant:
    import peftlab
    from peftlab.train.artefact import ADAPTER, adapt
    from peftlab.train.memory import keep_freed
    from peftlab.train.predict import Labeller, answers

    keep_freed()
    head = peftlab.Classifier(labels=labels, pool="first")
    base = adapt(peftlab.load(settings.base), peftlab.LoRA(rank=8), head)
    base.model.eval()
    peftlab.merge(base.model, ADAPTER)
    labeller = Labeller(base, configured("lora", settings).completed())
    lengths = [len(base.tokenizer.encode([text], max_length=labeller.length, truncate=True).ids[0]) for text in texts]
    return Repeated(
        lambda: [answer["label"] for answer in answers(labeller, iter(texts))],
        base.model,
        tokens=sum(lengths),
        flops=predicting(base.config, lengths),
        precision=labeller.precision,
    )


def theirs(side: str, texts: list[Any], labels: tuple[str, ...], settings: Settings) -> Contestant:
    import transformers

    from benchmarks import peer

    folder, how = fetch_base(settings.base), peer.how(side, settings)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    stock = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=len(labels))
    merged = peer.adapted(stock, "lora").merge_and_unload().eval()
    model = torch.compile(merged, dynamic=True) if how.compiled else merged
    return Repeated(lambda: peer.labels_of(model, tokenizer, texts, how), merged)
