"""From scratch: the base's shape without what it knows."""

import pytest
import torch
from examples import small
from small import bits, films, left_alone_and_interrupted

import peftlab
from peftlab.models.decoder import Decoder, DecoderConfig
from peftlab.models.seq2seq import Seq2Seq, seq2seq_config
from peftlab.models.vit import ViT, ViTConfig
from peftlab.peft import METHODS
from peftlab.train.run import run

SIZES = {"dim": 16, "layers": 2, "heads": 2, "inner": 24}
MODELS = {
    "encoder": small,
    "decoder": lambda: Decoder(DecoderConfig(**SIZES, vocab=30)),
    "seq2seq": lambda: Seq2Seq(seq2seq_config(**SIZES, vocab=30, start=1, end=2)),
    "vit": lambda: ViT(ViTConfig(**SIZES, image=8, patch=4, channels=1)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_every_weight_is_drawn_as_a_new_model_s(kind):
    model = MODELS[kind]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(mean=3.0)  # all that a base could know, its norms and biases included
    torch.manual_seed(7)
    peftlab.Scratch().begin(model)
    torch.manual_seed(7)
    expected = type(model)(model.config).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_attaching_alone_changes_nothing_and_a_comparison_has_it_on_request():
    model = small()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    peftlab.attach(model, "mine", peftlab.Scratch())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert "scratch" in METHODS
    assert not METHODS["scratch"].by_default


def test_a_run_starts_from_the_seed_and_not_from_the_base(tiny, films_file, tmp_path):
    words = {}
    # not the seed of the base: drawn by the same law, that would be the same weights
    for name, seed in {"one": 5, "same": 5, "other": 6, "full": 5}.items():
        method = "full" if name == "full" else "scratch"
        config = films(tiny, films_file, method, steps=1, lr=1e-12, seed=seed)
        run(config, tmp_path / name)
        words[name] = peftlab.load(tmp_path / name).model.embedding.words.weight
    base = peftlab.load(tiny).model.embedding.words.weight
    assert torch.allclose(words["full"], base, atol=1e-9)
    assert torch.equal(words["one"], words["same"])
    assert not torch.allclose(words["one"], base, atol=1e-3)
    assert not torch.allclose(words["one"], words["other"], atol=1e-3)
    assert float(words["one"].detach().std()) == pytest.approx(0.02, rel=0.05)


def test_an_interrupted_run_goes_on_with_what_it_learned(tiny, films_file, tmp_path):
    left_alone_and_interrupted(films(tiny, films_file, "scratch", checkpoint=0), tmp_path, at=6)
    assert bits(tmp_path / "whole") == bits(tmp_path / "again")
