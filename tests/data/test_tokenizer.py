"""The tokenizer against `transformers`, on MiniLM's real files and on vocabularies trained here."""

import gzip
import json
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tokenizers
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError

transformers = pytest.importorskip("transformers")

TEXTS = [
    "A good film.",
    "Crème brûlée, naïve façade; ÀÉÎÕÜ İstanbul ß",
    "电影很好看 and 映画 한국어",
    "so good 😀👩‍👩‍👧 🏳️‍🌈!!!",
    "control\x00 \x07char\u200bs\tand\nlines\u2028end \ufffd",
    "",
    "   ",
    "a [MASK] or a [SEP] in the text, <mask> </s> <|endoftext|>",
    "unbelievably" * 20,
    "word " * 300,
]
PAIRS = [(first, second) for first, second in zip(TEXTS, reversed(TEXTS), strict=True)]


def same(batch, reference) -> bool:
    """Whether a batch holds what the oracle gave."""
    types = reference.get("token_type_ids")
    assert torch.equal(batch.ids, reference["input_ids"])
    assert torch.equal(batch.mask, reference["attention_mask"].bool())
    if batch.segments is None:
        assert types is None or not types.any()
    else:
        assert torch.equal(batch.segments, types)
    return True


def ask(oracle, rows, **options):
    """The oracle's answer for texts or pairs, padded to the longest row; MiniLM's own 128 is switched off."""
    pairs = [row if isinstance(row, tuple) else (row,) for row in rows]
    return oracle(
        *map(list, zip(*pairs, strict=True)),
        **({"padding": "longest", "truncation": False} | options),
        return_tensors="pt",
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """A few hundred lines of made-up words, many equally frequent: ties that a trainer has to break."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    rng = random.Random(0)
    syllables = [a + b for a in "bcdfglmnprst" for b in ("a", "e", "i", "o", "u", "é")]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(400)]
    lines = [" ".join(rng.choices(words, k=10)).capitalize() + rng.choice(".!?") for _ in range(300)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=["tokenizer.json", "vocab.txt", "vocab.txt alone"])
def bert(request, minilm, tmp_path_factory):
    """MiniLM's tokenizer from each of its files, and the oracle's."""
    folder = tmp_path_factory.mktemp("bert")
    names = [request.param.removesuffix(" alone"), "config.json"]
    for name in names if "alone" in request.param else [*names, "tokenizer_config.json", "special_tokens_map.json"]:
        if (minilm / name).exists():
            shutil.copy(minilm / name, folder)
    return Tokenizer.load(folder), transformers.BertTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module", params=["roberta", "gpt2"])
def byte_level(request, corpus, tmp_path_factory):
    """A byte-level vocabulary as `vocab.json` and `merges.txt`, read by ours and by the oracle."""
    folder = tmp_path_factory.mktemp(request.param)
    marks = {"roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], "gpt2": ["<|endoftext|>"]}[request.param]
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train([str(corpus)], vocab_size=600, special_tokens=marks, show_progress=False)
    trained.save_model(str(folder))
    oracle = {"roberta": transformers.RobertaTokenizer, "gpt2": transformers.GPT2Tokenizer}[request.param]
    return Tokenizer.load(folder), oracle.from_pretrained(folder)


@pytest.fixture(scope="module", params=["wordpiece", "bpe"])
def trained(request, corpus):
    return Tokenizer.train([corpus], request.param, vocab_size=700)


# against the oracle


@pytest.mark.parametrize("rows", [TEXTS, PAIRS, *([text] for text in TEXTS)])
def test_bert_gives_what_transformers_gives(bert, rows):
    ours, oracle = bert
    assert same(ours.encode(rows), ask(oracle, rows))


@pytest.mark.parametrize("rows", [TEXTS, PAIRS])
@pytest.mark.parametrize("max_length", [4, 5, 8, 9, 16, 127, 200])
def test_truncation_is_longest_first(bert, rows, max_length):
    ours, oracle = bert
    expected = ask(oracle, rows, truncation="longest_first", max_length=max_length)
    assert same(ours.encode(rows, max_length=max_length, truncate=True), expected)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=st.integers(0, 12), second=st.integers(0, 12), max_length=st.integers(4, 20))
def test_truncation_of_any_lengths(bert, first, second, max_length):
    ours, oracle = bert
    rows = [("a " * first, "b " * second)]
    expected = ask(oracle, rows, truncation="longest_first", max_length=max_length)
    assert same(ours.encode(rows, max_length=max_length, truncate=True), expected)


def test_padding_on_the_left(bert):
    ours, oracle = bert
    assert same(ours.encode(PAIRS, pad_side="left"), ask(oracle, PAIRS, padding_side="left"))


@settings(deadline=None)
@given(rows=st.lists(st.text(), min_size=1, max_size=4))
def test_bert_on_any_text(bert, rows):
    ours, oracle = bert
    assert same(ours.encode(rows), ask(oracle, rows))


def test_bert_settings_are_read(minilm, tmp_path):
    shutil.copy(minilm / "vocab.txt", tmp_path)
    for settings_ in ({"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings_))
        ours, oracle = Tokenizer.load(tmp_path), transformers.BertTokenizer.from_pretrained(tmp_path)
        assert same(ours.encode(TEXTS), ask(oracle, TEXTS))


def test_the_marks_of_bert(bert):
    ours, oracle = bert
    assert (ours.cls, ours.sep, ours.pad, ours.mask, ours.unk) == (101, 102, 0, 103, 100)
    assert (ours.bos, ours.eos, ours.vocab_size) == (None, None, len(oracle))


def test_byte_level_gives_what_transformers_gives(byte_level):
    ours, oracle = byte_level
    for rows in (TEXTS, PAIRS):
        for encoding, row in zip([ours.encode([row]) for row in rows if any(row)], filter(any, rows), strict=True):
            assert same(encoding, ask(oracle, [row], padding=False))
            assert encoding.segments is None  # models of both kinds have none
    assert (ours.cls, ours.sep, ours.pad, ours.mask, ours.unk, ours.bos, ours.eos) == (
        oracle.cls_token_id,
        oracle.sep_token_id,
        oracle.pad_token_id,
        oracle.mask_token_id,
        oracle.unk_token_id,
        oracle.bos_token_id,
        oracle.eos_token_id,
    )


def test_byte_level_truncation(byte_level):
    ours, oracle = byte_level
    expected = ask(oracle, [PAIRS[1]], truncation="longest_first", max_length=11, padding=False)
    assert same(ours.encode([PAIRS[1]], max_length=11, truncate=True), expected)


def test_without_a_pad_token_the_mask_says_what_is_real(byte_level):
    ours, _ = byte_level
    batch = ours.encode(["bada", "bada bede bidi"])
    fill = ours.eos if ours.pad is None else ours.pad
    assert (batch.ids[~batch.mask] == fill).all()
    assert torch.equal(batch.ids[:1][batch.mask[:1]], ours.encode("bada").ids[0])


def test_marks_named_in_special_tokens_map(minilm, tmp_path):
    lines = (minilm / "vocab.txt").read_text(encoding="utf-8").replace("[CLS]", "<begin>").splitlines()
    (tmp_path / "vocab.txt").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(UserError, match=r"vocab\.txt.*\[CLS\]"):
        Tokenizer.load(tmp_path)
    mark = {"content": "<begin>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"cls_token": mark}))
    assert Tokenizer.load(tmp_path).encode("film").ids[0].tolist()[0] == 101


# training and saving


@pytest.mark.parametrize("model_type", ["bert", "roberta", None])
def test_transformers_reads_what_is_saved(trained, tmp_path, model_type):
    names = trained.save(tmp_path)
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    if model_type:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    reader = transformers.AutoTokenizer if model_type else transformers.PreTrainedTokenizerFast
    oracle = reader.from_pretrained(tmp_path)
    for rows in (TEXTS, PAIRS):
        assert same(trained.encode(rows), ask(oracle, rows))
    assert (trained.mask, trained.unk, trained.pad) == (oracle.mask_token_id, oracle.unk_token_id, oracle.pad_token_id)


def test_transformers_reads_a_loaded_one_saved_again(bert, byte_level, tmp_path):
    for name, (ours, oracle) in {"bert": bert, "byte-level": byte_level}.items():
        ours.save(tmp_path / name)
        again = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / name)
        for row in filter(any, [*TEXTS, *PAIRS]):
            batch = ours.encode([row])
            assert same(batch, ask(again, [row], padding=False))
            assert same(batch, ask(oracle, [row], padding=False))


def test_save_load_save_is_byte_equal(bert, byte_level, trained, tmp_path):
    for name, tokenizer in {"bert": bert[0], "byte-level": byte_level[0], "trained": trained}.items():
        first, second = tmp_path / name / "1", tmp_path / name / "2"
        names = tokenizer.save(first)
        Tokenizer.load(first).save(second)
        assert [(first / n).read_bytes() for n in names] == [(second / n).read_bytes() for n in names]


def test_other_entries_of_the_configuration_are_kept(minilm, tmp_path):
    Tokenizer.load(minilm).save(tmp_path)
    before, after = (json.loads((f / "tokenizer_config.json").read_text()) for f in (minilm, tmp_path))
    assert before.items() <= after.items()


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_training_is_deterministic(kind, corpus, tmp_path):
    for i in range(4):
        Tokenizer.train(corpus, kind, vocab_size=700).save(tmp_path / str(i))
    assert len({(tmp_path / str(i) / "tokenizer.json").read_bytes() for i in range(4)}) == 1


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_training_on_texts_equals_training_on_files_of_them(kind, corpus):
    lines = corpus.read_text(encoding="utf-8").splitlines()
    from_file = Tokenizer.train(corpus, kind, vocab_size=700).to_json()
    assert Tokenizer.train_on(lines, kind, vocab_size=700).to_json() == from_file
    assert Tokenizer.train_on(iter(lines), kind, vocab_size=700).to_json() == from_file
    assert Tokenizer.train_on(lines[:150], kind, vocab_size=700).to_json() != from_file
    with pytest.raises(UserError, match="no words"):
        Tokenizer.train_on([""], kind)


def test_a_trained_vocabulary_spells_its_text(trained, corpus):
    lines = corpus.read_text(encoding="utf-8").splitlines()
    batch = trained.encode(lines)
    assert trained.vocab_size == 700
    assert not (batch.ids == trained.unk).any()
    assert int(batch.mask.sum()) < sum(map(len, lines)) / 2  # pieces of words, not letters


def test_training_in_lower_case(corpus):
    for kind in ("wordpiece", "bpe"):
        lower, cased = (Tokenizer.train(corpus, kind, vocab_size=600, lowercase=flag) for flag in (True, False))
        assert torch.equal(lower.encode("Bada").ids, lower.encode("bada").ids)
        assert not torch.equal(cased.encode("Bada").ids, cased.encode("bada").ids)


def test_training_on_real_text(shared, tmp_path):
    packed = shared / "data" / "multi30k" / "val.en.gz"
    if not packed.is_file():
        pytest.skip("multi30k's val.en.gz is not in the shared data")
    file = tmp_path / "val.en"
    file.write_bytes(gzip.decompress(packed.read_bytes()))
    tokenizer = Tokenizer.train(file, vocab_size=1000, lowercase=True)
    assert tokenizer.vocab_size == 1000
    text = "two young men are outside."
    assert tokenizer.decode(tokenizer.encode(text.capitalize()).ids[0]) == text


# bytes


@pytest.fixture(scope="module")
def of_bytes(tmp_path_factory) -> tuple[Tokenizer, Path]:
    """The tokens are bytes; and the folder that it was saved in."""
    folder = tmp_path_factory.mktemp("bytes")
    Tokenizer.of_bytes().save(folder)
    return Tokenizer.of_bytes(), folder


@settings(deadline=None)
@given(text=st.text() | st.sampled_from(TEXTS))
def test_any_text_is_its_bytes_and_comes_back(of_bytes, text):
    ours, folder = of_bytes
    assert ours.decode(ours.ids(text)) == text
    assert len(ours.ids(text)) == len(text.encode())
    assert Tokenizer.load(folder).ids(text) == ours.ids(text)


def test_bytes_have_the_numbers_of_a_bpe_that_learned_nothing(of_bytes):
    ours, folder = of_bytes
    nothing = Tokenizer.train_on(["a"], "bpe", vocab_size=5 + 256)
    assert ours.vocab_size == nothing.vocab_size == 261
    plain = [text for text in TEXTS if "</s>" not in text]
    assert torch.equal(ours.encode(plain).ids, nothing.encode(plain).ids)
    oracle = transformers.AutoTokenizer.from_pretrained(folder)
    assert same(ours.encode(TEXTS), ask(oracle, TEXTS)), "what is spelled as a mark is text there, too"
    lower = Tokenizer.of_bytes(lowercase=True)
    assert lower.decode(lower.ids("ÀB")) == "àb"


def test_bytes_that_are_no_character_are_marked(of_bytes):
    ours, _ = of_bytes
    assert ours.decode(ours.ids("a😀")[:-1]) == "a\N{REPLACEMENT CHARACTER}"
    with pytest.raises(UserError, match="holds half of a surrogate pair, which no text has"):
        ours.ids("half \ud800")


# decoding


@settings(deadline=None)
@given(text=st.text(min_size=1))
def test_byte_level_decoding_gives_the_text_back(byte_level, text):
    ours, _ = byte_level
    if not any(mark in text for mark in ("<s>", "</s>", "<pad>", "<unk>", "<mask>", "<|endoftext|>")):
        assert ours.decode(ours.encode(text).ids[0]) == text


def test_decode_and_tokens(bert):
    ours, oracle = bert
    ids = ours.encode("A remarkable film").ids[0]
    assert ours.tokens(ids) == oracle.convert_ids_to_tokens(ids) == ["[CLS]", "a", "remarkable", "film", "[SEP]"]
    assert ours.decode(ids) == ours.decode(ids.tolist()) == "a remarkable film"
    assert ours.decode(ids, skip_special=False) == "[CLS] a remarkable film [SEP]"
    assert ours.decode([*ids.tolist(), -100, 99999]) == "a remarkable film"


# state and mistakes


def test_nothing_of_one_call_stays_for_the_next(bert):
    ours, _ = bert
    before = ours.encode(TEXTS)
    ours.encode(PAIRS, max_length=7, truncate=True, pad_side="left")
    after = ours.encode(TEXTS)
    assert torch.equal(before.ids, after.ids)
    assert torch.equal(before.mask, after.mask)
    assert ours.encode("a").ids.shape == (1, 3)  # not the 128 of MiniLM's tokenizer.json
    assert ours.encode("word " * 300).ids.shape == (1, 302)


def test_threads_share_one_tokenizer(bert):
    ours, _ = bert
    lengths = [8, 16, 32, 64] * 10
    with ThreadPoolExecutor(4) as pool:
        batches = pool.map(lambda length: ours.encode(TEXTS, max_length=length, truncate=True), lengths)
    assert [batch.ids.shape[1] for batch in batches] == lengths


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "at least one"),
        (("a", "b"), "list"),
        (None, "list"),
        (["a", 3], r"texts\[1\] is 3"),
        (["a", None], r"texts\[1\] is None"),
        (["a", "b", ("a", "b", "c")], r"texts\[2\]"),
        (["a", ("a", 1)], r"texts\[1\]"),
        (["a", "half \ud800"], r"texts\[1\]"),
    ],
)
def test_wrong_texts_are_named(bert, texts, message):
    with pytest.raises(UserError, match=message):
        bert[0].encode(texts)


def test_wrong_options_are_named(bert, byte_level):
    ours, _ = bert
    with pytest.raises(UserError, match=r"texts\[1\] has 6 tokens, more than max_length=5.*truncate=True"):
        ours.encode(["a b c", "a b c d"], max_length=5)
    with pytest.raises(UserError, match="3 of them are marks"):
        ours.encode([("a", "b")], max_length=3, truncate=True)
    with pytest.raises(UserError, match="needs max_length"):
        ours.encode("a", truncate=True)
    with pytest.raises(UserError, match="'right'"):
        ours.encode("a", pad_side="rigt")
    with pytest.raises(UserError, match="99999"):
        ours.tokens([1, 99999])
    with pytest.raises(UserError, match="-1"):
        ours.tokens([-1])
    if byte_level[0].cls is None:
        with pytest.raises(UserError, match=r"texts\[1\] is empty"):
            byte_level[0].encode(["a", ""])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"none of tokenizer\.json"),
        ({"tokenizer.json": "{"}, r"tokenizer\.json"),
        ({"tokenizer.json": "[]"}, r"tokenizer\.json"),
        ({"vocab.txt": ""}, r"vocab\.txt"),
        ({"vocab.txt": "a\nb\n"}, r"vocab\.txt"),
        ({"vocab.json": '{"a": 0}'}, r"merges\.txt"),
        ({"vocab.json": "no", "merges.txt": ""}, r"vocab\.json"),
        (
            {"vocab.json": '{"a": 0}', "merges.txt": "", "tokenizer_config.json": '{"add_bos_token": true}'},
            "add_bos_token",
        ),
        (
            {"vocab.txt": "[UNK]\n[CLS]\n[SEP]", "tokenizer_config.json": "{"},
            r"tokenizer_config\.json is not valid JSON",
        ),
        ({"vocab.txt": "[UNK]\n[CLS]\n[SEP]", "tokenizer_config.json": "[]"}, r"tokenizer_config\.json"),
        ({"vocab.txt": "[UNK]\n[CLS]\n[SEP]", "tokenizer_config.json": '{"cls_token": 3}'}, "special token"),
    ],
)
def test_broken_folders_are_named(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        Tokenizer.load(tmp_path)


def test_wrong_training_is_named(corpus, tmp_path):
    empty, blank, binary = tmp_path / "empty.txt", tmp_path / "blank.txt", tmp_path / "binary.txt"
    empty.touch()
    blank.write_text(" \n \n")
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="did you mean 'wordpiece'"):
        Tokenizer.train(corpus, "wordpeice")
    with pytest.raises(UserError, match=r"nowhere\.txt"):
        Tokenizer.train([corpus, tmp_path / "nowhere.txt"])
    with pytest.raises(UserError, match=r"empty\.txt"):
        Tokenizer.train([corpus, empty])
    with pytest.raises(UserError, match=r"binary\.txt is not UTF-8"):
        Tokenizer.train(binary)
    with pytest.raises(UserError, match="no words"):
        Tokenizer.train(blank)
    with pytest.raises(UserError, match="no words"):
        Tokenizer.train([])
    with pytest.raises(UserError, match="vocab_size=20 is too small"):
        Tokenizer.train(corpus, vocab_size=20)
    with pytest.raises(UserError, match=r"vocab_size=260 is too small.* 261"):
        Tokenizer.train(corpus, "bpe", vocab_size=260)
