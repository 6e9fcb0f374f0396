"""The numbers of a stack's configuration: what can't be built is told, and what was published is not refused."""

import re

import pytest
import torch
import transformers

from peftlab.data.batch import Batch
from peftlab.errors import UserError
from peftlab.models.decoder import Decoder, DecoderConfig
from peftlab.models.encoder import Encoder, EncoderConfig
from peftlab.models.pretrained import OWN, load_checkpoint, published_as
from peftlab.models.pretraining import MaskedTokenHead
from peftlab.models.vit import ViT, ViTConfig

BLOCKS = {"dim": 16, "layers": 2, "heads": 4, "inner": 24}
SMALL = BLOCKS | {"vocab": 50, "max_length": 12}
COUNT = "a whole number of at least 1"
COUNT_OR_NONE = "a whole number of at least 1, or 0 for none"
NUMBER = "a number, at least 0 and finite"
SHARE = "a number, at least 0 and below 1"
TOKEN = "a token of the vocabulary, 0 to 49"
WRONG = {
    "dim": (COUNT, [0, True, 16.0]),
    "layers": (COUNT, [0, -1]),
    "heads": (COUNT, [None, "4"]),
    "vocab": (COUNT, [0, 1.5]),
    "max_length": (COUNT, [0, -1, 12.5]),
    "embedding_dim": (COUNT, [0, -2, 8.0]),
    "inner": (COUNT_OR_NONE, [-3, 1.5, False, None]),
    "inner_chunk": (COUNT_OR_NONE, [-1, "all"]),
    "segments": (COUNT_OR_NONE, [-1, 0.5]),
    "position_offset": (COUNT_OR_NONE, [-1, 2.0]),
    "norm_eps": (NUMBER, ["x", -1, True, float("nan")]),
    "init_std": (NUMBER, [-1, None, float("inf")]),
    "dropout": (SHARE, [1, "0.1", False]),
    "attention_dropout": (SHARE, [-0.1, float("nan")]),
    "inner_dropout": (SHARE, [None]),
    "pad": (TOKEN, [99, 50, -1, 1.0, True]),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name][1]])
def test_a_number_that_can_not_be_is_told(name, value):
    sentence = re.escape(f"{name} is {value!r}: it must be {WRONG[name][0]}")
    with pytest.raises(UserError, match=f"^{sentence}$"):
        Encoder(EncoderConfig(**SMALL | {name: value}))
    with pytest.raises(UserError, match=f"^{sentence}$"):
        Decoder(DecoderConfig(**SMALL | {name: value}))
    if name in ViTConfig.__dataclass_fields__:
        with pytest.raises(UserError, match=f"^{sentence}$"):
            ViT(ViTConfig(**BLOCKS | {name: value}))


@pytest.mark.parametrize("activation", ["gelo", ["gelu"], None])
def test_an_activation_is_checked_also_where_nothing_has_it(activation):
    with pytest.raises(UserError, match="unknown activation"):
        EncoderConfig(**SMALL | {"inner": 0, "activation": activation})


def test_a_vit_has_numbers_of_its_own():
    for name in ("image", "patch", "channels"):
        with pytest.raises(UserError, match=f"{name} is 1.5: it must be {COUNT}"):
            ViTConfig(**BLOCKS, **{name: 1.5})


def test_a_gpt2_whose_end_is_of_another_vocabulary_is_read(tmp_path):
    """Files of small vocabularies often still name GPT-2's own end, 50256."""
    config = transformers.GPT2Config(vocab_size=60, n_embd=16, n_layer=1, n_head=2, n_positions=20)
    assert config.eos_token_id >= config.vocab_size
    reference = transformers.GPT2LMHeadModel(config).eval()
    reference.save_pretrained(tmp_path)
    ids = torch.randint(60, (2, 7))
    with torch.no_grad():
        logits = load_checkpoint(tmp_path)[0](Batch(ids, torch.ones_like(ids))).logits
        torch.testing.assert_close(logits, reference(ids).logits, rtol=0, atol=1e-5)


def test_an_encoder_whose_padding_is_beyond_its_positions_is_published_as_what_it_is():
    """Of RoBERTa's positions its padding would leave none: it is another family's, or none's."""
    assert published_as(EncoderConfig(**SMALL, pad=40), MaskedTokenHead) == "bert"
    assert published_as(EncoderConfig(**SMALL, pad=40, residual="pre"), MaskedTokenHead) == OWN
