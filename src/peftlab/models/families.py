"""The families of published checkpoints, one declarative entry each: how `transformers`, or timm, names what we have.

An entry (`models/family.py`) maps our modules to theirs and our settings to theirs. GPT-2 keeps q, k and v in one
matrix, and its matrices turned; timm keeps q, k and v in one; the others differ in names alone.
"""

from __future__ import annotations

from typing import Any

from peftlab.models.decoder import Decoder, DecoderConfig
from peftlab.models.encoder import Encoder, EncoderConfig
from peftlab.models.family import Dialect, Family, Part, Pretrained, Stack
from peftlab.models.reformer import ReformerConfig, ReformerDecoder, ReformerEncoder
from peftlab.models.seq2seq import Seq2Seq, Seq2SeqConfig
from peftlab.models.timm import read_timm, write_timm
from peftlab.models.vit import ViT, ViTConfig

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
VIT_BLOCK = BERT_BLOCK | {
    "self_attention.sublayer.q": "attention.attention.query",
    "self_attention.sublayer.k": "attention.attention.key",
    "self_attention.sublayer.v": "attention.attention.value",
    "self_attention.norm": "layernorm_before",
    "feedforward.norm": "layernorm_after",
}
TIMM_BLOCK: dict[str, str | Part] = {
    "self_attention.sublayer.q": Part("attn.qkv", 0, 3),
    "self_attention.sublayer.k": Part("attn.qkv", 1, 3),
    "self_attention.sublayer.v": Part("attn.qkv", 2, 3),
    "self_attention.sublayer.o": "attn.proj",
    "self_attention.norm": "norm1",
    "feedforward.sublayer.up": "mlp.fc1",
    "feedforward.sublayer.down": "mlp.fc2",
    "feedforward.norm": "norm2",
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
REFORMER_BLOCK = {
    "self_attention.norm": "attention.layer_norm",
    "self_attention.sublayer.q": "attention.self_attention.query_key",
    "self_attention.sublayer.v": "attention.self_attention.value",
    "self_attention.sublayer.o": "attention.output.dense",
    "local_attention.norm": "attention.layer_norm",
    "local_attention.sublayer.q": "attention.self_attention.query",
    "local_attention.sublayer.k": "attention.self_attention.key",
    "local_attention.sublayer.v": "attention.self_attention.value",
    "local_attention.sublayer.o": "attention.output.dense",
    "feedforward.norm": "feed_forward.layer_norm",
    "feedforward.sublayer.up": "feed_forward.dense.dense",
    "feedforward.sublayer.down": "feed_forward.output.dense",
}
BERT_OUTSIDE = {
    "embedding.words": "embeddings.word_embeddings",
    "embedding.positions": "embeddings.position_embeddings",
    "embedding.segments": "embeddings.token_type_embeddings",
    "embedding.norm": "embeddings.LayerNorm",
    "embedding.project": "embeddings_project",
    "pooler.dense": "pooler.dense",
}
VIT_OUTSIDE = {
    "embedding.patches": "embeddings.patch_embeddings.projection",
    "embedding.cls": "embeddings.cls_token",
    "embedding.distillation": "embeddings.distillation_token",
    "embedding.positions.table": "embeddings.position_embeddings",
    "norm": "layernorm",
    "pooler.dense": "pooler.dense",
}
TIMM_OUTSIDE = {
    "embedding.patches": "patch_embed.proj",
    "embedding.cls": "cls_token",
    "embedding.distillation": "dist_token",
    "embedding.positions.table": "pos_embed",
    "norm": "norm",
}
REFORMER_OUTSIDE = {
    "embedding.words": "embeddings.word_embeddings",
    "embedding.positions.rows": "embeddings.position_embeddings.weights.0",
    "embedding.positions.columns": "embeddings.position_embeddings.weights.1",
    "norm": "encoder.layer_norm",
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
VIT_SETTINGS = {
    "dim": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "activation": "hidden_act",
    "norm_eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "init_std": "initializer_range",
    "image": "image_size",
    "patch": "patch_size",
    "channels": "num_channels",
}
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
REFORMER_SETTINGS = {
    "vocab": "vocab_size",
    "dim": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "head_dim": "attention_head_size",
    "inner": "feed_forward_size",
    "inner_chunk": "chunk_size_feed_forward",
    "activation": "hidden_act",
    "attention": "attn_layers",
    "chunk": "lsh_attn_chunk_length",
    "rounds": "num_hashes",
    "buckets": "num_buckets",
    "seed": "hash_seed",
    "local_chunk": "local_attn_chunk_length",
    "max_length": "max_position_embeddings",
    "axes": "axial_pos_shape",
    "axis_dims": "axial_pos_embds_dim",
    "norm_eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "lsh_attention_probs_dropout_prob",
    "local_dropout": "local_attention_probs_dropout_prob",
    "end": "eos_token_id",
    "pad": "pad_token_id",
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

BERT_PRETRAINED = {
    "masked_tokens": Pretrained(
        "ForMaskedLM",
        {
            "dense": "cls.predictions.transform.dense",
            "norm": "cls.predictions.transform.LayerNorm",
            "bias": "cls.predictions.bias",
        },
        copies=("cls.predictions.decoder",),
    )
}
ROBERTA_PRETRAINED = {
    "masked_tokens": Pretrained(
        "ForMaskedLM",
        {"dense": "lm_head.dense", "norm": "lm_head.layer_norm", "bias": "lm_head.bias"},
        copies=("lm_head.decoder",),
        activation="gelu",
    )
}
ELECTRA_PRETRAINED = {
    "masked_tokens": Pretrained(
        "ForMaskedLM",
        {
            "dense": "generator_predictions.dense",
            "norm": "generator_predictions.LayerNorm",
            "bias": "generator_lm_head.bias",
        },
        copies=("generator_lm_head.weight",),
        activation="gelu",
    ),
    "replaced_tokens": Pretrained(
        "ForPreTraining",
        {"dense": "discriminator_predictions.dense", "out": "discriminator_predictions.dense_prediction"},
    ),
}
DISTILBERT_PRETRAINED = {
    "masked_tokens": Pretrained(
        "ForMaskedLM",
        {"dense": "vocab_transform", "norm": "vocab_layer_norm", "bias": "vocab_projector.bias"},
        copies=("vocab_projector.weight",),
    )
}

DENSE_HEAD = {"dense": "classifier.dense", "out": "classifier.out_proj"}
BERT: dict[str, Any] = {
    "block": BERT_BLOCK,
    "outside": BERT_OUTSIDE,
    "layers": "encoder.layer.",
    "stacks": {"": Stack(EncoderConfig, BERT_SETTINGS)},
    "build": lambda configs: Encoder(configs[""]),
    "head": {"dense": "pooler.dense", "out": "classifier"},
    "optional": {"pooler": "pooler.dense.weight"},
    "demanded": {"position_embedding_type": "absolute", "is_decoder": False},
    "derived": r"embeddings\.(position_ids|token_type_ids)",
}
VIT: dict[str, Any] = {
    "block": VIT_BLOCK,
    "outside": VIT_OUTSIDE,
    "layers": "encoder.layer.",
    "stacks": {"": Stack(ViTConfig, VIT_SETTINGS)},
    "build": lambda configs: ViT(configs[""]),
    "optional": {"tanh": "pooler.dense.weight"},
    "demanded": {"qkv_bias": True, "pooler_act": "tanh"},
    "head": {"out": "classifier"},
    "classifier": "ForImageClassification",
    "past_keys": False,
}
SEQ2SEQ: dict[str, Any] = {
    "block": BART_BLOCK,
    "layers": "model.{}.layers.",
    "stacks": BART_STACKS,
    "build": lambda configs: Seq2Seq(Seq2SeqConfig(configs["encoder"], configs["decoder"])),
    "demanded": {"tie_word_embeddings": True, "share_encoder_decoder_embeddings": True},
}
REFORMER: dict[str, Any] = {
    "block": REFORMER_BLOCK,
    "stacks": {"": Stack(ReformerConfig, REFORMER_SETTINGS)},
    "past_keys": False,
}
REFORMER_DEMANDED = {
    "axial_pos_embds": True,
    "lsh_num_chunks_before": 1,
    "lsh_num_chunks_after": 0,
    "local_num_chunks_before": 1,
    "local_num_chunks_after": 0,
}
FAMILIES = {
    "bert": Family("BertModel", "bert.", **BERT, pretrained=BERT_PRETRAINED),
    "roberta": Family(
        "RobertaModel",
        "roberta.",
        **BERT | {"head": DENSE_HEAD},
        fixed={"head": "tanh"},
        pretrained=ROBERTA_PRETRAINED,
        pads_positions=True,
    ),
    "electra": Family(
        "ElectraModel",
        "electra.",
        **BERT | {"head": DENSE_HEAD, "stacks": {"": Stack(EncoderConfig, ELECTRA_SETTINGS)}},
        fixed={"head": "gelu"},
        pretrained=ELECTRA_PRETRAINED,
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
        pretrained=DISTILBERT_PRETRAINED,
        optional=BERT["optional"],
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
    "reformer": Family(
        "ReformerModel",
        "reformer.",
        **REFORMER,
        outside=REFORMER_OUTSIDE,
        layers="encoder.layers.",
        build=lambda configs: ReformerEncoder(configs[""]),
        demanded=REFORMER_DEMANDED | {"is_decoder": False},
    ),
    "reformer-lm": Family(
        "ReformerModelWithLMHead",
        "",
        **REFORMER,
        outside={ours: f"reformer.{theirs}" for ours, theirs in REFORMER_OUTSIDE.items()}
        | {"vocabulary": "lm_head.decoder"},
        layers="reformer.encoder.layers.",
        build=lambda configs: ReformerDecoder(configs[""]),
        demanded=REFORMER_DEMANDED | {"is_decoder": True, "tie_word_embeddings": False},
        derived=r"lm_head\.(decoder\.)?bias",
        model_type="reformer",
    ),
    "vit": Family("ViTModel", "vit.", **VIT),
    "deit": Family("DeiTModel", "deit.", **VIT, fixed={"distilled": True}),
    "timm": Family(
        "VisionTransformer",
        "",
        **VIT
        | {
            "block": TIMM_BLOCK,
            "outside": TIMM_OUTSIDE,
            "layers": "blocks.",
            "optional": {"distilled": "dist_token"},
            "head": {"out": "head"},
        },
        dialect=Dialect(read_timm, write_timm),
    ),
}
