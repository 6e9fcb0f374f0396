"""How much memory a piece of work takes at its peak: every allocation is counted, so the number is always the same."""

from collections.abc import Callable
from itertools import accumulate

from torch.profiler import ProfilerActivity, profile


def peak(work: Callable[[], object]) -> int:
    """The most bytes that tensors took at any time in `work`, beyond those that they took before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = work()
    assert seen.profiler is not None
    assert seen.profiler.kineto_results is not None
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    del kept
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(accumulate(changes), default=0)
