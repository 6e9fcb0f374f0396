"""Stock `peft` and `transformers` on MiniLM: configurations of every type, a classifier, and what it is given."""

from pathlib import Path

import peft
import transformers

TEXTS = ["a good film", "no, it is not a good film at all, not even for a rainy afternoon", "x"]
PAIRS = [("a man eats", "someone is eating"), ("a man eats in the garden of his house", "no"), ("x", "y z")]
SEQ_CLS = {"task_type": "SEQ_CLS"}
STOCK = {
    "lora": peft.LoraConfig(**SEQ_CLS, r=4, lora_alpha=8, target_modules=["query", "value"], init_lora_weights=False),
    "lora-pattern": peft.LoraConfig(
        **SEQ_CLS,
        r=4,
        lora_alpha=8,
        target_modules=["query", "output.dense", "intermediate.dense"],
        use_rslora=True,
        rank_pattern={"query": 2},
        alpha_pattern={"layer.1.attention.self.query": 32, "query": 5},
        init_lora_weights=False,
    ),
    "dora": peft.LoraConfig(**SEQ_CLS, r=3, target_modules=["key", "value"], use_dora=True, init_lora_weights=False),
    "prompt": peft.PromptTuningConfig(**SEQ_CLS, num_virtual_tokens=5),
    "p-tuning-mlp": peft.PromptEncoderConfig(**SEQ_CLS, num_virtual_tokens=5, encoder_hidden_size=32),
    "p-tuning-lstm": peft.PromptEncoderConfig(
        **SEQ_CLS, num_virtual_tokens=5, encoder_hidden_size=32, encoder_reparameterization_type="LSTM"
    ),
    "prefix": peft.PrefixTuningConfig(**SEQ_CLS, num_virtual_tokens=5),
    "prefix-mlp": peft.PrefixTuningConfig(
        **SEQ_CLS, num_virtual_tokens=5, prefix_projection=True, encoder_hidden_size=16
    ),
}
SMALL = {"vocab_size": 30522, "max_position_embeddings": 40, "pad_token_id": 0}
BERT = SMALL | {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 36}


def classifier(minilm, labels: int = 3):
    return transformers.AutoModelForSequenceClassification.from_pretrained(minilm, num_labels=labels)


def inputs(minilm, texts):
    return transformers.AutoTokenizer.from_pretrained(minilm)(texts, padding=True, return_tensors="pt")


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, also in those below it, by name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
