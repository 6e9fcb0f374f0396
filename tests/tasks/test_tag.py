"""Tagging: batches, loss and scores against formulas, and entities against conlleval's rules, written out."""

import math
import random
from pathlib import Path

import pytest
import torch

import peftlab
from peftlab.data.tagged import Tagged
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.models.encoder import Encoder, EncoderConfig
from peftlab.models.tagger import Tagger
from peftlab.tasks.tag import Tag, check_bio, encode, entities, is_bio, repair, scores, tag_names
from peftlab.train.asking import ask
from peftlab.train.loop import backward


def tagged(text: str, line: int = 1) -> Tagged:
    pairs = [word.rsplit("/", 1) for word in text.split()]
    return Tagged([word for word, _ in pairs], [tag for _, tag in pairs], Path("a.conll"), line)


SENTENCES = [
    tagged("the/DET dog/NOUN barks/VERB"),
    tagged("the/DET cats/NOUN see/VERB the/DET barking/ADJ dogs/NOUN", 5),
    tagged("see/VERB dogs/NOUN", 12),
    tagged("cats/NOUN bark/VERB at/ADP dogs/NOUN", 15),
]
NAMES = ("ADJ", "ADP", "DET", "NOUN", "VERB")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train_on([" ".join(s.words) for s in SENTENCES], vocab_size=45)


def small(tokenizer: Tokenizer, names: tuple[str, ...], method=None) -> Encoder:
    config = EncoderConfig(vocab=tokenizer.vocab_size, dim=32, layers=1, heads=2, inner=32, max_length=64, dropout=0.0)
    model = Encoder(config)
    peftlab.attach(model, "mine", method or peftlab.Full(), head=Tagger(labels=names, dropout=0.0))
    return model


def test_the_loss_is_the_mean_over_first_subwords_whatever_the_batch(tokenizer):
    names = tag_names(SENTENCES)
    assert names == NAMES
    rows, model, task = encode(tokenizer, SENTENCES, names, 64), small(tokenizer, names).eval(), Tag(names, bio=False)
    terms = []
    for row, sentence in enumerate(SENTENCES):
        logits = model(rows.batch([row])[0]).logits[0]
        for first, tag in zip(rows.words.firsts[row], sentence.tags, strict=True):
            terms.append(-logits[first].log_softmax(0)[names.index(tag)].item())
    assert len(terms) == rows.weight(range(4)) == 15
    assert sum(rows.lengths()) > 15 + 2 * 4, "some words have several subwords"
    mean = sum(terms) / len(terms)
    assert task.loss(model, *rows.batch([2, 0, 3, 1])).item() == pytest.approx(mean, rel=1e-5)
    for parts in (2, 3, 4):
        assert backward(model, task, rows, [3, 1, 0, 2], parts, "fp32") == pytest.approx(mean, rel=1e-5)


def test_a_tagger_learns_and_is_asked_through_the_loop(tokenizer):
    rows, model, task = encode(tokenizer, SENTENCES, NAMES, 64), small(tokenizer, NAMES), Tag(NAMES, bio=False)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(40):
        optimizer.zero_grad()
        task.loss(model, *rows.batch(range(4))).backward()
        optimizer.step()
    judged = ask(model, rows, task.judge, "fp32")
    assert judged == [sentence.tags for sentence in SENTENCES]
    assert task.score(judged, rows) == 1.0


def test_tags_that_training_has_not_seen_are_counted_wrong_and_teach_nothing(tokenizer):
    unseen = [tagged("the/DET dog/X barks/VERB"), tagged("dogs/X", 7)]
    rows, model, task = encode(tokenizer, unseen, NAMES, 64), small(tokenizer, NAMES).eval(), Tag(NAMES, bio=False)
    assert (rows.unseen, rows.rows, rows.labels) == (2, [1, 7], [[2, -1, 4], [-1]])
    assert [len(row) for row in task.judge(model, *rows.batch([0, 1]))] == [3, 1]
    assert task.loss(model, *rows.batch([1])).item() == 0.0
    logits = model(rows.batch([0])[0]).logits[0]
    firsts = rows.words.firsts[0]
    terms = [-logits[firsts[0]].log_softmax(0)[2].item(), -logits[firsts[2]].log_softmax(0)[4].item()]
    assert task.loss(model, *rows.batch([0])).item() == pytest.approx(sum(terms) / 3, rel=1e-5)


def test_words_that_were_cut_off_are_wrong(tokenizer):
    rows, model, task = encode(tokenizer, SENTENCES, NAMES, 7), small(tokenizer, NAMES).eval(), Tag(NAMES, bio=False)
    assert rows.words.lost > 0
    assert rows.words.lost == 15 - rows.weight(range(4))
    judged = ask(model, rows, task.judge, "fp32")
    assert [len(row) for row in judged] == [len(row) for row in rows.labels]
    perfect = [tags[: len(row)] for row, tags in zip(judged, rows.tags, strict=True)]
    assert task.score(perfect, rows) == pytest.approx(1 - rows.words.lost / 15)


# BIO


def test_an_inside_tag_without_a_beginning_is_repaired_and_counted(tokenizer):
    sentences = [tagged("dogs/I-x cats/I-x see/O the/B-x dog/I-y dog/I-y cats/B-y")]
    names = tag_names(sentences)
    assert names == ("B-x", "B-y", "I-x", "I-y", "O")
    rows = encode(tokenizer, sentences, names, 64)
    assert rows.tags == [["B-x", "I-x", "O", "B-x", "B-y", "I-y", "B-y"]]
    assert (rows.repaired, rows.unseen) == (2, 0)


@pytest.mark.parametrize("tag", ["x", "B", "I-", "S-x"])
def test_a_tag_that_is_not_bio_among_others_is_told(tag):
    with pytest.raises(UserError, match=rf"a.conll, in the sentence from line 9: the tag '{tag}' is not O, B-type"):
        check_bio([tagged("a/O b/B-x"), tagged(f"c/O d/{tag}", 9)])


def test_words_that_are_all_outside_are_scored_as_the_other_parts_are(tokenizer):
    rows = encode(tokenizer, [tagged("dogs/B-x see/O cats/B-x")], ("O",), 64)
    assert Tag(("O",), bio=True).score([["O", "O", "O"]], rows) == 0
    assert Tag(("O",), bio=False).score([["O", "O", "O"]], rows) == pytest.approx(1 / 3)


def test_parts_of_speech_are_not_bio():
    assert not check_bio(SENTENCES)
    assert check_bio([tagged("a/O"), tagged("b/I-x")])
    assert tag_names([tagged("a/B b/X")]) == ("B", "X")
    assert not is_bio(NAMES)
    assert not is_bio(["O"])
    assert is_bio(["O", "B-x"])


def chunks(tags: list[str]) -> list[tuple[str, int, int]]:
    """Entities by conlleval's two questions, asked between any two words: does one end here, does one begin here?"""

    def split(tag: str) -> tuple[str, str]:
        return (tag[0], tag[2:]) if "-" in tag else ("O", "")

    found, begin = [], 0
    for i in range(len(tags) + 1):
        (last, kind), (now, next_kind) = (split(tags[j]) if 0 <= j < len(tags) else ("O", "") for j in (i - 1, i))
        ends = last != "O" and (now in "BO" or kind != next_kind)
        begins = now != "O" and (now == "B" or last == "O" or kind != next_kind)
        if ends:
            found.append((kind, begin, i - 1))
        if begins:
            begin = i
    return found


def test_entities_and_their_f1_are_those_of_conlleval():
    draw = random.Random(0)
    tags = ["O", "B-a", "I-a", "B-b", "I-b", "B-a-c", "I-a-c"]
    gold, ours = ([draw.choices(tags, k=draw.randrange(1, 9)) for _ in range(400)] for _ in range(2))
    ours = [(row * 8)[: len(right)] for row, right in zip(ours, gold, strict=True)]
    ours = [right if draw.random() < 0.3 else row for row, right in zip(ours, gold, strict=True)]
    right = predicted = there = 0
    for row, truth in zip(ours, gold, strict=True):
        assert entities(row) == set(chunks(row)) == set(chunks(repair(row)))
        assert len(entities(row)) == len(chunks(row))
        right += len(set(chunks(row)) & set(chunks(truth)))
        predicted, there = predicted + len(chunks(row)), there + len(chunks(truth))
    found = scores(ours, gold, bio=True)
    p, r = right / predicted, right / there
    assert 0.2 < p < 0.8
    assert (found["precision"], found["recall"]) == pytest.approx((p, r))
    assert found["f1"] == pytest.approx(2 * p * r / (p + r))


@pytest.mark.parametrize(
    ("ours", "gold", "f1"),
    [
        ("B-x I-x O", "B-x I-x O", 1),
        ("I-x I-x O", "B-x I-x O", 1),  # repaired
        ("B-x O O", "B-x I-x O", 0),  # an end is wrong
        ("B-y I-y O", "B-x I-x O", 0),  # the type is wrong
        ("B-x I-y O", "B-x I-x O", 0),  # two entities
        ("B-x B-x O", "B-x I-x O", 0),
        ("B-x O B-y", "B-x O O", 2 / 3),
        ("O O O", "B-x O O", 0),
        ("O O O", "O O O", 0),  # as seqeval: nothing to find is no success
        ("B-x", "B-x O B-x", 2 / 3),  # the rest was cut off
    ],
)
def test_f1_by_hand(ours, gold, f1):
    assert scores([ours.split()], [gold.split()], bio=True)["f1"] == pytest.approx(f1)


def test_accuracy_by_hand():
    assert scores([["A", "B"], ["C"]], [["A", "C"], ["C", "C"]], bio=False) == {"accuracy": 0.5}
    found = scores([["O", "B-x"]], [["O", "B-y"]], bio=True)
    assert found == {"accuracy": 0.5, "precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert all(map(math.isfinite, found.values()))
