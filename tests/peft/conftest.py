"""What the tests of methods share."""

import pytest


@pytest.fixture
def base(minilm):
    import peftlab

    return peftlab.load(minilm)
