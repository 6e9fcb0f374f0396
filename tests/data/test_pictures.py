"""Labelled images: digits, IDX files and folders against what was written; every bad file is told by its path."""

import gzip
import struct
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image
from scipy.ndimage import affine_transform
from sklearn.datasets import load_digits

from peftlab.data.augment import Augment
from peftlab.data.decode import read_images
from peftlab.data.pictures import fitted, load_pictures, read_idx
from peftlab.errors import UserError


def idx(values: numpy.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_idx(folder: Path, images: numpy.ndarray, labels: numpy.ndarray, split: str, gz: bool) -> None:
    folder.mkdir(exist_ok=True)
    for name, values in ((f"{split}-images-idx3-ubyte", images), (f"{split}-labels-idx1-ubyte", labels)):
        (folder / f"{name}{'.gz' * gz}").write_bytes(gzip.compress(idx(values)) if gz else idx(values))


def shades(*shape: int) -> numpy.ndarray:
    return numpy.random.default_rng(0).integers(0, 256, shape, dtype=numpy.uint8)


def write_folder(folder: Path, per_class: int = 5) -> Path:
    """Dark and bright images of colours, of several sizes."""
    for label, low in (("bright", 150), ("dark", 0)):
        (folder / label).mkdir(parents=True)
        for i in range(per_class):
            pixels = shades(6 + i, 9, 3) // 3 + low
            Image.fromarray(pixels).save(folder / label / f"{i}.{('png', 'bmp', 'tiff')[i % 3]}")
    return folder


def test_digits_are_those_of_scikit_learn_and_a_fifth_of_each_is_the_test():
    data, found = load_pictures("digits"), load_digits()
    assert (len(data.train), len(data.tests["test"])) == (1438, 359)
    for part in (data.train, data.tests["test"]):
        numbers = [row - 1 for row in part.rows]
        expected = torch.from_numpy(found.images[numbers])
        assert part.pixels.shape == (len(part), 1, 8, 8)
        assert torch.equal((part.pixels[:, 0] * (16 / 255)).round(), expected.float())
        assert part.labels == found.target[numbers].tolist()
    assert data.labels == tuple("0123456789")


@pytest.mark.parametrize("gz", [False, True])
def test_idx_files_give_the_bytes_that_are_in_them(tmp_path, gz):
    parts = {"train": (shades(6, 5, 4), numpy.array([0, 1, 2, 0, 1, 2], numpy.uint8))}
    parts["t10k"] = (shades(2, 5, 4), numpy.array([2, 0], numpy.uint8))
    for split, (images, labels) in parts.items():
        write_idx(tmp_path / "mine", images, labels, split, gz)
    data = load_pictures(str(tmp_path / "mine"))
    assert data.labels == ("0", "1", "2")
    for part, (images, labels) in zip((data.train, data.tests["test"]), parts.values(), strict=True):
        assert torch.equal(part.pixels[:, 0], torch.from_numpy(images))
        assert part.labels == labels.tolist()
    again = load_pictures(str(tmp_path / "mine"))
    assert again.fingerprint() == data.fingerprint()
    again.train.pixels[0, 0, 0, 0] ^= 1
    assert again.fingerprint() != data.fingerprint()


def test_images_are_fitted_as_pillow_resizes_them():
    pixels = torch.from_numpy(shades(3, 1, 9, 7))
    assert fitted(pixels[..., :7, :], 7, 1).equal(pixels[..., :7, :])
    for size in (4, 12):
        found = fitted(pixels, size, 3)
        for before, after in zip(pixels, found, strict=True):
            expected = Image.fromarray(before[0].numpy()).resize((size, size), Image.Resampling.BILINEAR)
            difference = after.int() - torch.from_numpy(numpy.array(expected)).int()
            assert difference.shape == (3, size, size)
            assert difference.abs().max() <= 1


def test_fashion_mnist_is_found_and_its_labels_have_names(tmp_path, monkeypatch):
    monkeypatch.setenv("PEFTLAB_DATA", str(tmp_path))
    monkeypatch.setattr("peftlab.data.pictures.DEBIAN", tmp_path / "nowhere")
    with pytest.raises(UserError, match="apt install dataset-fashion-mnist, or give the folder of its IDX files"):
        load_pictures("fashion-mnist")
    labels = numpy.arange(20, dtype=numpy.uint8) % 10
    write_idx(tmp_path / "fashion-mnist", shades(20, 28, 28), labels, "train", True)
    data = load_pictures("fashion-mnist")
    assert (data.labels[0], data.labels[-1], data.name) == ("T-shirt", "ankle boot", "fashion-mnist")


def test_of_some_classes_the_same_rows_stay_in_each_part_and_are_numbered_as_asked():
    whole, data = load_pictures("digits"), load_pictures("digits", classes=["8", "3"])
    assert data.labels == ("8", "3")
    parts = [(whole.train, data.train), (whole.tests["test"], data.tests["test"])]
    for before, after in parts:
        numbers = [i for i, label in enumerate(before.labels) if label in (3, 8)]
        assert after.rows == [before.rows[i] for i in numbers]
        assert after.labels == [0 if before.labels[i] == 8 else 1 for i in numbers]
        assert torch.equal(after.pixels, before.pixels[numbers])


WHOLE = idx(shades(3, 2, 2))
DAMAGED = {
    "cut": (WHOLE[:-1], "says that it has 3×2×2 values, and has not"),
    "long": (WHOLE + b"x", "says that it has 3×2×2 values, and has not"),
    "vast": (bytes([0, 0, 8, 3]) + b"\xff" * 12 + b"x", "4294967295×4294967295×4294967295 values, and has not"),
    "floats": (bytes([0, 0, 13, 3]) + WHOLE[4:], "no IDX file of bytes in 3 dimension"),
    "none": (bytes([0, 0, 8, 3]) + bytes(12), "says that it has 0×0×0 values, and has not"),
    "empty": (b"", "no IDX file of bytes"),
    "text.gz": (b"not packed", "is damaged: Not a gzipped file"),
    "cut.gz": (gzip.compress(WHOLE)[:-12], "is damaged"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_idx_file_is_told_by_its_path(tmp_path, name):
    content, message = DAMAGED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} .*{message}"):
        read_idx(tmp_path / name, 3)


def test_folders_are_classes_and_what_is_beside_train_is_the_test(tmp_path):
    data = load_pictures(str(write_folder(tmp_path / "flat")), size=8)
    assert data.labels == ("bright", "dark")
    assert (data.train.pixels.shape, len(data.tests["test"])) == ((8, 3, 8, 8), 2)
    means = data.train.pixels.float().mean((1, 2, 3))
    assert all((mean > 120) == (label == 0) for mean, label in zip(means, data.train.labels, strict=True))
    write_folder(tmp_path / "parts" / "train", 3)
    write_folder(tmp_path / "parts" / "val", 2)
    data = load_pictures(str(tmp_path / "parts"), size=8, channels=1)
    assert (data.train.pixels.shape, len(data.tests["val"])) == ((6, 1, 8, 8), 4)
    (tmp_path / "parts" / "val" / "dark").rename(tmp_path / "parts" / "val" / "drak")
    with pytest.raises(UserError, match=r"unknown class in .*val 'drak': did you mean 'dark'"):
        load_pictures(str(tmp_path / "parts"), size=8)


def test_every_kind_of_pixel_is_seen_as_a_viewer_shows_it(tmp_path):
    """One picture, half black and half a fifth of white, in every mode."""
    grey = numpy.zeros((4, 4), numpy.uint8)
    grey[:, 2:] = 51
    images = {
        "grey": Image.fromarray(grey),
        "colours": Image.fromarray(grey).convert("RGB"),
        "palette": Image.fromarray(grey).convert("P"),
        "16": Image.fromarray(grey.astype(numpy.uint16) * 257),
        "alpha": Image.merge("LA", [Image.fromarray(grey), Image.new("L", (4, 4), 255)]),
        "rgba": Image.fromarray(grey).convert("RGBA"),
    }
    for name, image in images.items():
        image.save(tmp_path / f"{name}.png")
    for channels in (1, 3):
        for found in read_images([tmp_path / f"{name}.png" for name in images], 4, channels):
            assert torch.equal(found, torch.from_numpy(grey).expand(channels, 4, 4))
    Image.new("RGBA", (4, 4), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    sideways = Image.fromarray(grey)
    exif = sideways.getexif()
    exif[0x0112] = 6  # the camera was turned
    sideways.save(tmp_path / "turned.png", exif=exif)
    clear, turned = read_images([tmp_path / "clear.png", tmp_path / "turned.png"], 4, 1)
    assert (clear == 255).all()
    assert torch.equal(turned[0], torch.from_numpy(grey).T)
    [resized] = read_images([tmp_path / "colours.png"], 2, 1)
    assert resized.shape == (1, 2, 2)
    assert resized[0, 0, 0] < resized[0, 0, 1]


def write_bad(folder: Path) -> dict[str, str]:
    """Files that can't be used → what is said of them."""
    Image.fromarray(shades(40, 40, 3)).save(folder / "whole.png")
    whole = (folder / "whole.png").read_bytes()
    (folder / "whole.png").unlink()
    (folder / "cut.png").write_bytes(whole[: len(whole) // 2])
    (folder / "flipped.png").write_bytes(whole[:60] + bytes([whole[60] ^ 255]) + whole[61:])
    (folder / "empty.png").touch()
    (folder / "text.png").write_text("no image at all")
    (folder / "drawing.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n")
    Image.new("L", (1, 1)).save(folder / "point.png")
    Image.new("1", (10_000, 10_000)).save(folder / "bomb.png")
    Image.new("F", (4, 4)).save(folder / "floats.tiff")
    return {
        "cut.png": "is damaged",
        "flipped.png": "is damaged",
        "empty.png": "is no image",
        "text.png": "is no image, whatever its name says",
        "drawing.png": "is no image",
        "point.png": "has one pixel",
        "bomb.png": "has more than 89 million pixels and is not decoded",
        "floats.tiff": "floating point",
    }


def test_every_bad_image_is_told_by_its_path_and_the_config_says_what_then(tmp_path, recwarn):
    folder = write_folder(tmp_path / "data")
    bad = write_bad(folder / "dark")
    for name, message in bad.items():
        [problem] = read_images([folder / "dark" / name], 8, 3)
        assert isinstance(problem, UserError), name
        assert str(problem).startswith(f"{folder / 'dark' / name} {message}"[: len(str(folder)) + 6])
        assert message in str(problem)
    with pytest.raises(UserError, match=r'dark/bomb.png .*; images.broken = "skip" goes on without it'):
        load_pictures(str(folder), size=8)
    (folder / "none").mkdir()
    recwarn.clear()
    data = load_pictures(str(folder), size=8, broken="skip")
    assert (len(data.train) + len(data.tests["test"]), data.labels) == (10, ("bright", "dark"))
    told = [str(warning.message) for warning in recwarn]
    for path in (folder / "none", *(folder / "dark" / name for name in bad)):
        assert sum(text.startswith(f"{path} ") and text.endswith("; it is left out") for text in told) == 1, path
    assert len(told) == len(bad) + 1
    with pytest.raises(UserError, match="none has no image"):
        load_pictures(str(folder), size=8)


@pytest.mark.parametrize(
    ("name", "choices", "message"),
    [
        ("digts", {}, "unknown images 'digts': did you mean 'digits'.*no folder that exists"),
        ("flat", {}, "may have any size: say which they are to have, images.size"),
        ("flat", {"size": 8, "channels": 4}, "channels is 4: an image has 1 .grey. or 3"),
        ("flat/dark", {"size": 8}, "has neither IDX files nor class folders with images"),
        ("single", {"size": 8}, "has images of 1 class.es. to train on: there must be two"),
        ("half", {}, "has no train-labels-idx1-ubyte.gz"),
        ("uneven", {}, "has 3 images and 2 labels"),
        ("flat", {"size": 8, "classes": ["bright", "drak"]}, "unknown class of flat .*'drak': did you mean 'dark'"),
        ("flat", {"size": 8, "classes": ["dark"]}, "images.classes is dark: name two or more, each once"),
        ("flat", {"size": 8, "classes": ["dark", "dark"]}, "is dark, dark: name two or more, each once"),
        ("gap", {"classes": ["0", "1"]}, "a part of gap has no image of '1': leave it out"),
    ],
)
def test_a_mistake_is_told(tmp_path, name, choices, message):
    write_folder(tmp_path / "flat")
    write_folder(tmp_path / "single")
    (tmp_path / "single" / "dark").rename(tmp_path / "dark")
    write_idx(tmp_path / "half", shades(3, 2, 2), numpy.zeros(3, numpy.uint8), "train", False)
    (tmp_path / "half" / "train-labels-idx1-ubyte").unlink()
    write_idx(tmp_path / "uneven", shades(3, 2, 2), numpy.zeros(2, numpy.uint8), "train", False)
    write_idx(tmp_path / "gap", shades(9, 2, 2), numpy.array([0, 2, 0, 2, 0, 2, 0, 2, 2], numpy.uint8), "train", False)
    with pytest.raises(UserError, match=message):
        load_pictures(name if name == "digts" else str(tmp_path / name), **choices)


@pytest.mark.parametrize("flip", [False, True])
def test_an_augmented_image_is_what_scipy_makes_of_the_same_draw(flip):
    pixels = torch.from_numpy(shades(20, 2, 8, 8))
    augment = Augment(shift=0.2, turn=30.0, zoom=0.3, flip=flip)
    torch.manual_seed(1)
    moved = augment(pixels)
    torch.manual_seed(1)
    assert torch.equal(augment(pixels), moved)
    torch.manual_seed(1)
    drawn = (2 * torch.rand(4, 20) - 1).double().numpy().T
    mirrored = (torch.rand(20) < 0.5).tolist() if flip else [False] * 20
    for (x, y, turn, zoom), mirror, before, after in zip(drawn, mirrored, pixels, moved, strict=True):
        turn, zoom = numpy.radians(30 * turn), 1 + 0.3 * zoom
        matrix = zoom * numpy.array([[numpy.cos(turn), numpy.sin(turn)], [-numpy.sin(turn), numpy.cos(turn)]])  # y, x
        matrix = matrix @ numpy.diag([1, -1 if mirror else 1])
        middle = numpy.array([3.5, 3.5])
        offset = middle - matrix @ middle + 8 * 0.2 * numpy.array([y, x])
        for channel in range(2):
            values = before[channel].double().numpy()
            expected = affine_transform(values, matrix, offset, order=1, mode="grid-constant")
            assert abs(after[channel].double().numpy() - expected).max() < 0.51
    still = Augment(shift=0, turn=0, zoom=0)
    assert torch.equal(still(pixels), pixels)
