"""What a grid's runs are told, and how long they are said to take."""

from pathlib import Path

import pytest

from peftlab.compare.grid import Job, plan
from peftlab.errors import UserError
from peftlab.train.config import Config


def rates(*overrides: str) -> dict[str, float | None]:
    jobs = plan(["lora", "full"], "task", [{"name": "reviews"}], 1, Path("out"), {}, overrides)
    return {job.config.method["name"]: job.config.train.lr for job in jobs}


def test_a_method_can_have_a_learning_rate_of_its_own():
    assert rates("full.lr=3e-4") == {"lora": None, "full": 3e-4}
    assert rates("train.lr=1e-3", "full.lr=3e-4") == {"lora": 1e-3, "full": 3e-4}


def test_a_setting_that_a_method_has_not_is_refused():
    with pytest.raises(UserError, match=r"unknown setting of full .*'rank': \(there are none\)"):
        rates("full.rank=4")


def test_the_time_left_counts_the_steps_since_it_goes_on():
    job = Job(Config(), Path("run"), "a run", started=100.0)
    assert job.left(110.0) is None
    job.begun, job.step, job.steps = 3000, 3010, 3900
    assert job.left(110.0) == pytest.approx(890)
