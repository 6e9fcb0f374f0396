"""The rate against its formula, the update against torch's, and which parameters decay."""

import itertools
import subprocess
import sys
from copy import deepcopy
from typing import get_args

import pytest
import torch
from torch import nn

from peftlab.train.config import Train
from peftlab.train.optim import SCHEDULES, adamw, rate


def test_the_rate_rises_and_falls():
    rates = [rate(step, 100, 0.1, "linear") for step in range(100)]
    assert rates[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert rates[10:] == pytest.approx([1 - i / 90 for i in range(90)])
    cosine = [rate(step, 100, 0.1, "cosine") for step in range(100)]
    assert cosine[55] == pytest.approx(0.5)
    assert all(a >= b for a, b in itertools.pairwise(cosine[10:]))
    assert {rate(step, 10, 0.0, "constant") for step in range(10)} == {1.0}


def test_the_linear_schedule_equals_that_of_transformers():
    from transformers import get_linear_schedule_with_warmup

    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    reference = get_linear_schedule_with_warmup(optimizer, 10, 100)
    for step in range(100):
        theirs = optimizer.param_groups[0]["lr"]
        # ours takes its first step at 1/10 of the rate, where theirs takes one at 0
        assert rate(step, 100, 0.1, "linear") == pytest.approx(theirs + (0.1 if step < 10 else 0.0))
        optimizer.step()
        reference.step()


@pytest.mark.parametrize(("steps", "warmup"), [(1000, 0.1), (50, 0.5), (20, 0.0)])
def test_the_inverse_square_root_is_that_of_the_paper(steps, warmup):
    width, rise = 512, max(1, round(warmup * steps))
    paper = [width**-0.5 * min(step**-0.5, step * rise**-1.5) for step in range(1, steps + 1)]  # section 5.3
    peak = (width * rise) ** -0.5
    assert max(paper) == pytest.approx(peak)
    assert [peak * rate(step, steps, warmup, "inverse_sqrt") for step in range(steps)] == pytest.approx(paper)


def test_every_schedule_can_be_configured():
    choices = get_args(Train.model_fields["schedule"].annotation)
    assert {*choices} == SCHEDULES.keys()


def test_only_matrices_decay():
    layer = nn.Linear(3, 3)
    groups = adamw(layer.parameters(), 1.0, 0.5).param_groups
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(1, 0.5), (1, 0.0)]


def test_some_parameters_have_a_rate_of_their_own():
    body, head = nn.Linear(3, 3), nn.Linear(3, 2)
    parameters = [*body.parameters(), *head.parameters()]
    groups = adamw(parameters, 1.0, 0.5, dict.fromkeys(head.parameters(), 0.1)).param_groups
    rates = {id(parameter): group["peak"] for group in groups for parameter in group["params"]}
    assert [rates[id(parameter)] for parameter in parameters] == [1.0, 1.0, 0.1, 0.1]


def test_the_update_is_that_of_torch():
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    theirs = deepcopy(ours)
    mine = adamw(ours.parameters(), 0.01, 0.1)
    groups = [{"params": [p for p in theirs.parameters() if p.ndim == n]} for n in (2, 1)]
    stock = torch.optim.AdamW(
        [{**groups[0], "weight_decay": 0.1}, {**groups[1], "weight_decay": 0.0}], lr=0.01, fused=True
    )
    for step in range(5):
        learned = 2 if step == 2 else 0  # once the first layer has no gradient, and stays as it is
        for model in (ours, theirs):
            x = torch.randn(4, 7 if learned else 5, generator=torch.Generator().manual_seed(step))
            model[learned:](x).square().sum().backward()
        for optimizer in (mine, stock):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (5 - step)
            optimizer.step()
            optimizer.zero_grad()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a, b)
            assert a.grad is None


def test_it_does_not_import_the_compiler():
    code = """
import sys, torch
from torch import nn
from peftlab.train.optim import adamw
layer = nn.Linear(3, 3)
layer(torch.ones(2, 3)).sum().backward()
nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
adamw(layer.parameters(), 1.0, 0.5).step()
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
