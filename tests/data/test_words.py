"""Words to subwords: against the `tokenizers` library's own split input and against whole texts; cuts and counts."""

import random
from pathlib import Path

import pytest
import tokenizers
import torch

from peftlab.data.tokenizer import Tokenizer
from peftlab.data.words import NO_WORD, encode_words, marks_around
from peftlab.errors import UserError

SENTENCES = [
    ["The", "unbelievable", "end", "of", "John", "'s", "e-mail", ",", "isn't", "it", "?"],
    ["Ünïcode", "日本語", "😂", "New York", "http://a.b/c?d=e", "####"],
    ["x"],
]


@pytest.fixture(scope="module")
def wordpiece(minilm) -> Tokenizer:
    return Tokenizer.load(minilm)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return Tokenizer.train_on([" ".join(words) for words in SENTENCES], "bpe", vocab_size=300)


def test_the_first_subwords_are_those_of_the_library(wordpiece, minilm: Path):
    theirs = tokenizers.Tokenizer.from_file(str(minilm / "tokenizer.json"))
    theirs.no_padding()
    ours = encode_words(wordpiece, SENTENCES, 512)
    assert (ours.lost, ours.blank) == (0, 0)
    for i, words in enumerate(SENTENCES):
        encoding = theirs.encode(words, is_pretokenized=True)
        assert ours.ids[i] == encoding.ids
        assert ours.firsts[i] == [encoding.word_ids.index(word) for word in range(len(words))]


def test_a_byte_level_vocabulary_sees_words_as_in_a_text(bpe):
    ours = encode_words(bpe, SENTENCES, 512)
    for i, words in enumerate(SENTENCES):
        assert ours.ids[i] == bpe.encode(" ".join(words)).ids[0].tolist()
        ends = [*ours.firsts[i][1:], len(ours.ids[i]) - 1]
        spoken = [bpe.decode(ours.ids[i][a:b]).strip() for a, b in zip(ours.firsts[i], ends, strict=True)]
        assert spoken == words


def test_a_word_that_becomes_nothing_is_unknown_and_counted(wordpiece):
    words = ["a", "\u200b", "\u0007", "b"]
    ours = encode_words(wordpiece, [words, ["\u0007"]], 512)
    assert ours.blank == 3
    ids = [*wordpiece.ids("a"), wordpiece.unk, wordpiece.unk, *wordpiece.ids("b")]
    assert ours.ids[0] == [wordpiece.cls, *ids, wordpiece.sep]
    assert ours.ids[1] == [wordpiece.cls, wordpiece.unk, wordpiece.sep]
    assert ours.firsts == [[1, 2, 3, 4], [1]]


@pytest.mark.parametrize("max_length", range(3, 30))
def test_a_long_sentence_is_cut_behind_a_word(wordpiece, max_length):
    whole, cut = encode_words(wordpiece, SENTENCES, 512), encode_words(wordpiece, SENTENCES, max_length)
    assert max(cut.lengths()) <= max_length
    assert cut.lost == sum(map(len, SENTENCES)) - sum(map(len, cut.firsts))
    for ids, firsts, all_ids, all_firsts in zip(cut.ids, cut.firsts, whole.ids, whole.firsts, strict=True):
        left = len(firsts)
        assert left >= 1
        assert firsts == all_firsts[:left]
        ends = [*all_firsts[1:], len(all_ids) - 1]
        assert ids == [*all_ids[: min(ends[left - 1], max_length - 1)], wordpiece.sep]
        if left < len(all_firsts):  # the next word would not have fitted
            assert ends[left] + 1 > max_length


def test_a_length_without_room_is_told(wordpiece):
    with pytest.raises(UserError, match="max_length=2 leaves no room for a word: it must be at least 3"):
        encode_words(wordpiece, SENTENCES, 2)


def test_the_marks_around_a_text(wordpiece, bpe):
    assert marks_around(wordpiece) == ([wordpiece.cls], [wordpiece.sep])
    assert marks_around(bpe) == ([bpe.bos], [bpe.eos])


def test_a_batch_has_its_labels_where_words_begin(wordpiece):
    ours = encode_words(wordpiece, SENTENCES, 512)
    draw = random.Random(0)
    values = [[draw.randrange(-1, 9) for _ in firsts] for firsts in ours.firsts]
    rows = [2, 0, 1]
    batch, labels = ours.batch(rows), ours.labels(rows, values)
    assert batch.ids.shape == labels.shape == (3, max(ours.lengths()))
    assert ours.weight(rows) == int((labels != NO_WORD).sum()) == sum(map(len, SENTENCES))
    for b, row in enumerate(rows):
        assert batch.ids[b][batch.mask[b]].tolist() == ours.ids[row]
        assert labels[b][ours.firsts[row]].tolist() == labels[b][labels[b] != NO_WORD].tolist() == values[row]
    assert not torch.any((labels != NO_WORD) & ~batch.mask)
