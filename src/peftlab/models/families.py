"""The families of published checkpoints, one declarative entry each: how `transformers` names what we have.

An entry maps our modules to theirs and our settings to theirs; `models/pretrained.py` reads and writes by it. GPT-2
keeps q, k and v in one matrix, and its matrices turned; the others differ in names alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from peftlab.layers.site import SUBLAYERS, Address
from peftlab.models.decoder import Decoder, DecoderConfig
from peftlab.models.encoder import Encoder, EncoderConfig
from peftlab.models.model import Model
from peftlab.models.seq2seq import Seq2Seq, Seq2SeqConfig
from peftlab.models.stack import StackConfig


class Part(NamedTuple):
    """Where a module of ours is in a checkpoint: a module of theirs, or one of several that are stacked in it."""

    name: str
    number: int = 0
    of: int = 1


class Stack(NamedTuple):
    """How an encoder or a decoder is told in config.json."""

    config: type[StackConfig]
    settings: Mapping[str, str]
    """our field → their key"""


@dataclass(frozen=True)
class Family:
    """How one family names what we have."""

    architecture: str
    """the class in `transformers` that holds the base alone"""
    prefix: str
    """what stands before the base's names in a checkpoint with a head"""
    block: Mapping[str, str | Part]
    """our part of a block → theirs"""
    outside: Mapping[str, str]
    """our part outside the blocks → theirs"""
    layers: str
    """what stands before a block's number; {} is the stack, where there are two"""
    stacks: Mapping[str, Stack]
    """by name; one that is alone has the name ''"""
    build: Callable[[Mapping[str, Any]], Model]
    """the model of the stacks' configurations"""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """fields of ours that are the same in every checkpoint of the family"""
    usual: Mapping[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)
    """fields that a config.json may leave out → what they are then, by the fields before them"""
    demanded: Mapping[str, Any] = field(default_factory=dict)
    """their settings that must have this value where they are there: we have no other"""
    head: Mapping[str, str] = field(default_factory=dict)
    """our part of a classifier → theirs"""
    turned: tuple[str, ...] = ()
    """their modules whose matrices are [in, out]"""
    derived: str = r"$^"
    """a pattern of tensors of theirs that others determine: buffers, copies of tied weights"""
    past_keys: bool = True
    """whether its class in `transformers` takes keys and values of earlier tokens"""
    pads_positions: bool = False
    """the table of positions starts behind the padding token's row: offset = pad + 1"""

    def module(self, address: Address) -> str | None:
        """A site's address → the module in the base of `transformers`, None where it has none of its own."""
        if address.layer is None:
            return self.outside.get(self.within(address.stack, f"{address.sublayer}.{address.part}"))
        names = {short: name for name, short in SUBLAYERS.items()}
        for part in (f"sublayer.{address.part}", address.part):
            found = self.block.get(f"{names.get(address.sublayer)}.{part}")
            if isinstance(found, str):
                return f"{self.layers.format(address.stack)}{address.layer}.{found}"
        return None

    def within(self, stack: str, name: str) -> str:
        """The name of a part of a stack in the whole model."""
        return name if "" in self.stacks else f"{stack}.{name}"

    def part(self, name: str) -> Part:
        """Our name of a tensor → where theirs is: `blocks.3.feedforward.norm.bias` → `encoder.layer.3.output…bias`."""
        module, _, leaf = name.rpartition(".")
        if block := re.fullmatch(r"(?:(\w+)\.)?blocks\.(\d+)\.(.+)", module):
            found = self.block[block[3]]
            part = Part(found) if isinstance(found, str) else found
            return part._replace(name=f"{self.layers.format(block[1])}{block[2]}.{part.name}.{leaf}")
        return Part(self.outside[name] if name in self.outside else f"{self.outside[module]}.{leaf}")

    def publish(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our tensors → theirs."""
        stacked: dict[str, dict[int, Tensor]] = {}
        for key, tensor in state.items():
            name, number, _ = self.part(key)
            stacked.setdefault(name, {})[number] = tensor
        whole = {name: torch.cat([parts[i] for i in sorted(parts)]) for name, parts in stacked.items()}
        return {name: self.turn(name, tensor) for name, tensor in whole.items()}

    def adopt(self, keys: Mapping[str, Any], read: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """Our tensors of these names, from theirs."""
        found: dict[str, Tensor] = {}
        for key in keys:
            name, number, of = self.part(key)
            tensor = self.turn(name, read(name))
            found[key] = tensor if of == 1 else tensor.chunk(of)[number].clone()
        return found

    def turn(self, name: str, tensor: Tensor) -> Tensor:
        """A matrix of theirs ⇄ ours."""
        module = name.removesuffix(".weight")
        return tensor.T.contiguous() if module != name and module.endswith(self.turned or ("\0",)) else tensor


BERT_BLOCK = {
    "self_attention.sublayer.q": "attention.self.query",
    "self_attention.sublayer.k": "attention.self.key",
    "self_attention.sublayer.v": "attention.self.value",
    "self_attention.sublayer.o": "attention.output.dense",
    "self_attention.norm": "attention.output.LayerNorm",
    "feedforward.sublayer.up": "intermediate.dense",
    "feedforward.sublayer.down": "output.dense",
    "feedforward.norm": "output.LayerNorm",
}
DISTILBERT_BLOCK = {
    "self_attention.sublayer.q": "attention.q_lin",
    "self_attention.sublayer.k": "attention.k_lin",
    "self_attention.sublayer.v": "attention.v_lin",
    "self_attention.sublayer.o": "attention.out_lin",
    "self_attention.norm": "sa_layer_norm",
    "feedforward.sublayer.up": "ffn.lin1",
    "feedforward.sublayer.down": "ffn.lin2",
    "feedforward.norm": "output_layer_norm",
}
GPT2_BLOCK: dict[str, str | Part] = {
    "self_attention.sublayer.q": Part("attn.c_attn", 0, 3),
    "self_attention.sublayer.k": Part("attn.c_attn", 1, 3),
    "self_attention.sublayer.v": Part("attn.c_attn", 2, 3),
    "self_attention.sublayer.o": "attn.c_proj",
    "self_attention.norm": "ln_1",
    "feedforward.sublayer.up": "mlp.c_fc",
    "feedforward.sublayer.down": "mlp.c_proj",
    "feedforward.norm": "ln_2",
}
BART_BLOCK = {
    "self_attention.sublayer.q": "self_attn.q_proj",
    "self_attention.sublayer.k": "self_attn.k_proj",
    "self_attention.sublayer.v": "self_attn.v_proj",
    "self_attention.sublayer.o": "self_attn.out_proj",
    "self_attention.norm": "self_attn_layer_norm",
    "cross_attention.sublayer.q": "encoder_attn.q_proj",
    "cross_attention.sublayer.k": "encoder_attn.k_proj",
    "cross_attention.sublayer.v": "encoder_attn.v_proj",
    "cross_attention.sublayer.o": "encoder_attn.out_proj",
    "cross_attention.norm": "encoder_attn_layer_norm",
    "feedforward.sublayer.up": "fc1",
    "feedforward.sublayer.down": "fc2",
    "feedforward.norm": "final_layer_norm",
}
BERT_OUTSIDE = {
    "embedding.words": "embeddings.word_embeddings",
    "embedding.positions": "embeddings.position_embeddings",
    "embedding.segments": "embeddings.token_type_embeddings",
    "embedding.norm": "embeddings.LayerNorm",
    "embedding.project": "embeddings_project",
    "pooler.dense": "pooler.dense",
}
MARIAN_OUTSIDE = {
    "encoder.embedding.words": "model.shared",
    "decoder.embedding.words": "model.shared",
    "decoder.bias": "final_logits_bias",
}
BERT_SETTINGS = {
    "vocab": "vocab_size",
    "dim": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "activation": "hidden_act",
    "max_length": "max_position_embeddings",
    "segments": "type_vocab_size",
    "norm_eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "pad": "pad_token_id",
    "init_std": "initializer_range",
}
ELECTRA_SETTINGS = {**BERT_SETTINGS, "embedding_dim": "embedding_size"}
DISTILBERT_SETTINGS = {
    "vocab": "vocab_size",
    "dim": "dim",
    "layers": "n_layers",
    "heads": "n_heads",
    "inner": "hidden_dim",
    "activation": "activation",
    "max_length": "max_position_embeddings",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "pad": "pad_token_id",
    "init_std": "initializer_range",
}
GPT2_SETTINGS = {
    "vocab": "vocab_size",
    "dim": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
    "inner": "n_inner",
    "activation": "activation_function",
    "max_length": "n_positions",
    "norm_eps": "layer_norm_epsilon",
    "dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "end": "eos_token_id",
    "pad": "eos_token_id",
    "init_std": "initializer_range",
}
BART_STACKS = {
    stack: Stack(
        config,
        {
            "vocab": "vocab_size",
            "dim": "d_model",
            "layers": f"{stack}_layers",
            "heads": f"{stack}_attention_heads",
            "inner": f"{stack}_ffn_dim",
            "activation": "activation_function",
            "max_length": "max_position_embeddings",
            "embedding_scale": "scale_embedding",
            "dropout": "dropout",
            "attention_dropout": "attention_dropout",
            "inner_dropout": "activation_dropout",
            "pad": "pad_token_id",
            "init_std": "init_std",
            **marks,
        },
    )
    for stack, config, marks in (
        ("encoder", EncoderConfig, {}),
        ("decoder", DecoderConfig, {"start": "decoder_start_token_id", "end": "eos_token_id"}),
    )
}
"""of BART and of Marian alike"""

DENSE_HEAD = {"dense": "classifier.dense", "out": "classifier.out_proj"}
BERT: dict[str, Any] = {
    "block": BERT_BLOCK,
    "outside": BERT_OUTSIDE,
    "layers": "encoder.layer.",
    "stacks": {"": Stack(EncoderConfig, BERT_SETTINGS)},
    "build": lambda configs: Encoder(configs[""]),
    "head": {"dense": "pooler.dense", "out": "classifier"},
    "demanded": {"position_embedding_type": "absolute", "is_decoder": False},
    "derived": r"embeddings\.(position_ids|token_type_ids)",
}
SEQ2SEQ: dict[str, Any] = {
    "block": BART_BLOCK,
    "layers": "model.{}.layers.",
    "stacks": BART_STACKS,
    "build": lambda configs: Seq2Seq(Seq2SeqConfig(configs["encoder"], configs["decoder"])),
    "demanded": {"tie_word_embeddings": True, "share_encoder_decoder_embeddings": True},
}
FAMILIES = {
    "bert": Family("BertModel", "bert.", **BERT),
    "roberta": Family(
        "RobertaModel",
        "roberta.",
        **BERT | {"head": DENSE_HEAD},
        fixed={"head": "tanh"},
        pads_positions=True,
    ),
    "electra": Family(
        "ElectraModel",
        "electra.",
        **BERT | {"head": DENSE_HEAD, "stacks": {"": Stack(EncoderConfig, ELECTRA_SETTINGS)}},
        fixed={"head": "gelu"},
    ),
    "distilbert": Family(
        "DistilBertModel",
        "distilbert.",
        block=DISTILBERT_BLOCK,
        outside=BERT_OUTSIDE,
        layers="transformer.layer.",
        stacks={"": Stack(EncoderConfig, DISTILBERT_SETTINGS)},
        build=BERT["build"],
        fixed={"segments": 0, "norm_eps": 1e-12, "head": "relu"},
        head={"dense": "pre_classifier", "out": "classifier"},
        derived=BERT["derived"],
        past_keys=False,
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        "transformer.",
        block=GPT2_BLOCK,
        outside={"embedding.words": "wte", "embedding.positions": "wpe", "norm": "ln_f"},
        layers="h.",
        stacks={"": Stack(DecoderConfig, GPT2_SETTINGS)},
        build=lambda configs: Decoder(configs[""]),
        fixed={"residual": "pre"},
        usual={"inner": lambda values: 4 * values["dim"]},
        demanded={
            "tie_word_embeddings": True,
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
        turned=("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
        derived=r"h\.\d+\.attn\.(bias|masked_bias)",
    ),
    "bart": Family(
        "BartForConditionalGeneration",
        "",
        **SEQ2SEQ,
        outside=MARIAN_OUTSIDE
        | {
            f"{stack}.embedding.{ours}": f"model.{stack}.{theirs}"
            for stack in ("encoder", "decoder")
            for ours, theirs in {"positions": "embed_positions", "norm": "layernorm_embedding"}.items()
        },
        fixed={"position_offset": 2, "norm_eps": 1e-5, "segments": 0, "cross": True, "output_bias": True},
        derived=r"lm_head\.weight|model\.(encoder|decoder)\.embed_tokens\.weight",
    ),
    "marian": Family(
        "MarianMTModel",
        "",
        **SEQ2SEQ,
        outside=MARIAN_OUTSIDE,
        fixed={
            "position": "halves",
            "embedding_norm": False,
            "norm_eps": 1e-5,
            "segments": 0,
            "cross": True,
            "output_bias": True,
        },
        derived=r"lm_head\.weight|model\.(encoder|decoder)\.embed_(tokens|positions)\.weight",
    ),
}
