"""What is frozen is computed once: the same logits and weights, the same bits after an interruption, bounded memory."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small import bits, films, left_alone_and_interrupted, write_base, write_films

import peftlab
from peftlab.data.augment import Augment
from peftlab.data.images import ImageReader
from peftlab.data.pictures import Pictures
from peftlab.data.words import Subwords
from peftlab.models.encoder import Block, Encoder, EncoderConfig
from peftlab.models.heads import Classifier
from peftlab.models.tagger import Tagger
from peftlab.models.vit import ViT, ViTConfig
from peftlab.peft import make_method
from peftlab.tasks import classify, parse, tag
from peftlab.train import frozen, memory
from peftlab.train.config import Config, Train
from peftlab.train.frozen import Frozen, ReadRows
from peftlab.train.loop import Training
from peftlab.train.order import sorted_batches
from peftlab.train.run import run

SIZES = {"dim": 16, "layers": 3, "heads": 2, "inner": 24}
PLENTY = 1 << 20
HEAD = {"name": "head"}
TOP = {"name": "lora", "layers": [2]}


def adapted(model, method, head=None):
    """A model whose method, or its head alone, trains."""
    peftlab.attach(model, "mine", make_method(method, "test"), head=head or Classifier(labels=3))
    peftlab.freeze(model)
    return model


def encoder(**choices) -> Encoder:
    return Encoder(EncoderConfig(**{**SIZES, "vocab": 50, "max_length": 20, "segments": 2} | choices))


def encoded(rows: int = 40) -> classify.Encoded:
    """Rows of 2 to 17 tokens."""
    ids = [torch.randint(1, 50, (2 + 5 * row % 16,)).tolist() for row in range(rows)]
    segments = [[int(t > 3) for t in range(len(row))] for row in ids]
    return classify.Encoded(ids, segments, [row % 3 for row in range(rows)], list(range(rows)), pad=0)


def pictured(augment: Augment | None = None) -> classify.Pictured:
    part = Pictures(
        torch.randint(0, 256, (10, 1, 8, 8), dtype=torch.uint8), [row % 3 for row in range(10)], [*range(10)]
    )
    return classify.Pictured(part, ImageReader((0.5,), (0.5,)), 8, 1, 5, augment)


def vit() -> ViT:
    return ViT(ViTConfig(**SIZES, image=8, patch=4, channels=1, dropout=0.1))


@pytest.mark.parametrize(
    ("method", "blocks"),
    [
        (HEAD, 3),
        (TOP, 2),
        ({"name": "lora", "layers": [1, 2]}, 1),
        ({"name": "lora", "at": ["encoder.2.ff.down"]}, 2),
        ({"name": "adapter", "layers": [2]}, 2),
        *(({"name": name}, 0) for name in ("lora", "adapter", "bitfit", "full", "prompt", "p_tuning", "prefix")),
    ],
    ids=str,
)
def test_the_lowest_block_that_learns(method, blocks):
    assert adapted(encoder(), method).frozen_blocks == blocks


def test_what_is_frozen_may_still_not_be_fixed():
    assert adapted(encoder(norm="batch"), HEAD).frozen_blocks == 0
    model = adapted(encoder(), HEAD)
    peftlab.attach(model, "other", make_method({"name": "lora", "layers": [1]}, "test"))
    model.requires_grad_(False)
    assert model.frozen_blocks == 1


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("pool", ["first", "mean"])
@pytest.mark.parametrize("method", [HEAD, TOP], ids=["head", "top"])
@pytest.mark.parametrize("reads", ["text", "text before norms", "images"])
def test_kept_states_give_the_logits_of_the_whole_model(reads, method, pool, precision):
    model = {"text": encoder, "text before norms": lambda: encoder(residual="pre"), "images": vit}[reads]()
    adapted(model, method, Classifier(labels=3, pool=pool)).train()
    data = pictured() if reads == "images" else encoded()
    read = Frozen(model, precision, PLENTY).read_once(data, 2)
    rows = [3, 8, 1, 9]
    given, labels = read.batch(rows)
    assert model.training
    model.eval()
    whole, expected = data.batch(rows)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        for only in (True, False):
            ours, theirs = (model(inputs, logits_only=only).logits.float() for inputs in (given, whole))
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6 if precision == "fp32" else 2e-2)
    assert torch.equal(labels, expected)


def test_labels_of_tokens_are_padded_as_before():
    ids = [torch.randint(1, 50, (length,)).tolist() for length in (4, 9, 6)]
    words = Subwords(ids, [[1, 2], [1, 3, 4, 7], [2]], 0, 0, 0)
    tags = tag.Encoded(words, [1, 2, 3], 0, [[0, 1], [1, 1, 0, 1], [0]], [], 0)
    trees = parse.Encoded(words, [1, 2, 3], 0, [[2, 0], [0, 1, 1, 3], [0]], [[0, 1], [1, 0, 0, 0], [1]], [])
    model = adapted(encoder(), HEAD, Tagger(labels=2))
    for data in (tags, trees):
        read = Frozen(model, "fp32", PLENTY).read_once(data, 2)
        for rows in ([0, 1, 2], [2, 0], [0]):
            assert torch.equal(read.batch(rows)[1], data.batch(rows)[1])
            assert read.weight(rows) == data.weight(rows)


def test_only_where_it_gains():
    text, images = adapted(encoder(), HEAD), adapted(vit(), HEAD)
    data = encoded()
    assert isinstance(Frozen(text, "fp32", PLENTY).read_once(data, 1.1), ReadRows)
    assert isinstance(Frozen(images, "fp32", PLENTY).read_once(pictured(), 2), ReadRows)
    augmented = pictured(Augment())
    assert Frozen(images, "fp32", PLENTY).read_once(augmented, 2) is augmented
    assert Frozen(text, "fp32", PLENTY).read_once(data, 1) is data
    assert Frozen(text, "fp32", 0).read_once(data, 2) is data
    assert Frozen(adapted(encoder(), {"name": "lora"}), "fp32", PLENTY).read_once(data, 2) is data


def test_what_a_schedule_freezes_for_a_while_is_not_kept():
    method, data = make_method({"name": "slow_start"}, "test"), encoded()
    model = adapted(encoder(), {"name": "slow_start"})
    training = Training(model, method, classify.Classify(), data, data, Train(epochs=3, precision="fp32"))
    training.step()
    assert model.frozen_blocks == 3
    assert training.given is data


@pytest.mark.parametrize("share", [0.3, 0.9, 1.0])
def test_memory_is_bounded_and_holds_no_padding(share):
    data, model = encoded(1000), adapted(encoder(), HEAD)
    needed = 4 * 16 * sum(data.lengths())
    room = int(share * needed)
    read = Frozen(model, "fp32", room).read_once(data, 2)
    for start in range(0, len(data), 10):
        read.batch(range(start, start + 10))
    taken = {
        known.states.untyped_storage().data_ptr(): known.states.untyped_storage().nbytes()
        for known in read.kept.values()
    }
    assert sum(taken.values()) == 4 * 16 * sum(len(known.states) for known in read.kept.values())
    assert sum(taken.values()) <= room
    assert sum(taken.values()) == needed if share == 1 else sum(taken.values()) > 0.5 * room


def test_what_is_kept_of_a_row_does_not_depend_on_who_asks_first(monkeypatch):
    """A run that goes on asks in another order than one that began; sums over other batches have other last bits."""
    data, model, read = encoded(200), adapted(encoder(), HEAD), Frozen.read
    found = []
    for order in (range(200), [*range(120, 200), *range(120)]):
        computed: list[list[int]] = []
        monkeypatch.setattr(Frozen, "read", lambda *given, to=computed: to.append(given[2]) or read(*given))
        rows = Frozen(model, "fp32", PLENTY).read_once(data, 2)
        for start in range(0, 200, 8):
            rows.batch(order[start : start + 8])
        found.append((sorted(computed), rows.kept))
    (batches, kept), (again, others) = found
    assert batches == again == sorted(sorted_batches(data.lengths()))
    assert all(torch.equal(kept[row].states, others[row].states) for row in range(200))


def test_both_parts_share_the_room():
    data, model = encoded(), adapted(encoder(), HEAD)
    one = Frozen(model, "fp32", 4 * 16 * sum(data.lengths()))
    assert isinstance(one.read_once(data, 2), ReadRows)
    assert one.room == 0
    assert one.read_once(data, 2) is data


def test_a_container_has_less_than_its_machine(tmp_path, monkeypatch):
    assert memory.available_memory() > 1_000_000
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.stat").write_text("anon 300000\nfile 600000\n")
    monkeypatch.setattr(memory, "LIMIT", tmp_path / "memory.max")
    assert memory.available_memory() == 700_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_memory() > 1_000_000


def test_at_most_a_quarter_of_what_is_free(monkeypatch):
    for there, expected in ((1 << 40, 2 << 30), (4 << 30, 1 << 30)):
        monkeypatch.setattr(frozen, "available_memory", lambda there=there: there)
        assert frozen.room_for(None) == expected
        assert frozen.room_for(123) == 123


def settings(base: Path, file: Path, method, **train) -> Config:
    return films(base, file, **{"precision": "fp32"} | train).model_copy(update={"method": method})


UPPER = {"name": "lora", "layers": [1]}
"""the upper of the small base's two blocks"""
SOME = 35_000
"""bytes for the validation rows and a part of the training rows"""


@pytest.fixture(scope="module")
def films_file(tmp_path_factory) -> Path:
    """Reviews of very different lengths."""
    path = write_films(tmp_path_factory.mktemp("data") / "films.csv")
    header, *lines = path.read_text().splitlines()
    longer = [line.replace(" number", " once more" * (i % 10) + " number") for i, line in enumerate(lines)]
    path.write_text("\n".join([header, *longer]) + "\n")
    return path


@pytest.fixture(scope="module")
def steady(tmp_path_factory, minilm) -> Path:
    """A base without dropout."""
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return write_base(tmp_path_factory.mktemp("steady"), minilm, **none)


@pytest.mark.parametrize("method", [HEAD, UPPER], ids=["head", "upper"])
def test_a_training_without_dropout_ends_with_the_same_weights(method, steady, films_file, tmp_path):
    found = {}
    for cache in (0, SOME, None):
        run(settings(steady, films_file, method, cache=cache), tmp_path / str(cache))
        weights = (tmp_path / str(cache) / "adapter").glob("*.safetensors")
        found[cache] = {(file.name, name): tensor for file in weights for name, tensor in load_file(file).items()}
    for cache in (SOME, None):
        torch.testing.assert_close(found[cache], found[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "cache"), [(HEAD, None), (HEAD, SOME), (UPPER, SOME)], ids=["head", "some", "upper"]
)
def test_an_interrupted_run_ends_with_the_same_bits(method, cache, tiny, films_file, tmp_path):
    config = settings(tiny, films_file, method, cache=cache, checkpoint=0)
    left_alone_and_interrupted(config, tmp_path, at=7)
    run(config, tmp_path / "twice")
    assert bits(tmp_path / "again") == bits(tmp_path / "whole") == bits(tmp_path / "twice")


def test_an_interrupted_run_goes_on_with_the_room_that_it_had(tiny, films_file, tmp_path, monkeypatch):
    config = settings(tiny, films_file, HEAD, checkpoint=0)
    free = iter([4 * SOME, 4 * SOME, 0])
    monkeypatch.setattr(frozen, "available_memory", lambda: next(free))  # begun, left alone, gone on
    left_alone_and_interrupted(config, tmp_path, at=7)
    assert bits(tmp_path / "again") == bits(tmp_path / "whole")


@pytest.mark.parametrize(("method", "below"), [(HEAD, 2), (UPPER, 1)], ids=["head", "upper"])
def test_each_row_passes_what_is_frozen_once(method, below, tiny, films_file, tmp_path, monkeypatch):
    """Rows that are not tested pass in each of three epochs, or at each of three evaluations, without a cache."""
    passed: list[int] = []
    forward = Block.forward

    def counting(block, x, *others, **more):
        passed.append(len(x))
        return forward(block, x, *others, **more)

    monkeypatch.setattr(Block, "forward", counting)
    counts = {}
    for cache in (0, SOME, None):
        passed.clear()
        result = run(settings(tiny, films_file, method, cache=cache, steps=18), tmp_path / str(cache))
        counts[cache] = sum(passed)
    tested = len(result["predictions"]["test"])
    assert counts[0] > counts[SOME] > counts[None]
    assert counts[0] - counts[None] == below * (3 - 1) * (60 - tested)
