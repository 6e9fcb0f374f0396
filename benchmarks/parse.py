"""Sentences a second of `predict` with a parser on MiniLM: tokenising, the trees and CoNLL-U included.

    python -m benchmarks.parse --data path/to/ud-english-ewt                      # the goal is 200
    python -m benchmarks.parse --run runs/parse

Without a run the parser's weights are drawn, so that no sentence's best heads are a tree by themselves: every tree has
to be searched for, which is the most work that a parser can make. What is read at once is sorted by length and
parsed in batches, whose mean size is told: `predict` reads 256 sentences at once, and cuts batches by their tokens. The
last line has batches of 32 sentences, however long they are.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

from peftlab.data.conllu import Sentence
from peftlab.data.treebank import load_sentences
from peftlab.data.words import encode_words
from peftlab.errors import UserError, told
from peftlab.models.base import load
from peftlab.models.parser import Parser, parser_of
from peftlab.peft import LoRA
from peftlab.tasks.parse import relation_names
from peftlab.train import asking
from peftlab.train.annotate import TreeParser, written
from peftlab.train.artefact import adapt
from peftlab.train.config import Parse
from peftlab.train.order import sorted_batches
from peftlab.train.parsing import read_trees
from peftlab.train.precision import pick_precision
from peftlab.train.predict import CHUNK, open_finished

BATCH = 32
Cut = Callable[[Sequence[int], int], list[list[int]]]
"""from the lengths of sentences and a budget of tokens to batches"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ud-english-ewt", help="a treebank: a short name, a folder or a file")
    parser.add_argument("--run", type=Path, help="a finished run's folder instead of weights that are drawn")
    parser.add_argument("--layers", type=int, help="use the first so many blocks of the base; of a run it is its own")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--times", type=int, default=3, help="how often the test part is parsed")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with told():
        sentences = load_sentences(given.data, read_trees).tests["test"]
        trained = untrained(sentences, given.layers) if given.run is None else open_finished(given.run)
        if not isinstance(trained, TreeParser):
            raise UserError(f"{given.run} is no parser: give the folder of a run with [parse]")
    table = Table("sentences read at once", "in a batch", "sentences a second", "lowest", "highest")
    table.title = f"{len(sentences):,} sentences parsed, {given.threads} threads"
    cuts: tuple[tuple[int, Cut], ...] = ((BATCH, sorted_batches), (CHUNK, sorted_batches), (CHUNK, of_a_size))
    for size, cut in cuts:
        with patch("peftlab.train.asking.sorted_batches", cut):
            parse(trained, sentences[:CHUNK], size)
            rates = [len(sentences) / parse(trained, sentences, size) for _ in range(given.times)]
        found = (statistics.median(rates), min(rates), max(rates))
        mean = in_a_batch(trained, sentences, size, cut)
        table.add_row(str(size), f"{mean:.0f}", *(f"{rate:,.0f}" for rate in found))
    Console().print(table)
    print(f"torch {torch.__version__}")


def of_a_size(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Batches of 32 sentences of like length, whatever their tokens."""
    rows = sorted(range(len(lengths)), key=lambda row: lengths[row])
    return [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]


def in_a_batch(trained: TreeParser, sentences: Sequence[Sentence], size: int, cut: Cut) -> float:
    """How many sentences a batch has, where so many are read at once."""
    words = encode_words(trained.base.tokenizer, [sentence.words for sentence in sentences], trained.length)
    lengths, share = words.lengths(), asking.in_a_batch(torch.device("cpu"))
    batches = sum(len(cut(lengths[i : i + size], share)) for i in range(0, len(lengths), size))
    return len(sentences) / batches


def untrained(sentences: Sequence[Sentence], layers: int | None) -> TreeParser:
    """A parser whose weights are drawn, on MiniLM with a LoRA."""
    torch.manual_seed(0)
    names = relation_names(sentence.tree() for sentence in sentences)
    base = adapt(load("minilm").shallow(layers), LoRA(), Parser(names))
    for parameter in parser_of(base.model).parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    return TreeParser(base, Parse(), pick_precision("auto", torch.device("cpu")))


def parse(trained: TreeParser, sentences: Sequence[Sentence], size: int) -> float:
    """The seconds that it takes to parse sentences, so many at once."""
    start, lines = time.perf_counter(), 0
    for first in range(0, len(sentences), size):
        answers = trained.answer(sentences[first : first + size], first)
        lines += sum(written(answer).count("\n") for answer in answers)
    assert lines >= sum(len(sentence.places) for sentence in sentences)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
