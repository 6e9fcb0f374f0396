"""Asking a model for an answer to each row, in evaluation, in tests and in `predict`: batches of like length.

On a processor as many batches are asked at once as there are threads, each on one of them. Products that small do not
fill two threads: on MiniLM with two cores that is 1.25 times as fast as one batch after the other. Whatever is drawn
comes with the rows, so that the order in which answers come changes nothing.

    ask(model, rows, task.judge, "fp32")             # an answer a row, in their order
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from peftlab.models.model import Model
from peftlab.tasks.task import Rows
from peftlab.train.order import sorted_batches
from peftlab.train.precision import computing_in
from peftlab.train.stop import Stop

TOKENS = 4096
"""the most of all batches that are asked at once"""
WORTH, CACHED = 512, 1024
"""tokens that are worth a thread, and those of which a processor's cache holds what is computed"""

Answer = TypeVar("Answer")
Question = Callable[[Model, Any, Tensor], Sequence[Answer]]


def ask(model: Model, data: Rows, question: Question[Answer], precision: str, stop: Stop | None = None) -> list[Answer]:
    """What a model answers for each row, in their order; the question is asked batch by batch."""
    training, device = model.training, next(model.parameters()).device
    found: dict[int, Answer] = {}

    @torch.no_grad()
    def answer(inputs: Any, labels: Tensor) -> Sequence[Answer]:
        with computing_in(precision, device, again=True):
            return question(model, inputs.to(device), labels.to(device))

    model.eval()
    try:
        with threads_of(device) as (pool, count):
            asked: deque[tuple[list[int], Future[Sequence[Answer]]]] = deque()
            for rows in most_work_first(data.lengths(), in_a_batch(device)):
                if stop is not None:
                    stop.check()
                asked.append((rows, pool.submit(answer, *data.batch(rows))))
                if len(asked) > count:
                    first, answers = asked.popleft()
                    found |= dict(zip(first, answers.result(), strict=True))
            for rows, answers in asked:
                found |= dict(zip(rows, answers.result(), strict=True))
    finally:
        model.train(training)
    return [found[row] for row in range(len(data))]


def most_work_first(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """The batches by their tokens with padding: with the small ones at the end, no thread waits long for another."""
    return sorted(sorted_batches(lengths, tokens), key=lambda rows: -len(rows) * lengths[rows[-1]])


def at_once(device: torch.device) -> int:
    """How many batches are asked at the same time."""
    return min(torch.get_num_threads(), TOKENS // WORTH) if device.type == "cpu" else 1


def in_a_batch(device: torch.device) -> int:
    """The most tokens of a batch."""
    return min(TOKENS // at_once(device), CACHED) if device.type == "cpu" else TOKENS


class Here(Executor):
    """Asks in the thread that it is called from: one more would have memory of its own."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


@contextmanager
def threads_of(device: torch.device) -> Iterator[tuple[Executor, int]]:
    """Threads that share those of torch, and how many there are; another device is given one batch after the other."""
    before, count = torch.get_num_threads(), at_once(device)
    if count == 1:
        yield Here(), 1
        return
    try:
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(before // count,)) as pool:
            yield pool, count
    finally:
        torch.set_num_threads(before)  # a thread's own number is also that of threads to come
