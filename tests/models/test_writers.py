"""Models that write, against `transformers`: random small GPT-2s, BARTs and Marians, in and out."""

import pytest
import torch
import transformers

from peftlab.data.batch import Batch, Pair
from peftlab.errors import UserError
from peftlab.layers import masks
from peftlab.models.decoder import Decoder, DecoderConfig, Source, build_block
from peftlab.models.heads import Classifier
from peftlab.models.pretrained import load_checkpoint, save_checkpoint
from peftlab.models.seq2seq import Seq2Seq, seq2seq_config
from peftlab.peft import Adapter, BitFit, LoRA, Prefix, Prompt, PTuning
from peftlab.peft.attach import activate, attach

SMALL = {"vocab": 60, "dim": 24, "layers": 3, "heads": 4, "inner": 36}

BOTH = {
    "vocab_size": 60,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 36,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 20,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
GPT2 = {
    "vocab_size": 60,
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 20,
    "eos_token_id": 5,
    "bos_token_id": 5,
}
KINDS = {
    "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config(**GPT2)),
    "gpt2-inner": (transformers.GPT2LMHeadModel, transformers.GPT2Config(**GPT2, n_inner=30)),
    "bart": (transformers.BartForConditionalGeneration, transformers.BartConfig(**BOTH)),
    "bart-scaled": (transformers.BartForConditionalGeneration, transformers.BartConfig(**BOTH, scale_embedding=True)),
    "marian": (transformers.MarianMTModel, transformers.MarianConfig(**BOTH, activation_function="swish")),
}


def random_model(name: str, seed: int = 0):
    """A model of `transformers` in which every tensor matters, the bias of the scores included."""
    torch.manual_seed(seed)
    kind, config = KINDS[name]
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # Marian's sinusoids are not to be drawn
                parameter.normal_(std=0.2)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    return model


@pytest.fixture(params=KINDS)
def reference(request, tmp_path):
    model = random_model(request.param)
    model.save_pretrained(tmp_path / "reference")
    return model, tmp_path / "reference"


def ragged(*lengths: int) -> Batch:
    ids, mask = torch.randint(6, 60, (len(lengths), max(lengths))), torch.zeros(len(lengths), max(lengths)).bool()
    for row, length in enumerate(lengths):
        mask[row, :length] = True
    return Batch(ids.where(mask, 1), mask)


@torch.no_grad()
def test_scores_equal_those_of_transformers(reference):
    model, folder = reference
    ours, family, _ = load_checkpoint(folder)
    source, target = ragged(9, 4, 1), ragged(5, 8, 3)
    if family == "gpt2":
        expected = model(input_ids=source.ids, attention_mask=source.mask.long())
        out, real = ours(source), source.mask
    else:
        expected = model(
            input_ids=source.ids,
            attention_mask=source.mask.long(),
            decoder_input_ids=target.ids,
            output_attentions=True,
        )
        out, real = ours(Pair(source, target)), target.mask
    torch.testing.assert_close(out.logits[real], expected.logits[real], rtol=0, atol=1e-5)


def test_round_trip_is_bit_equal(reference, tmp_path):
    model, folder = reference
    save_checkpoint(*load_checkpoint(folder), tmp_path / "written")
    again = type(model).from_pretrained(tmp_path / "written")
    expected = model.state_dict()
    assert again.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in again.state_dict().items())
    theirs, ours = model.config.to_dict(), again.config.to_dict()
    differing = {key for key in theirs if theirs[key] != ours[key]} - {"_name_or_path", "dtype", "architectures"}
    assert differing <= {"n_inner"}  # None stands for four times the width


@torch.no_grad()
@pytest.mark.parametrize("residual", ["post", "pre"])
def test_a_block_equals_that_of_torch(residual):
    config = DecoderConfig(
        **SMALL, cross=True, residual=residual, norm_eps=1e-5, dropout=0.0, attention_dropout=0.0, activation="relu"
    )
    ours = build_block(config)
    theirs = torch.nn.TransformerDecoderLayer(
        24, 4, 36, 0.0, "relu", 1e-5, batch_first=True, norm_first=residual == "pre"
    )
    for parameter in ours.parameters():
        parameter.normal_(std=0.2)
    for name, mine in (("self_attn", ours.self_attention), ("multihead_attn", ours.cross_attention)):
        stock, parts = getattr(theirs, name), [mine.sublayer.q, mine.sublayer.k, mine.sublayer.v]
        stock.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        stock.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        stock.out_proj.load_state_dict(mine.sublayer.o.state_dict())
    theirs.linear1.load_state_dict(ours.feedforward.sublayer.up.state_dict())
    theirs.linear2.load_state_dict(ours.feedforward.sublayer.down.state_dict())
    for norm, mine in zip((theirs.norm1, theirs.norm2, theirs.norm3), ours.children(), strict=True):
        norm.load_state_dict(mine.norm.state_dict())
    x, states, source = torch.randn(3, 5, 24), torch.randn(3, 7, 24), ragged(7, 4, 1)
    expected = theirs.eval()(
        x,
        states,
        tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(5),
        tgt_is_causal=True,
        memory_key_padding_mask=~source.mask,
    )
    out = ours.eval()(x, masks.look_ahead(5), Source(states, masks.padding(source.mask)))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)


def small(kind: str, **choices):
    """A model of ours in which every tensor matters."""
    both = SMALL | {"init_std": 0.2, "max_length": 40} | choices
    if kind == "decoder":
        return Decoder(DecoderConfig(**both, end=2, residual="pre")).eval()
    return Seq2Seq(seq2seq_config(start=3, end=2, **both)).eval()


def asked(model, source: Batch, target: Batch):
    """What a model is given: a decoder alone has no source."""
    return target if isinstance(model, Decoder) else Pair(source, target)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["decoder", "seq2seq"])
@pytest.mark.parametrize("choices", [{}, {"residual": "pre"}, {"position": "sinusoidal", "embedding_scale": True}])
def test_a_later_token_never_changes_an_earlier_score(kind, choices):
    model = small(kind, **({} if kind == "decoder" else choices))
    source, target = ragged(7, 3), ragged(9, 9)
    before = model(asked(model, source, target)).logits
    for t in range(1, 9):
        ids = target.ids.clone()
        ids[:, t:] = torch.randint(6, 60, (2, 9 - t))
        after = model(asked(model, source, Batch(ids, target.mask))).logits
        torch.testing.assert_close(after[:, :t], before[:, :t], rtol=0, atol=1e-6)
        assert not torch.allclose(after[:, t:], before[:, t:], rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["decoder", "seq2seq"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_never_changes_a_real_score(kind, side):
    model = small(kind)
    source, target = ragged(7, 3), ragged(6, 2)
    if side == "left":
        source, target = left(source), left(target)
    together = model(asked(model, source, target)).logits
    for row in range(2):
        alone = [Batch(b.ids[row][b.mask[row]][None], b.mask[row][b.mask[row]][None]) for b in (source, target)]
        torch.testing.assert_close(
            together[row][target.mask[row]], model(asked(model, *alone)).logits[0], rtol=0, atol=1e-5
        )


def left(batch: Batch) -> Batch:
    """The same rows, padded on the left."""
    order = batch.mask.int().argsort(dim=1, stable=True)
    return Batch(batch.ids.gather(1, order), batch.mask.gather(1, order))


METHODS = {
    "none": None,
    "lora": LoRA(rank=2, targets=("q", "k", "v", "o", "up")),
    "adapter": Adapter(width=4),
    "prefix": Prefix(length=3, init_std=1.0),
    "prefix-mlp": Prefix(length=3, mlp=8),
    "p-tuning": PTuning(tokens=3, hidden=8),
    "prompt": Prompt(tokens=3),
    "prompt-peft": Prompt(tokens=3, layout="peft"),
    "bitfit": BitFit(),
}


@torch.no_grad()
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["decoder", "seq2seq"])
def test_what_is_kept_gives_what_all_of_it_gives(kind, method):
    model = small(kind)
    if METHODS[method] is not None:
        attach(model, "mine", METHODS[method])
        for addition in model.additions("mine").values():
            for parameter in addition.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
    source, given, more = ragged(7, 3, 5), ragged(4, 2, 1), torch.randint(6, 60, (6, 3))
    if kind == "seq2seq":
        given = Batch(torch.full((3, 1), 3), torch.ones(3, 1))
    memory, scores = model.begin(given if kind == "decoder" else source)
    compare_next(model, source, given, [], scores)
    written: list[torch.Tensor] = []
    for step, tokens in enumerate(more):
        if step == 3:  # go on without the second
            kept = torch.tensor([0, 2])
            memory.keep(kept)
            source, given = (Batch(b.ids[kept], b.mask[kept]) for b in (source, given))
            written = [before[kept] for before in written]
        tokens = tokens[: len(given)]
        scores = model.next(tokens, memory)
        written.append(tokens)
        compare_next(model, source, given, written, scores)


def compare_next(model, source: Batch, given: Batch, written: list[torch.Tensor], scores: torch.Tensor) -> None:
    """The scores of the next token equal those of the whole text at its last place."""
    for row in range(len(given)):
        ids = torch.cat([given.ids[row][given.mask[row]], *(tokens[row : row + 1] for tokens in written)])[None]
        real = source.ids[row][source.mask[row]][None]
        pair = asked(model, Batch(real, torch.ones_like(real)), Batch(ids, torch.ones_like(ids)))
        torch.testing.assert_close(scores[row], model(pair).logits[0, -1], rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["decoder", "seq2seq"])
@pytest.mark.parametrize("adapters", [None, ["pre", None, "low"]])
def test_hypotheses_that_change_places_keep_their_past(kind, adapters):
    model = small(kind)
    attach(model, "pre", Prefix(length=3, init_std=1.0))
    attach(model, "low", LoRA(rank=2, targets=("q", "k", "v")))
    for addition in model.additions("low").values():
        addition.B.normal_()
    activate(model, [])
    source, given = ragged(5, 3, 4), ragged(3, 2, 1)
    if kind == "seq2seq":
        given = Batch(torch.full((3, 1), 3), torch.ones(3, 1))
    memory, _ = model.begin(given if kind == "decoder" else source, adapters)
    memory.widen(2)
    texts: list[list[int]] = [[] for _ in range(6)]
    sources, names = [0, 1, 2], adapters or [None] * 3
    for step, places in enumerate([[0, 1, 2, 3, 4, 5], [1, 1, 3, 2, 4, 4], [1, 0, 2, 2, 5, 4], [0, 0, 3, 2]]):
        if step == 3:
            memory.keep(torch.tensor([0, 2]))
            sources, texts = [0, 2], texts[:2] + texts[4:]
        memory.reorder(torch.tensor(places))
        tokens = torch.randint(6, 60, (2 * len(sources),))
        texts = [[*texts[place], token] for place, token in zip(places, tokens.tolist(), strict=True)]
        scores = model.next(tokens, memory)
        for row, text in enumerate(texts):
            one = sources[row // 2]
            activate(model, [names[one]] if names[one] else [])
            ids = torch.cat([given.ids[one][given.mask[one]], torch.tensor(text)])[None]
            real = source.ids[one][source.mask[one]][None]
            pair = asked(model, Batch(real, torch.ones_like(real)), Batch(ids, torch.ones_like(ids)))
            torch.testing.assert_close(scores[row], model(pair).logits[0, -1], rtol=0, atol=1e-5)
            activate(model, [])


@torch.no_grad()
@pytest.mark.parametrize("choice", [("encoder",), ("decoder",), ("cross",), ("encoder", "cross")])
def test_a_prefix_goes_where_it_is_told(choice):
    model = small("seq2seq")
    attach(model, "mine", Prefix(length=3, attention=choice))
    found = {(a.address.stack, a.address.sublayer) for key, a in model.places().items() if a.site.get("mine")}
    named = {"encoder": ("encoder", "self"), "decoder": ("decoder", "self"), "cross": ("decoder", "cross")}
    assert found == {named[part] for part in choice}


@torch.no_grad()
def test_attention_of_every_layer_and_head():
    model = small("seq2seq")
    attach(model, "mine", Prompt(tokens=2))
    source, target = ragged(7, 3), ragged(5, 2)
    out = model(Pair(source, target), attention=True)
    plain = model(Pair(source, target))
    torch.testing.assert_close(out.logits, plain.logits, rtol=0, atol=1e-5)
    shapes = [(out.attention, 5, 2 + 5, target), (out.cross, 5, 2 + 7, target), (out.source, 7, 2 + 7, source)]
    for maps, rows, columns, batch in shapes:
        assert len(maps) == 3
        for weights in maps:
            assert weights.shape == (2, 4, rows, columns)
            torch.testing.assert_close(weights.sum(-1)[batch.mask[:, None].expand(-1, 4, -1)].min(), torch.tensor(1.0))
    assert all(weights[1, :, :, 2 + 3 :].eq(0).all() for weights in out.cross)


def test_texts_that_are_too_long_are_told():
    model = small("decoder", max_length=5)
    memory, _ = model.begin(ragged(4))
    model.next(torch.tensor([7]), memory)
    with pytest.raises(UserError, match="the model has 5 positions and they are used up"):
        model.next(torch.tensor([7]), memory)


def test_a_head_has_no_place_in_a_model_that_writes():
    with pytest.raises(UserError, match="Decoder writes text and has no place for a head"):
        attach(small("decoder"), "mine", LoRA(), head=Classifier(labels=2))


def test_an_embedding_of_another_width_needs_an_output_of_its_own():
    model = small("decoder", embedding_dim=16, tied=False)
    assert model(ragged(5, 3)).logits.shape == (2, 5, 60)
    with pytest.raises(UserError, match="embedding_dim is 16 and dim is 24: a tied output needs them equal"):
        small("decoder", embedding_dim=16)


def test_a_bias_keeps_its_digits_where_products_are_bf16():
    model = small("decoder", output_bias=True).eval()
    model.bias.fill_(1.001)  # which bf16 has not
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = torch.nn.functional.linear(torch.ones(2, 24), model.embedding.words.weight)
        scores = model.read(torch.ones(2, 24))
    assert (product.dtype, scores.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(scores, product.float() + 1.001, rtol=0, atol=0)
