"""Heads that read every token: the tagger against `transformers`, both with padding, virtual tokens and mistakes."""

import pytest
import torch
import transformers

import peftlab
from peftlab.data.batch import Batch
from peftlab.errors import UserError
from peftlab.models.encoder import Encoder, EncoderConfig
from peftlab.models.parser import Parser, parser_of
from peftlab.models.tagger import Tagger

METHODS = {
    "lora": peftlab.LoRA(rank=2),
    "adapter": peftlab.Adapter(width=4),
    "prompt": peftlab.Prompt(tokens=3, init="random"),
    "prompt-peft": peftlab.Prompt(tokens=3, init="random", layout="peft"),
    "p-tuning": peftlab.PTuning(tokens=2, hidden=6),
    "prefix": peftlab.Prefix(length=3),
}
HEADS = {"tagger": Tagger(labels=4), "parser": Parser(labels=4, arc=6, label=5)}


def model_with(method, head) -> Encoder:
    model = Encoder(EncoderConfig(vocab=50, dim=16, layers=2, heads=4, inner=24, max_length=24)).eval()
    peftlab.attach(model, "mine", method, head=head)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def test_a_tagger_gives_what_transformers_gives(tiny, tmp_path):
    theirs = transformers.BertForTokenClassification.from_pretrained(tiny, num_labels=5).eval()
    base = peftlab.load(tiny)
    peftlab.attach(base.model, "mine", peftlab.Head(), head=Tagger(labels=("a", "b", "c", "d", "e")))
    base.model.eval().additions("mine")["encoder.head"].out.load_state_dict(theirs.classifier.state_dict())
    batch = base.tokenizer.encode(["a small test of words", "no"])
    expected = theirs(input_ids=batch.ids, attention_mask=batch.mask.long()).logits
    found = base.model(batch, logits_only=True).logits
    assert found.shape == (2, batch.ids.shape[1], 5)
    torch.testing.assert_close(found[batch.mask], expected[batch.mask], rtol=0, atol=1e-5)


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_and_virtual_tokens_change_nothing(method, head, side):
    model = model_with(method, head)
    lengths, T = (4, 7, 1), 7
    mask = torch.tensor([[t < n if side == "right" else t >= T - n for t in range(T)] for n in lengths])
    batch = Batch(torch.randint(1, 50, (3, T)), mask)
    out = model(batch, logits_only=True).logits
    extra = 1 if isinstance(head, Parser) else 0  # the root in front
    assert out.shape[:2] == (3, extra + T)
    for row, n in enumerate(lengths):
        alone = model(Batch(batch.ids[row, mask[row]][None], torch.ones(1, n)), logits_only=True).logits[0]
        torch.testing.assert_close(out[row, extra:][mask[row]], alone[extra:], rtol=0, atol=1e-5)
        torch.testing.assert_close(out[row, :extra], alone[:extra])


def test_a_parser_scores_words_by_their_four_views():
    head = Parser(labels=3, arc=6, label=5).build(model_with(peftlab.Head(), None))
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    words, chosen = torch.randn(2, 5, 22), torch.randint(5, (2, 4))
    real = torch.tensor([[True, True, False, False], [True, True, True, False]])
    arcs, labels = head.score_arcs(words), head.score_labels(words, chosen, real)
    assert (arcs.shape, labels.shape) == ((2, 4, 5), (5, 3))
    of_word = iter(labels)
    for b, n in enumerate((2, 3)):
        for word in range(n):
            dependent = words[b, word + 1][None, None]
            expected = head.arcs(dependent[..., :6], words[b : b + 1, :, 6:12])
            torch.testing.assert_close(arcs[b, word], expected[0, 0])
            over = words[b, chosen[b, word]][None, None]
            expected = head.labels(dependent[..., 12:17], over[..., 17:])
            torch.testing.assert_close(next(of_word), expected[0, 0])


def test_the_parser_that_acts_is_found_or_missed():
    model = model_with(peftlab.LoRA(rank=2), HEADS["parser"])
    assert parser_of(model) is model.additions("mine")["encoder.head"]
    peftlab.activate(model, [])
    with pytest.raises(UserError, match="no parser acts on this model"):
        parser_of(model)
    with pytest.raises(UserError, match="no parser acts on this model"):
        parser_of(model_with(peftlab.LoRA(rank=2), HEADS["tagger"]))


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_rows_with_adapters_of_their_own_are_refused(head):
    model = model_with(peftlab.LoRA(rank=2), head)
    with pytest.raises(UserError, match="can't be one row's among others"):
        model(Batch(torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3)), adapters=["mine", None])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tagger(labels=0), "labels is 0: there must be between 1 and"),
        (lambda: Tagger(labels=2, dropout=1), "dropout is 1: it must be at least 0 and below 1"),
        (lambda: Parser(labels=2, dropout=-0.1), "dropout is -0.1"),
        (lambda: Parser(labels=2, arc=0), "arc is 0: it must be a whole number from 1"),
        (lambda: Parser(labels=2, label=2.0), r"label is 2.0"),
        (lambda: Parser(labels="root"), "labels is 'root'"),
    ],
)
def test_a_choice_that_cannot_be_is_told(make, message):
    with pytest.raises(UserError, match=message):
        make()
