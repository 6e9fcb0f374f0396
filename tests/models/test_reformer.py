"""The Reformer against `transformers` with the same rotations, its sites, what it writes, and mistakes."""

import json

import pytest
import torch
import transformers
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

from peftlab.data.batch import Batch
from peftlab.errors import UserError
from peftlab.generate.search import Greedy, write
from peftlab.layers.lsh import LSHAttention
from peftlab.models.heads import Classifier
from peftlab.models.own import make_model, save_own
from peftlab.models.pretrained import load_checkpoint, save_checkpoint
from peftlab.models.reformer import ReformerConfig, ReformerDecoder, ReformerEncoder
from peftlab.models.tagger import Tagger
from peftlab.models.writer import Marks
from peftlab.peft.adapter import Adapter
from peftlab.peft.attach import activate, attach, freeze
from peftlab.peft.baselines import BitFit
from peftlab.peft.lora import LoRA
from peftlab.peft.p_tuning import PTuning
from peftlab.peft.prefix import Prefix
from peftlab.peft.prompt import Prompt
from peftlab.tasks.language_model import LanguageModel
from peftlab.train.artefact import open_run
from peftlab.train.config import make_config
from peftlab.train.run import run

SMALL = {"vocab": 60, "dim": 24, "layers": 3, "heads": 2, "inner": 40, "chunk": 8, "local_chunk": 8, "max_length": 64}
THEIRS = {
    "vocab_size": 60,
    "hidden_size": 24,
    "num_attention_heads": 2,
    "attention_head_size": 8,
    "feed_forward_size": 40,
    "axial_pos_shape": (4, 16),
    "axial_pos_embds_dim": (8, 16),
    "max_position_embeddings": 64,
    "attn_layers": ["lsh", "local", "lsh"],
    "lsh_attn_chunk_length": 8,
    "local_attn_chunk_length": 8,
    "num_hashes": 2,
    "hash_seed": 3,
    "pad_token_id": 0,
}
CHOICES = {
    "both": {},
    "lsh": {"attn_layers": ["lsh", "lsh"], "num_hashes": 1},
    "rounds": {"attn_layers": ["lsh"], "num_hashes": 4, "num_buckets": 4},
    "factors": {"attn_layers": ["lsh", "lsh"], "num_buckets": [2, 4], "hidden_act": "gelu", "layer_norm_eps": 1e-5},
    "local": {"attn_layers": ["local", "local"]},
    "two lengths": {"local_attn_chunk_length": 4, "chunk_size_feed_forward": 8},
}
CLASSES = {"encoder": transformers.ReformerModel, "decoder": transformers.ReformerModelWithLMHead}


def reference(kind: str, choices: dict, folder):
    """A random model of `transformers`, saved."""
    model = CLASSES[kind](transformers.ReformerConfig(**THEIRS | choices, is_decoder=kind == "decoder")).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)  # norms and biases too, so that a mix-up shows
    model.save_pretrained(folder)
    return model


def build(kind=ReformerEncoder, **choices):
    model = kind(ReformerConfig(**SMALL | choices)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def batch(*lengths: int) -> Batch:
    T = max(lengths)
    return Batch(torch.randint(1, 60, (len(lengths), T)), torch.arange(T) < torch.tensor(lengths)[:, None])


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("choices", CHOICES)
@torch.no_grad()
def test_results_equal_those_of_transformers(kind, choices, tmp_path):
    """In double precision: where a token sees itself twice and nothing else, theirs is wrong in the third digit of
    single precision, for it takes the logarithm of two from 100,000.
    """
    model = reference(kind, CHOICES[choices], tmp_path).double()
    ours, _, _ = load_checkpoint(tmp_path)
    ours.double()
    for given in (batch(37, 21, 1), batch(64, 64), batch(5, 3), batch(8), batch(9, 8)):
        if choices == "two lengths" and given.ids.shape[1] % 8:
            continue
        for module in model.modules():
            if isinstance(module, LSHSelfAttention):  # which keeps the number that fitted the first text
                module.num_buckets = CHOICES[choices].get("num_buckets")
        out = ours(given)
        expected = model(input_ids=given.ids, attention_mask=given.mask.long(), use_cache=False)
        found, wanted = (out.hidden, expected.last_hidden_state) if kind == "encoder" else (out.logits, expected.logits)
        torch.testing.assert_close(found[given.mask], wanted[given.mask], rtol=0, atol=1e-5)


@torch.no_grad()
def test_they_are_equal_in_single_precision_too(tmp_path):
    model = reference("encoder", {}, tmp_path)
    ours, _, _ = load_checkpoint(tmp_path)
    given = batch(37, 21)
    expected = model(input_ids=given.ids, attention_mask=given.mask.long()).last_hidden_state
    torch.testing.assert_close(ours(given).hidden[given.mask], expected[given.mask], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("choices", ["both", "factors"])
def test_what_is_written_is_read_by_transformers(kind, choices, tmp_path):
    model = reference(kind, CHOICES[choices], tmp_path / "theirs")
    save_checkpoint(*load_checkpoint(tmp_path / "theirs"), tmp_path / "ours")
    again = CLASSES[kind].from_pretrained(tmp_path / "ours")
    expected = model.state_dict()
    expected.pop("lm_head.bias", None)  # which it has and does not use
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in expected.items())
    told = json.loads((tmp_path / "ours" / "config.json").read_text())
    for key, value in (THEIRS | CHOICES[choices]).items():
        assert told[key] == (list(value) if isinstance(value, tuple) else value), key
    assert told["architectures"] == [CLASSES[kind].__name__]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lsh_num_chunks_after": 1}, "lsh_num_chunks_after in .* is 1: this model has it only as 0"),
        ({"axial_pos_embds": False}, "axial_pos_embds in .* is False"),
        ({"attn_layers": ["lsh", "global", "lsh"]}, "unknown attention 'global'"),
        ({"num_buckets": "many"}, "num_buckets in .* is 'many': it must be a sensible list of int"),
        ({"axial_pos_shape": [2, 2]}, r"axes is \[2, 2\]: rows × columns must be at least the 64 positions"),
        ({"axial_pos_embds_dim": [8, 8]}, r"axis_dims is \[8, 8\]: the two widths must add up to dim = 24"),
    ],
)
def test_what_is_not_covered_is_told(change, message, tmp_path):
    reference("encoder", {}, tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(told | change))
    with pytest.raises(UserError, match=message):
        load_checkpoint(tmp_path)


def test_a_classifier_of_another_shape_is_not_written(tmp_path):
    reference("encoder", {}, tmp_path)
    model, family, settings = load_checkpoint(tmp_path)
    attach(model, "mine", LoRA(), head=Classifier(labels=2))
    with pytest.raises(UserError, match="a classifier on ReformerModel has another shape there"):
        save_checkpoint(model, family, settings, tmp_path / "ours", "mine")


@pytest.mark.parametrize("kind", [ReformerEncoder, ReformerDecoder])
def test_sites_are_inside_f_and_g_and_none_is_for_keys_and_values(kind):
    model = build(kind, attention=("lsh", "local"), layers=2)
    stack = "encoder" if kind is ReformerEncoder else "decoder"
    hashed = [f"self.{part}" for part in ("q", "v", "o", "out", "norm")]
    local = [f"local.{part}" for part in ("q", "k", "v", "o", "out", "norm")]
    ff = [f"ff.{part}" for part in ("up", "down", "out", "norm")]
    expected = ["embedding.tokens", *(f"0.{part}" for part in hashed + ff), *(f"1.{part}" for part in local + ff)]
    expected += ["norm", "head" if kind is ReformerEncoder else "vocabulary"]
    assert list(model.sites()) == [f"{stack}.{part}" for part in expected]
    kinds = {site.kind for site in model.sites().values()}
    assert kinds == {"tokens", "linear", "sublayer", "norm"} | ({"head"} if kind is ReformerEncoder else set())


METHODS = {
    "lora": LoRA(rank=2),
    "lora-all": LoRA(rank=2, targets=("q", "v", "o", "up", "down")),
    "adapter": Adapter(width=4),
    "pfeiffer": Adapter(width=4, placement="pfeiffer", train_norms=True),
    "prompt": Prompt(tokens=3),
    "prompt-peft": Prompt(tokens=3, layout="peft"),
    "p-tuning": PTuning(tokens=3, hidden=8),
    "bitfit": BitFit(),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [ReformerEncoder, ReformerDecoder])
def test_methods_attach_act_and_get_all_of_their_gradients(kind, method):
    model, given = build(kind, attention=("lsh", "local")), batch(21, 13)
    plain = model(given).hidden
    head = Classifier(labels=3) if kind is ReformerEncoder else None
    attach(model, "mine", METHODS[method], head=head)
    with torch.no_grad():
        for addition in model.additions("mine").values():
            for parameter in addition.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
    freeze(model)
    out = model.train()(given)
    assert out.logits.shape == ((2, 3) if head else (2, 21, 60))
    assert not torch.allclose(out.hidden, plain, atol=1e-3)
    (out.logits * torch.randn_like(out.logits)).sum().backward()
    for name, parameter in model.named_parameters():
        added = ".mine." in name
        assert (parameter.grad is not None) == added, name
        assert not added or parameter.grad.abs().max() > 0, name
    activate(model.eval(), [])
    assert torch.equal(model(given).hidden, plain)


@pytest.mark.parametrize("kind", [ReformerEncoder, ReformerDecoder])
def test_a_prefix_is_refused(kind):
    with pytest.raises(UserError, match="prefix needs a kv site: this model has"):
        attach(build(kind), "mine", Prefix())


def test_each_row_may_have_its_own_adapter():
    model, given = build(), batch(21, 21, 21)
    for name, method in (("low", METHODS["lora"]), ("neck", METHODS["adapter"])):
        attach(model, name, method)
        with torch.no_grad():
            for addition in model.additions(name).values():
                for parameter in addition.parameters():
                    parameter.add_(torch.randn_like(parameter) * 0.3)
    activate(model, [])
    mixed = model(given, adapters=["low", None, "neck"])
    for row, name in enumerate(["low", None, "neck"]):
        activate(model, [name] if name else [])
        torch.testing.assert_close(mixed.hidden[row], model(given).hidden[row], rtol=0, atol=1e-5)
    activate(model, [])
    mixed.hidden.square().sum().backward()
    assert all(addition.A.grad is not None for addition in model.additions("low").values())


def test_a_head_reads_both_streams():
    model, given = build(), batch(21, 13)
    attach(model, "mine", LoRA(), head=Tagger(labels=4))
    assert model(given).logits.shape == (2, 21, 4)
    assert model(given).hidden.shape == (2, 21, 48)


@torch.no_grad()
def test_evaluation_repeats_itself_and_training_draws_new_rotations():
    model, given = build(dropout=0.0, local_dropout=0.0, rounds=1), batch(40)
    first = model(given).hidden
    assert torch.equal(model(given).hidden, first)
    model.train()
    torch.manual_seed(1)
    second = model(given).hidden
    assert not torch.allclose(model(given).hidden, second, atol=1e-4)
    torch.manual_seed(1)
    assert torch.equal(model(given).hidden, second)


@torch.no_grad()
def test_the_number_of_rounds_can_be_another_in_evaluation():
    model, given = build(rounds=1), batch(40)
    few = model(given).hidden
    for module in model.modules():
        if isinstance(module, LSHAttention):
            module.rounds = 8
    more = build(rounds=8)
    more.load_state_dict(model.state_dict())
    assert torch.equal(model(given).hidden, more(given).hidden)
    assert not torch.allclose(model(given).hidden, few, atol=1e-4)


@torch.no_grad()
def test_token_by_token_equals_the_whole_text():
    model = build(ReformerDecoder, attention=("local", "lsh"), end=59)
    text = torch.randint(1, 59, (1, 30))
    memory, scores = model.begin(Batch(text[:, :5], torch.ones(1, 5)))
    for t in range(5, 30):
        whole = Batch(text[:, :t], torch.ones(1, t))
        torch.testing.assert_close(scores, model(whole).logits[:, -1], rtol=0, atol=1e-5)
        scores = model.next(text[:, t], memory)


@torch.no_grad()
def test_hypotheses_change_places_and_sources_end():
    model = build(ReformerDecoder)  # of one chunk, in which padding can't matter
    given = batch(4, 2, 3)
    memory, _ = model.begin(given)
    memory.widen(2)
    texts: list[list[int]] = [[] for _ in range(6)]
    sources = [0, 1, 2]
    for step, places in enumerate([[0, 1, 2, 3, 4, 5], [1, 1, 3, 2, 4, 4], [0, 0, 3, 2]]):
        if step == 2:
            memory.keep(torch.tensor([0, 2]))
            sources, texts = [0, 2], texts[:2] + texts[4:]
        memory.reorder(torch.tensor(places))
        tokens = torch.randint(1, 59, (2 * len(sources),))
        texts = [[*texts[place], token] for place, token in zip(places, tokens.tolist(), strict=True)]
        scores = model.next(tokens, memory)
        for row, text in enumerate(texts):
            one = sources[row // 2]
            ids = torch.cat([given.ids[one][given.mask[one]], torch.tensor(text)])[None]
            expected = model(Batch(ids, torch.ones_like(ids))).logits[0, -1]
            torch.testing.assert_close(scores[row], expected, rtol=0, atol=1e-5)


def test_a_language_model_of_one_s_own_learns_is_kept_and_writes(tmp_path):
    """Letters that go round, over several chunks."""
    settings = {"kind": "reformer", "dim": 32, "layers": 2, "heads": 2, "inner": 64, "chunk": 8, "rounds": 2}
    settings |= {"attention": ["local", "lsh"], "local_chunk": 8, "max_length": 48, "dropout": 0.0}
    model = make_model(settings, 12, Marks(None, 11, 0)).train()
    steps = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(40):
        ids = 1 + (torch.randint(10, (8, 1)) + torch.arange(34)) % 10
        loss = LanguageModel().loss(model, Batch(ids[:, :-1], torch.ones(8, 33)), ids[:, 1:])
        steps.zero_grad()
        loss.backward()
        steps.step()
    assert loss < 0.2
    save_own(model, tmp_path)
    again, _, _ = load_checkpoint(tmp_path)
    assert again.config == model.config
    start = Batch(torch.tensor([[3, 4, 5], [9, 10, 1]]), torch.ones(2, 3))
    written = [found[0].tokens for found in write(again, start, Greedy(), 12)]
    assert written == [[1 + (5 + i) % 10 for i in range(12)], [1 + (1 + i) % 10 for i in range(12)]]


def test_a_run_trains_one_from_its_configuration(tmp_path):
    (tmp_path / "letters.txt").write_text("a b c d e f g h i j\n" * 400)
    model = {key: value for key, value in SMALL.items() if key != "vocab"} | {"kind": "reformer", "inner_chunk": 16}
    asked = {"name": str(tmp_path / "letters.txt"), "vocab": 300, "length": 40, "loss_chunk": 32}
    train = {"steps": 4, "batch": 4, "threads": 1, "precision": "fp32", "evaluations": 1}
    result = run(make_config({"model": model, "language_model": asked, "train": train}), tmp_path / "run")
    assert 1 < result["perplexity"] < 400
    assert isinstance(open_run(tmp_path / "run")[0].model, ReformerDecoder)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"attention": ["lhs"]}, "unknown attention 'lhs': did you mean 'lsh'"),
        ({"attention": []}, "unknown attention ''"),
        ({"buckets": 5}, r"buckets is \[5\]: each number must be even"),
        ({"heads": 5}, "5 heads do not divide a width of 24: give head_dim"),
        ({"rounds": 0}, "rounds is 0: it must be a whole number of at least 1"),
        ({"norm": "batch"}, "unknown norm 'batch'"),
        ({"residual": "post"}, "unknown residual 'post'"),
        ({"inner": 0}, "inner is 0"),
        ({"axes": [4, 4]}, r"axes is \[4, 4\]: rows × columns must be at least the 64 positions"),
    ],
)
def test_a_choice_that_does_not_exist_is_told(choice, message):
    with pytest.raises(UserError, match=message):
        build(**choice)


def test_texts_that_are_too_long_and_attention_that_is_not_there_are_told():
    with pytest.raises(UserError, match="65 tokens is longer than the model's 64 positions"):
        build()(batch(65))
    with pytest.raises(UserError, match="a Reformer has no attention to show"):
        build()(batch(5), attention=True)
