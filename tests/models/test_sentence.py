"""Heads that pool the mean, as the real `sentence-transformers` reads them: every family, single texts and pairs."""

import shutil

import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer

import peftlab

TEXTS = ["a good film", "no, it is not a good film at all, not even for a rainy afternoon", "x"]
PAIRS = [("a man eats", "someone is eating"), ("a man eats in the garden of his house", "no"), ("x", "y z")]
COMMON = {"vocab_size": 30522, "max_position_embeddings": 40, "pad_token_id": 0}
BERT = COMMON | {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 36}
FAMILIES = {
    "bert": (transformers.BertConfig(**BERT), ["Identity"]),
    "roberta": (transformers.RobertaConfig(**{**BERT, "pad_token_id": 1}, type_vocab_size=1), ["Tanh", "Identity"]),
    "electra": (transformers.ElectraConfig(**BERT, embedding_size=16), ["GELU", "Identity"]),
    "distilbert": (
        transformers.DistilBertConfig(**COMMON, dim=24, n_layers=2, n_heads=4, hidden_dim=36),
        ["ReLU", "Identity"],
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_head_gives_the_same_logits_there(family, tmp_path, minilm):
    config, activations = FAMILIES[family]
    plain = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    plain.save_pretrained(tmp_path / "base")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm / file, tmp_path / "base")
    base = peftlab.load(tmp_path / "base")
    peftlab.attach(base.model, "mine", peftlab.Head(), head=peftlab.Classifier(labels=("no", "so", "yes"), pool="mean"))
    with torch.no_grad():
        for parameter in base.model.additions("mine")["encoder.head"].parameters():
            parameter.normal_()
    base.save(tmp_path / "saved", head="mine")
    model = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert [type(module.activation_function).__name__ for module in list(model)[2:]] == activations
    assert model.max_seq_length == base.config.max_length
    for texts in (TEXTS, PAIRS) if base.config.segments > 1 else (TEXTS,):
        with torch.no_grad():
            here = base.model(base.encode(texts)).logits
        torch.testing.assert_close(model.encode(texts, convert_to_tensor=True), here, rtol=0, atol=1e-4)
        assert here.std() > 0.1
