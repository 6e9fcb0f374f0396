"""`peftlab.load`: what it takes from the thread that looks at the base's files while torch is imported."""

import pytest

import peftlab
from peftlab import loading


@pytest.fixture
def folder(tmp_path, minilm):
    base = peftlab.load(minilm)
    base.save(tmp_path)
    return tmp_path


def refuse(name: str) -> None:
    raise AssertionError(f"{name} was asked for again")


def test_what_was_kept_is_not_fetched(folder, monkeypatch):
    monkeypatch.setattr(loading, "kept_base", lambda name: folder)
    monkeypatch.setattr(loading, "fetch_base", refuse)
    assert peftlab.load("a name").name == "a name"


def test_what_was_not_kept_is_fetched(folder, monkeypatch):
    monkeypatch.setattr(loading, "kept_base", lambda name: None)
    monkeypatch.setattr(loading, "fetch_base", lambda name: folder)
    assert peftlab.load("another name").name == "another name"


def test_a_mistake_in_the_thread_is_told(monkeypatch):
    def broken(name: str) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(loading, "kept_base", broken)
    with pytest.raises(OSError, match="the disk is gone"):
        peftlab.load("minilm")
