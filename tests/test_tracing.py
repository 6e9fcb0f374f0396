"""The shape trace against the model's own configuration."""

import peftlab
from peftlab.tracing import shorten, trace


def test_every_step_is_named_and_every_block_is_there(minilm):
    base = peftlab.load(minilm)
    steps = trace(base, ("a premise", "a hypothesis"))
    T = base.encode([("a premise", "a hypothesis")]).ids.shape[1]
    size = {"batch": 1, "token": T, "query": T, "key": T, "width": 384}
    size |= {"head": 12, "head width": 32, "inner width": 1536}
    for step in steps:
        assert step.shape == tuple(size[name] for name in step.dims), step
    blocks = [[step.where for step in steps if step.layer == layer] for layer in range(6)]
    assert blocks == [blocks[0]] * 6
    assert len(blocks[0]) == 13
    assert len(shorten(steps)) == len(steps) - 5 * 13 + 1


def test_no_hook_is_left_behind(minilm):
    base = peftlab.load(minilm)
    trace(base, "a sentence")
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in base.model.modules())
