"""What `sentence-transformers` reads: a head that pools the mean, as the modules that it is there.

modules.json                the modules in the order in which the data passes them
sentence_bert_config.json   after how many tokens a text is cut
1_Pooling/                  the mean of the real tokens
2_Dense/                    a linear map, `linear.weight` and `linear.bias`, with the activation behind it
3_Dense/                    `out`, where the family's head has a dense layer before it

SentenceTransformer(folder).encode(texts)   # the logits
"""

from __future__ import annotations

import json
from typing import Any

from safetensors.torch import save

from peftlab.models.heads import ClassifierHead

POOLING = "1_Pooling"
TYPES = "sentence_transformers.models."
"""where published models say that the modules are; newer versions have moved them and still read this"""
ACTIVATIONS = {
    None: "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
    "gelu": "torch.nn.modules.activation.GELU",
    "relu": "torch.nn.modules.activation.ReLU",
}


def model_files(head: ClassifierHead, max_length: int) -> dict[str, bytes]:
    """What turns the folder of a `transformers` checkpoint into a model with this head, by the files' names."""
    modules = {"": "Transformer", POOLING: "Pooling"} | dict.fromkeys(dense_folders(head.activation).values(), "Dense")
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": TYPES + kind} for i, (path, kind) in enumerate(modules.items())
    ]
    return {
        "modules.json": to_json(listed),
        "sentence_bert_config.json": to_json({"max_seq_length": max_length}),
        **head_files(head),
    }


def head_files(head: ClassifierHead) -> dict[str, bytes]:
    """The head alone: pooling and linear maps, by the files' names."""
    modes = {"cls_token": False, "mean_tokens": True, "max_tokens": False}
    pooling = {"word_embedding_dimension": head.out.in_features} | {f"pooling_mode_{k}": v for k, v in modes.items()}
    files = {f"{POOLING}/config.json": to_json(pooling)}
    for part, place in dense_folders(head.activation).items():
        linear: Any = head.get_submodule(part)
        config = {
            "in_features": linear.in_features,
            "out_features": linear.out_features,
            "bias": True,
            "activation_function": ACTIVATIONS[None if part == "out" else head.activation],
        }
        tensors = {f"linear.{leaf}": t.detach().cpu().contiguous() for leaf, t in linear.named_parameters()}
        files[f"{place}/config.json"] = to_json(config)
        files[f"{place}/model.safetensors"] = save(tensors, metadata={"format": "pt"})
    return files


def dense_folders(activation: str | None) -> dict[str, str]:
    """Part of a head → the folder of its linear map; the activation is that of the dense layer, None without one."""
    parts = ("out",) if activation is None else ("dense", "out")
    return {part: f"{number}_Dense" for number, part in enumerate(parts, 2)}


def to_json(content: Any) -> bytes:
    """As the library writes it."""
    return json.dumps(content, indent=2).encode()
