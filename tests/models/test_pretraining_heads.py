"""Heads to pretrain with, in and out, against `transformers`; the last block at a few places; operations counted."""

import json
import warnings

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import peftlab
from peftlab.data.batch import Batch
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.models.encoder import Encoder, EncoderConfig
from peftlab.models.flops import TRAINED, discriminator_flops, masked_flops
from peftlab.models.pretrained import head_activation, load_checkpoint, load_head, published_as, save_checkpoint
from peftlab.models.pretraining import (
    Electra,
    MaskedLanguageModel,
    MaskedTokenHead,
    ReplacedTokenHead,
    make_generator,
)

COMMON = {"vocab_size": 60, "max_position_embeddings": 20, "pad_token_id": 0}
BERT = COMMON | {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 36}
NARROW = BERT | {"embedding_size": 16}
DISTIL = COMMON | {"dim": 24, "n_layers": 3, "n_heads": 4, "hidden_dim": 36}
PUBLISHED = {
    "bert": (transformers.BertForMaskedLM, transformers.BertConfig(**BERT), MaskedTokenHead),
    "bert-relu": (transformers.BertForMaskedLM, transformers.BertConfig(**BERT, hidden_act="relu"), MaskedTokenHead),
    "roberta": (
        transformers.RobertaForMaskedLM,
        transformers.RobertaConfig(**BERT | {"pad_token_id": 1}, type_vocab_size=1, hidden_act="relu"),
        MaskedTokenHead,
    ),
    "distilbert": (
        transformers.DistilBertForMaskedLM,
        transformers.DistilBertConfig(**DISTIL, activation="relu"),
        MaskedTokenHead,
    ),
    "generator": (
        transformers.ElectraForMaskedLM,
        transformers.ElectraConfig(**NARROW, hidden_act="relu"),
        MaskedTokenHead,
    ),
    "discriminator": (
        transformers.ElectraForPreTraining,
        transformers.ElectraConfig(**NARROW, hidden_act="relu"),
        ReplacedTokenHead,
    ),
    "discriminator-wide": (
        transformers.ElectraForPreTraining,
        transformers.ElectraConfig(**BERT, embedding_size=24),
        ReplacedTokenHead,
    ),
}


@pytest.fixture(params=PUBLISHED)
def published(request, tmp_path):
    """A random model with its head, saved as `transformers` does."""
    kind, config, head = PUBLISHED[request.param]
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    model.save_pretrained(tmp_path / "theirs")
    return model, tmp_path / "theirs", head


def opened(folder, kind):
    """Encoder, family, settings and head of a folder; nothing of it is left aside."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder, family, settings = load_checkpoint(folder)
    head = kind(encoder.config, head_activation(kind, family, encoder.config))
    assert load_head(folder, family, head)
    return encoder, family, settings, head.eval()


def some_rows() -> Batch:
    ids, mask = torch.randint(2, 60, (4, 11)), torch.ones(4, 11, dtype=torch.bool)
    for row, length in enumerate((11, 7, 4, 1)):
        ids[row, length:], mask[row, length:] = 1, False
    return Batch(ids, mask)


def test_logits_equal_those_of_transformers(published):
    model, folder, kind = published
    encoder, _, _, head = opened(folder, kind)
    batch = some_rows()
    with torch.no_grad():
        expected = model(input_ids=batch.ids, attention_mask=batch.mask.long()).logits
        if kind is ReplacedTokenHead:
            ours = head(encoder.states(batch).x)
        else:
            ours = MaskedLanguageModel(encoder, head)(batch, torch.arange(11).expand(4, 11))
    torch.testing.assert_close(ours[batch.mask], expected[batch.mask], rtol=0, atol=1e-5)


def test_the_round_trip_is_bit_equal(published, tmp_path):
    model, folder, kind = published
    encoder, family, settings, head = opened(folder, kind)
    save_checkpoint(encoder, family, settings, tmp_path / "ours", pretrained=head)
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"] == [type(model).__name__]
    again, facts = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(facts[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    expected, found = model.state_dict(), again.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    bare = load_file(tmp_path / "ours" / "model.safetensors")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in bare.items())


def test_a_base_saves_its_head_with_its_tokenizer(published, tmp_path):
    _, folder, kind = published
    Tokenizer.train_on(["a b c d"], vocab_size=30).save(folder)
    *_, head = opened(folder, kind)
    base = peftlab.load(folder)
    base.save(tmp_path / "ours", pretrained=head)
    assert torch.equal(opened(tmp_path / "ours", kind)[3].dense.weight, head.dense.weight)
    with torch.no_grad():
        batch = base.encode(["a b", "c d"])
        assert torch.equal(peftlab.load(tmp_path / "ours").model(batch).hidden, base.model(batch).hidden)


def test_a_head_that_is_not_there_is_not_loaded(tmp_path):
    transformers.BertModel(transformers.BertConfig(**BERT)).save_pretrained(tmp_path)
    encoder, family, _ = load_checkpoint(tmp_path)
    head = MaskedTokenHead(encoder.config, "gelu")
    before = head.dense.weight.clone()
    assert not load_head(tmp_path, family, head)
    assert not load_head(tmp_path, family, ReplacedTokenHead(encoder.config, "gelu")), "BERT has none of ELECTRA's"
    assert torch.equal(head.dense.weight, before)


def test_a_head_s_first_spelling_is_read_and_a_broken_one_told(tmp_path):
    model = transformers.BertForMaskedLM(transformers.BertConfig(**BERT))
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor for name, tensor in tensors.items()}
    # as they were before weights were tied in the file
    copies = {
        "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].clone(),
    }
    save_file(old | copies, path)
    head = opened(tmp_path, MaskedTokenHead)[3]
    assert torch.equal(head.norm.weight, model.cls.predictions.transform.LayerNorm.weight)
    save_file({name: tensor for name, tensor in old.items() if "transform.dense.weight" not in name}, path)
    with pytest.raises(UserError, match=r"has no tensor cls.predictions.transform.dense.weight"):
        load_head(tmp_path, "bert", head)
    save_file(old, path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"tie_word_embeddings": False}))
    with pytest.raises(UserError, match="tie_word_embeddings is false"):
        load_head(tmp_path, "bert", head)


# Encoders of one's own

SMALL = {"vocab": 60, "dim": 24, "layers": 2, "heads": 4, "inner": 36, "max_length": 20}


@pytest.mark.parametrize(
    ("choices", "kind", "family"),
    [
        ({}, MaskedTokenHead, "bert"),
        ({"pooler": True, "dropout": 0.0, "activation": "relu"}, MaskedTokenHead, "bert"),
        ({"head": "gelu"}, ReplacedTokenHead, "electra"),
        ({"head": "gelu", "embedding_dim": 8}, ReplacedTokenHead, "electra"),
        ({"head": "gelu", "embedding_dim": 8}, MaskedTokenHead, "electra"),
        ({}, ReplacedTokenHead, "peftlab"),
        ({"embedding_dim": 8}, MaskedTokenHead, "peftlab"),
        ({"residual": "pre"}, MaskedTokenHead, "peftlab"),
        ({"position": "sinusoidal"}, MaskedTokenHead, "peftlab"),
        ({"inner": 0}, MaskedTokenHead, "peftlab"),
        ({"embedding_norm": False}, MaskedTokenHead, "peftlab"),
    ],
    ids=str,
)
def test_an_encoder_is_published_in_the_family_that_can_hold_it(choices, kind, family, tmp_path):
    config = EncoderConfig(**{**SMALL, **choices})
    encoder, head = Encoder(config).eval(), kind(config, config.activation).eval()
    assert published_as(config, kind) == family
    save_checkpoint(encoder, family, {}, tmp_path, pretrained=head)
    again, name, _ = load_checkpoint(tmp_path)
    assert name == family
    batch = some_rows()
    with torch.no_grad():
        assert torch.equal(again(batch).hidden, encoder(batch).hidden)
    assert load_head(tmp_path, family, kind(config, "gelu")) == (family != "peftlab")


@pytest.mark.parametrize("residual", ["post", "pre", "none"])
def test_the_last_block_at_a_few_places_gives_what_it_gives_at_all(residual):
    encoder, batch = Encoder(EncoderConfig(**SMALL, residual=residual)).eval(), some_rows()
    places = torch.tensor([[0, 5, 3], [6, 1, 2], [3, 0, 1], [0, 0, 0]])
    whole = encoder.states(batch).x
    few = encoder.states(batch, at=places).x
    torch.testing.assert_close(few, whole[torch.arange(4)[:, None], places], rtol=0, atol=1e-6)


# The count of operations


def counted(run) -> int:
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("embedding", [None, 8])
@pytest.mark.parametrize("layers", [1, 3])
def test_the_count_is_that_of_torch(embedding, layers):
    quiet = {"dropout": 0.0, "attention_dropout": 0.0, "embedding_dim": embedding, "layers": layers}
    config = EncoderConfig(**SMALL | quiet)
    encoder = Encoder(config)
    model = Electra(encoder, ReplacedTokenHead(config, "gelu"), make_generator(encoder, 0.5, "embeddings", "gelu"))
    ids, places = torch.randint(60, (5, 16)), torch.stack([torch.randperm(16)[:3] for _ in range(5)])
    batch = Batch(ids, torch.ones_like(ids))
    assert counted(lambda: model(batch)) == 5 * discriminator_flops(model, 16)
    guess = 5 * masked_flops(model.generator, 16, 3)
    assert counted(lambda: model.generator(batch, places)) == guess
    step = counted(lambda: model.generator(batch, places).sum().backward())
    assert step == pytest.approx(TRAINED * guess, rel=0.05)
