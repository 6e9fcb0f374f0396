"""Masking: its statistics, marks and words as a whole; the rows of a text; the loss against the plain formula."""

import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from peftlab.data import tokens
from peftlab.data.text import Text, load_text
from peftlab.data.tokenizer import Tokenizer
from peftlab.data.tokens import token_rows
from peftlab.errors import UserError
from peftlab.models.encoder import Encoder, EncoderConfig
from peftlab.models.pretraining import MaskedLanguageModel, MaskedTokenHead
from peftlab.tasks.masked_tokens import DRAWS, MaskedRows, MaskedTokens, inner_pieces, masking
from peftlab.tasks.next_token import IGNORED

WORDS = [
    "the",
    "unbelievable",
    "little",
    "dogs",
    "were",
    "barking",
    "loudly",
    "at",
    "walkers",
    "on",
    "winding",
    "roads",
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "cache_folder", lambda: tmp_path / "cache")


def lines(count: int = 300) -> Text:
    draw = random.Random(0)
    return Text([" ".join(draw.choices(WORDS, k=12)) for _ in range(count)], list(range(1, count + 1)))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train_on(lines().lines, vocab_size=80)


def hidden(tokenizer, rows, share=0.15, whole_words=False, T=60, **shares):
    """Random rows between their marks, what is given of them, and what is to be guessed."""
    how = masking(tokenizer, share, whole_words, **shares)
    inner = torch.randint(tokenizer.vocab_size, (rows, T - 2))  # marks may stand inside, too
    ids = torch.cat([torch.full((rows, 1), tokenizer.cls), inner, torch.full((rows, 1), tokenizer.sep)], 1)
    masked, labels = how(ids, how.count(T - 2), torch.rand(rows, DRAWS, T))
    return how, ids, masked, labels


# Statistics


@settings(max_examples=25, deadline=None)
@given(st.integers(12, 200), st.floats(0.05, 0.5), st.booleans(), st.integers(0, 2**31))
def test_a_share_is_chosen_and_marks_never_are(tokenizer, T, share, whole_words, seed):
    torch.manual_seed(seed)
    how, ids, masked, labels = hidden(tokenizer, 4, share, whole_words, T)
    k = max(1, round(share * (T - 2)))
    assert labels.shape == masked.places.shape == (4, k)
    assert all(len(set(row)) == k for row in masked.places.tolist()), "no place twice"
    asked = labels != IGNORED
    assert not how.special[labels[asked]].any()
    assert torch.equal(labels[asked], ids.gather(1, masked.places)[asked]), "what is asked for is what stood there"
    changed = masked.batch.ids != ids
    allowed = torch.zeros_like(changed).scatter(1, masked.places, asked)
    assert not (changed & ~allowed).any(), "nothing else is touched"
    assert not how.special[masked.batch.ids[changed & (masked.batch.ids != tokenizer.mask)]].any()


def test_of_a_thousand_rows_15_percent_are_masked_and_80_10_10_of_them(tokenizer):
    rows, T = 1000, 102
    how = masking(tokenizer, 0.15, False)
    ordinary = (~how.special).nonzero()[:, 0]
    ids = ordinary[torch.randint(len(ordinary), (rows, T))]
    masked, labels = how(ids, how.count(T - 2), torch.rand(rows, DRAWS, T))
    assert (labels != IGNORED).all()
    assert labels.shape[1] / (T - 2) == 0.15
    new = masked.batch.ids.gather(1, masked.places)
    became_mask, stayed = new == tokenizer.mask, new == labels
    n = labels.numel()

    def near(share: float) -> float:  # four standard deviations
        return pytest.approx(share, abs=4 * (share * (1 - share) / n) ** 0.5)

    assert float(became_mask.float().mean()) == near(0.8)
    # a token that is drawn may be the one that stood there
    assert float(stayed.float().mean()) == near(0.1 + 0.1 / len(ordinary))
    assert float((~became_mask & ~stayed).float().mean()) == near(0.1 - 0.1 / len(ordinary))
    drawn = new[~became_mask & ~stayed]
    counts = torch.bincount(drawn, minlength=tokenizer.vocab_size)[ordinary].float()
    expected = len(drawn) / len(ordinary)
    assert float(((counts - expected) ** 2 / expected).sum()) < len(ordinary) + 5 * (2 * len(ordinary)) ** 0.5, "χ²"
    places = torch.bincount(masked.places.flatten(), minlength=T).float()
    expected = n / T
    assert float(((places - expected) ** 2 / expected).sum()) < T + 5 * (2 * T) ** 0.5, "every place as often"


def test_words_are_masked_whole_or_not_at_all(tokenizer):
    text = token_rows(tokenizer, lines(), 128, "it")
    rows = MaskedRows(text, masking(tokenizer, 0.15, whole_words=True))
    inner = inner_pieces(tokenizer)
    several = asked_for = 0
    for row in range(len(rows)):
        ids = text[[row]][0]
        masked, labels = rows.batch([row])
        asked = torch.zeros(len(ids), dtype=torch.bool).scatter(0, masked.places[0], labels[0] != IGNORED)
        words: list[list[int]] = []
        for place in range(1, len(ids) - 1):
            if place > 1 and inner[ids[place]]:
                words[-1].append(place)
            else:
                words.append([place])
        for word in words:
            assert len({bool(asked[place]) for place in word}) == 1, tokenizer.tokens(ids[word])
            several += len(word) > 1 and bool(asked[word[0]])
        asked_for += int(asked.sum())
    assert several > 50
    assert 0.8 * rows.places < asked_for / len(rows) <= rows.places


def test_a_row_of_marks_alone_has_nothing_to_guess_and_no_loss(tokenizer):
    how = masking(tokenizer, 0.15, False)
    ids = torch.full((2, 20), tokenizer.unk)
    masked, labels = how(ids, 3, torch.rand(2, DRAWS, 20))
    assert (labels == IGNORED).all()
    assert torch.equal(masked.batch.ids, ids)
    assert MaskedTokens().loss(lambda batch, places: torch.randn(2, 3, 80), masked, labels) == 0


# Rows


def test_rows_are_the_text_in_its_order_framed_and_without_padding(tokenizer):
    text = lines(20)
    rows = token_rows(tokenizer, text, 30, "it")
    whole = [token for line in text.lines for token in tokenizer.ids(line)]
    given = rows[range(len(rows))]
    assert given.shape == (len(whole) // 28, 30)
    assert given[:, 1:-1].flatten().tolist() == whole[: len(rows) * 28]
    assert (given[:, 0] == tokenizer.cls).all()
    assert (given[:, -1] == tokenizer.sep).all()


def test_a_text_is_tokenised_once_and_a_damaged_file_is_made_anew(tokenizer, tmp_path, monkeypatch):
    first = token_rows(tokenizer, lines(50), 30, "it").ids.clone()
    calls: list[str] = []
    monkeypatch.setattr(Tokenizer, "ids", lambda self, text, ids=Tokenizer.ids: calls.append(text) or ids(self, text))
    again = token_rows(tokenizer, lines(50), 60, "it")
    assert len(calls) == 1, "the marks alone"
    assert torch.equal(again.ids, first)
    [file] = (tmp_path / "cache").rglob("ids.bin")
    file.write_bytes(file.read_bytes()[:-40])
    assert torch.equal(token_rows(tokenizer, lines(50), 30, "it").ids, first)
    assert len(calls) > 50
    other = Tokenizer.train_on(lines().lines, vocab_size=70)
    assert len(token_rows(other, lines(50), 30, "it").ids) != len(first), "another tokenizer has other ids"


def test_training_masks_anew_and_a_test_does_not(tokenizer):
    text, how = token_rows(tokenizer, lines(50), 30, "it"), masking(tokenizer, 0.15, False)
    rows, fixed = MaskedRows(text, how), MaskedRows(text, how, fixed=True)
    assert not torch.equal(rows.batch([3, 4])[0].places, rows.batch([3, 4])[0].places)
    state = torch.get_rng_state()
    one, other = fixed.batch([3, 4]), fixed.batch([4, 7, 3])
    assert torch.equal(torch.get_rng_state(), state), "what an evaluation draws does not move the training's"
    assert torch.equal(one[0].batch.ids[0], other[0].batch.ids[2])
    assert torch.equal(one[1][1], other[1][0])
    assert not torch.equal(one[0].places[0], one[0].places[1])
    torch.manual_seed(5)
    before = rows.batch([1, 2])[0]
    torch.manual_seed(5)
    assert torch.equal(rows.batch([1, 2])[0].batch.ids, before.batch.ids), "it is all torch's own generator's"


# The loss


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_the_loss_is_the_cross_entropy_of_all_logits_at_the_masked_places(tokenizer, norm):
    """As everybody computes it: scores of all tokens at all places, −100 where nothing is asked."""
    config = EncoderConfig(vocab=80, dim=16, layers=2, heads=2, inner=32, norm=norm, dropout=0, attention_dropout=0)
    model = MaskedLanguageModel(Encoder(config), MaskedTokenHead(config, "gelu")).eval()
    _, ids, masked, labels = hidden(tokenizer, 4)
    everywhere = torch.full_like(ids, IGNORED).scatter(1, masked.places, labels)
    hidden_states = model.encoder(masked.batch).hidden
    logits = model.head(hidden_states, model.encoder.embedding.words.weight)
    expected = F.cross_entropy(logits.flatten(0, 1), everywhere.flatten(), ignore_index=IGNORED)
    torch.testing.assert_close(MaskedTokens().loss(model, masked, labels), expected, rtol=1e-5, atol=0)
    expected = expected.detach()
    judged = MaskedTokens().judge(model, masked, labels)
    assert MaskedTokens().measures(judged)["perplexity"] == pytest.approx(float(expected.exp()), rel=1e-4)
    assert MaskedTokens().score(judged, None) == pytest.approx(float((-expected).exp()), rel=1e-4)


# Mistakes


def test_bad_text_is_told_in_one_sentence(tokenizer, tmp_path):
    cases = {
        "empty.txt": (b"", "is empty: it holds no line of text"),
        "blank.txt": (b"\n \n\n", "is empty: it holds no line of text"),
        "latin.txt": ("café\n".encode("latin-1") * 3, "line 1: byte 0xe9 is not UTF-8"),
        "long.txt": (b"a" * 50_000_000, "line 1: the line is longer than 1,000,000 bytes"),
        "one.txt": (b"a line\n", "too few lines of text"),
    }
    for name, (content, message) in cases.items():
        path = Path(tmp_path / name)
        path.write_bytes(content)
        with pytest.raises(UserError, match=message) as caught:
            load_text(str(path))
        assert "\n" not in str(caught.value)
    few = len(tokenizer.ids("the dogs"))
    with pytest.raises(UserError, match=f"it has {few} tokens, fewer than a row of 30 holds: give more text"):
        token_rows(tokenizer, Text(["the dogs"], [1]), 30, "it")


def test_a_tokenizer_without_a_mask_or_without_words_is_told(tokenizer):
    bare = Tokenizer.train_on(["a b c"], "bpe", vocab_size=270)
    bare.mask = None
    with pytest.raises(UserError, match=r"this tokenizer has no \[MASK\]"):
        masking(bare, 0.15, False)
    letters = Tokenizer.train_on(["a b c"], vocab_size=20)
    with pytest.raises(UserError, match=r"whole_words: this tokenizer does not tell where a word begins"):
        inner_pieces(letters)
