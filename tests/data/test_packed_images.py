"""Images in Parquet files: from a hub on loopback and from folders, against what was packed, and every mistake."""

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import huggingface_hub.constants
import numpy
import pyarrow
import pytest
import torch
from hub import Hub
from huggingface_hub import close_session
from PIL import Image
from pyarrow import parquet

from peftlab.data.pictures import load_pictures
from peftlab.errors import UserError

PIXELS = numpy.random.default_rng(0).integers(0, 256, (8, 6, 6, 3), dtype=numpy.uint8)
NAMES = ["cat", "dog"]


def png(pixels: numpy.ndarray) -> bytes:
    out = BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def table(images, labels, names: list[str] | None = None, **renamed: str) -> bytes:
    """A Parquet file as `datasets` writes it."""
    columns = {"image": [{"bytes": image, "path": "a.png"} for image in images], "label": list(labels)}
    content = pyarrow.table({renamed.get(name, name): values for name, values in columns.items()})
    if names is not None:
        features = {"image": {"_type": "Image"}, renamed.get("label", "label"): {"names": names, "_type": "ClassLabel"}}
        content = content.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    out = BytesIO()
    parquet.write_table(content, out)
    return out.getvalue()


def whole(**choices) -> dict[str, bytes]:
    files = [png(pixels) for pixels in PIXELS]
    return {
        "data/train-00000-of-00002.parquet": table(files[:4], [0, 1, 1, 0], **choices),
        "data/train-00001-of-00002.parquet": table(files[4:6], [1, 0], **choices),
        "data/test-00000-of-00001-0a1b2c.parquet": table(files[6:], [1, 0], **choices),
    }


def write(folder: Path, files: dict[str, bytes]) -> str:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return str(folder)


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[Hub]:
    monkeypatch.setenv("PEFTLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    close_session()
    with Hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server
    close_session()


def test_a_data_set_of_the_hub_gives_its_images_labels_and_names(hub):
    hub.datasets["lab/pets"] = whole(names=NAMES) | {"README.md": b"# pets"}
    data = load_pictures("lab/pets", size=6)
    assert data.labels == ("cat", "dog")
    assert data.train.labels == [0, 1, 1, 0, 1, 0]
    assert data.tests["test"].labels == [1, 0]
    expected = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
    assert torch.equal(data.train.pixels, expected[:6])
    assert torch.equal(data.tests["test"].pixels, expected[6:])
    hub.requests.clear()
    assert load_pictures("lab/pets", size=6).fingerprint() == data.fingerprint()
    assert hub.requests == []
    assert load_pictures("lab/pets", size=6, classes=["dog", "cat"]).train.labels == [1, 0, 0, 1, 0, 1]


def test_a_column_that_says_it_has_classes_is_the_label_whatever_its_name(tmp_path):
    files = whole(names=NAMES, label="fine_label", image="img")
    assert load_pictures(write(tmp_path, files), size=6).labels == ("cat", "dog")


@pytest.mark.parametrize(("values", "names"), [([10, 9], ("9", "10")), (["b", "a"], ("a", "b"))])
def test_without_names_the_labels_that_occur_are_their_names(tmp_path, values, names):
    files = [png(pixels) for pixels in PIXELS]
    content = table(files, values * 4)
    data = load_pictures(write(tmp_path, {"train.parquet": content, "val.parquet": content}), size=6)
    assert (data.labels, data.tests["val"].labels) == (names, [1, 0] * 4)


def test_a_row_that_can_not_be_used_is_told_by_its_file_and_number(tmp_path, recwarn):
    files = [png(pixels) for pixels in PIXELS]
    files[1], files[4] = files[1][:-30], b""
    folder = write(tmp_path, {"train.parquet": table(files, [0, 1, 0, 7, 1, 0, 1, None], names=NAMES)})
    with pytest.raises(UserError, match=r"train.parquet, row 2 is damaged: .*; images.broken = .skip. goes on"):
        load_pictures(folder, size=6)
    recwarn.clear()
    data = load_pictures(folder, size=6, broken="skip")
    assert len(data.train) + len(data.tests["test"]) == 4
    told = [str(warning.message).split("train.parquet, ")[1] for warning in recwarn]
    assert [text.split(",")[0].split(":")[0] for text in told] == [
        "row 2 is damaged",
        "row 4 has the label 7",
        "row 5 is no image",
        "row 8 has the label None",
    ]


ONE = table([png(PIXELS[0])], [0])
BARE = BytesIO()
parquet.write_table(pyarrow.table({"text": ["a"], "label": [0]}), BARE)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a/train.parquet": ONE, "b/train.parquet": ONE}, r"/a and .*/b both have Parquet files: give one of them"),
        ({"test.parquet": ONE}, "has no training images: a file such as train-"),
        ({"train.parquet": BARE.getvalue()}, "has the columns text, label: none has image files in it"),
        ({"train.parquet": table([b""], [0], label="kind")}, "the columns image, kind: none is called label or"),
        ({"train.parquet": table([b""], [0.5])}, "column 'label' is of the type double: labels are whole numbers"),
        ({"train.parquet": ONE[:-9]}, "train.parquet cannot be read as Parquet"),
        (whole(names=NAMES) | {"data/test-00000-of-00001.parquet": BARE.getvalue()}, "has no column 'image'"),
        ({"train.parquet": ONE}, r"has images of 1 class\(es\) to train on"),
    ],
)
def test_a_mistake_is_told(tmp_path, files, message):
    with pytest.raises(UserError, match=message):
        load_pictures(write(tmp_path / "data set", files), size=6)


def test_a_hub_id_that_is_not_there_is_told(hub):
    with pytest.raises(UserError, match=r"cannot fetch data 'lab/pests' .*there is none of that name"):
        load_pictures("lab/pests", size=6)
