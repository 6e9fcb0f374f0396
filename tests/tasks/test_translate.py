"""Translation: batches against the texts they came from, loss and scores against torch, formulas and sacreBLEU."""

import math
import random
from itertools import chain

import pytest
import sacrebleu
import torch
import torch.nn.functional as F

from peftlab.data.parallel import Pairs, load_parallel
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.models.model import Output
from peftlab.tasks.translate import Encoded, Translate, bleu_by_length, encode, marks, scores
from peftlab.train.order import Order, sorted_batches

PAIRS = Pairs(
    ["A dog runs over the green grass.", "Two men.", "", "A woman reads a book in the park."],
    ["Ein Hund läuft über das grüne Gras.", "Zwei Männer.", "Nichts", "Eine Frau liest."],
    [3, 5, 8, 9],
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train_on([*PAIRS.sources, *PAIRS.targets], "bpe", vocab_size=300)


def test_a_pair_is_read_to_its_end_mark_and_written_from_its_start_mark(tokenizer):
    rows = [3, 0, 2, 1]
    pair, labels = encode(tokenizer, PAIRS, 100).batch(rows)
    assert labels.shape == pair.target.ids.shape
    assert len(pair) == 4
    for place, row in enumerate(rows):
        source, target = tokenizer.ids(PAIRS.sources[row]), tokenizer.ids(PAIRS.targets[row])
        real, written = pair.source.mask[place], pair.target.mask[place]
        assert pair.source.ids[place][real].tolist() == [tokenizer.bos, *source, tokenizer.eos]
        assert pair.target.ids[place][written].tolist() == [tokenizer.bos, *target]
        assert labels[place][written].tolist() == [*target, tokenizer.eos]
        assert tokenizer.decode(labels[place]) == PAIRS.targets[row]  # −100 is no token
    for side in (pair.source, pair.target):
        assert side.mask.any(0).all(), "a batch is as long as its longest row"
        assert (side.ids[~side.mask] == tokenizer.pad).all()
    assert torch.equal(labels == -100, ~pair.target.mask)


def test_the_lengths_are_those_of_what_a_model_is_given(tokenizer):
    encoded = encode(tokenizer, PAIRS, 100)
    assert (len(encoded), encoded.rows, encoded.cut) == (4, PAIRS.rows, 0)
    for row, length in enumerate(encoded.lengths()):
        pair, _ = encoded.batch([row])
        assert length == pair.source.ids.numel() + pair.target.ids.numel()
    order = Order(encoded.lengths(), 2, seed=0)
    assert sorted([*order.rows(0), *order.rows(1)]) == sorted(chain(*sorted_batches(encoded.lengths()))) == [0, 1, 2, 3]


def test_long_texts_are_cut_and_counted(tokenizer):
    tokens = [len(tokenizer.ids(text)) + 2 for text in [*PAIRS.sources, *PAIRS.targets]]
    limit = sorted(tokens)[4]
    encoded, whole = encode(tokenizer, PAIRS, limit), encode(tokenizer, PAIRS, 100)
    assert encoded.cut == sum(n > limit for n in tokens) > 0
    pair, labels = encoded.batch(range(4))
    assert (pair.source.ids.shape[1], pair.target.ids.shape[1]) == (limit, limit - 1)
    for cut, row in zip(encoded.sources, whole.sources, strict=True):
        assert cut == row if len(row) <= limit else cut == [*row[: limit - 1], tokenizer.eos]
    assert ((labels == tokenizer.eos).sum(1) == 1).all()


def test_the_marks_of_a_tokenizer(tokenizer):
    mark = marks(tokenizer)
    assert tokenizer.tokens([mark.start, mark.end, mark.pad]) == ["<s>", "</s>", "<pad>"]
    with pytest.raises(UserError, match="no marks for start and end"):
        encode(Tokenizer.train_on(PAIRS.sources, vocab_size=100), PAIRS, 100)


# The loss


class Saying:
    """A model that says what it is told to."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits

    def states(self, inputs: None) -> Output:
        return Output(self.logits)

    def read(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def loss(logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    return Translate(smoothing).loss(Saying(logits), None, labels)


def test_what_is_judged_is_what_the_loss_is_the_mean_of():
    logits, encoded = torch.randn(2, 6, 11), Encoded([[1], [1]], [[1, 2, 3, 4], [1, 5, 6, 7, 8, 9]], [1, 2], 0, 0)
    labels = torch.tensor([[2, 3, 4, -100, -100, -100], [5, 6, 7, 8, 9, -100]])
    judged = Translate(0.1).judge(Saying(logits), None, labels)
    assert len(judged) == 2
    mean = float(loss(logits, labels, 0.0))
    assert sum(judged) / 8 == pytest.approx(mean)
    assert Translate().score(judged, encoded) == pytest.approx(math.exp(-mean))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_the_loss_is_the_smoothed_cross_entropy_over_real_tokens(smoothing):
    B, T, V = 3, 5, 11
    logits, labels = torch.randn(B, T, V), torch.randint(V, (B, T))
    labels[0, 3:] = labels[2, 1:] = -100
    found = loss(logits, labels, smoothing)
    theirs = F.cross_entropy(logits.transpose(1, 2), labels, label_smoothing=smoothing, ignore_index=-100)
    torch.testing.assert_close(found, theirs)

    terms = []
    for b, t in zip(*torch.where(labels != -100), strict=True):
        goal = [smoothing / V + (1 - smoothing) * (v == labels[b, t].item()) for v in range(V)]
        total = math.log(sum(math.exp(x) for x in logits[b, t].tolist()))
        terms.append(-sum(share * (x - total) for share, x in zip(goal, logits[b, t].tolist(), strict=True)))
    assert len(terms) == 9
    assert found.item() == pytest.approx(sum(terms) / len(terms), rel=1e-5)


def test_padding_has_no_part_in_the_loss():
    logits, labels = torch.randn(2, 4, 7, requires_grad=True), torch.randint(7, (2, 4))
    labels[1, 2:] = -100
    (gradient,) = torch.autograd.grad(loss(logits, labels, 0.1), logits)
    assert (gradient[labels == -100] == 0).all()
    assert (gradient[labels != -100] != 0).any(-1).all()
    wider = F.pad(logits, (0, 0, 0, 3), value=50.0), F.pad(labels, (0, 3), value=-100)
    torch.testing.assert_close(loss(*wider, 0.1), loss(logits, labels, 0.1))


def test_the_loss_of_half_precision_is_computed_in_single():
    logits, labels = torch.randn(2, 3, 50).bfloat16(), torch.randint(50, (2, 3))
    assert loss(logits, labels, 0.1).dtype == torch.float32
    torch.testing.assert_close(loss(logits, labels, 0.1), loss(logits.float(), labels, 0.1))


# The scores


def garbled(references: list[str]) -> list[str]:
    """Translations that are partly right: some words are left out."""
    draw = random.Random(0)
    return [" ".join(word for word in text.split() if draw.random() > 0.15) for text in references]


@pytest.fixture(scope="module")
def captions(shared) -> Pairs:
    return load_parallel(str(shared / "data" / "multi30k")).tests["test_2016_flickr"]


@pytest.mark.parametrize("lowercase", [False, True])
def test_the_scores_are_those_of_sacrebleu_with_their_signatures(captions, lowercase):
    hypotheses = garbled([text.lower() for text in captions.targets])
    found = scores(hypotheses, captions.targets, lowercase)
    assert found["bleu"] == sacrebleu.corpus_bleu(hypotheses, [captions.targets], lowercase=lowercase).score
    chrf = sacrebleu.corpus_chrf(hypotheses, [captions.targets]).score
    assert (found["chrf"] == chrf) != lowercase  # their function has no choice of case
    assert 10 < found["bleu"] < found["chrf"] < 100
    case = "lc" if lowercase else "mixed"
    version = sacrebleu.__version__
    assert found["bleu_signature"] == f"nrefs:1|case:{case}|eff:no|tok:13a|smooth:exp|version:{version}"
    assert found["chrf_signature"] == f"nrefs:1|case:{case}|eff:yes|nc:6|nw:0|space:no|version:{version}"


def test_perfect_and_empty_translations(captions):
    best = scores(captions.targets, captions.targets)
    assert (best["bleu"], best["chrf"]) == (pytest.approx(100), pytest.approx(100))
    worst = scores([""] * 3, ["Ein Hund.", "", "Zwei Männer"])
    assert (worst["bleu"], worst["chrf"]) == (0, 0)


def test_bleu_by_length_puts_each_pair_into_one_bin(captions):
    hypotheses, edges = garbled(captions.targets), [8, 12, 16, 100]
    bins = bleu_by_length(captions.sources, hypotheses, captions.targets, edges)
    assert [(found.shortest, found.longest) for found in bins] == [(0, 7), (8, 11), (12, 15), (16, 99)]
    assert sum(found.count for found in bins) == len(captions)
    for found in bins:
        rows = [i for i, text in enumerate(captions.sources) if found.shortest <= len(text.split()) <= found.longest]
        assert found.count == len(rows)
        theirs = sacrebleu.corpus_bleu([hypotheses[i] for i in rows], [[captions.targets[i] for i in rows]])
        assert found.bleu == theirs.score
    (one,) = bleu_by_length(captions.sources, [text.lower() for text in hypotheses], captions.targets, [], True)
    assert (one.longest, one.count) == (None, 1000)
    assert one.bleu == scores(hypotheses, captions.targets, True)["bleu"]


def test_real_captions_come_back_from_a_joint_vocabulary(captions):
    tokenizer = Tokenizer.train_on([*captions.sources, *captions.targets], "bpe", vocab_size=2000, lowercase=True)
    encoded = encode(tokenizer, captions, 64)
    assert encoded.cut == 0
    pair, labels = encoded.batch(range(50))
    assert [tokenizer.decode(row) for row in labels] == [text.lower() for text in captions.targets[:50]]
    assert [tokenizer.decode(row) for row in pair.source.ids] == [text.lower() for text in captions.sources[:50]]
