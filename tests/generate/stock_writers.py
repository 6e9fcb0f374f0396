"""Writers for the tests of searches: stock `transformers` models without a cache, and a table of random scores."""

import torch
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
)

from peftlab.data.batch import Batch
from peftlab.models.writer import Marks, Memory, Writer

V, MAX_NEW = 60, 12
START, END, PAD = 2, 3, 1


class Rows(Memory):
    """Tensors with a row a hypothesis: the tokens so far, and the source or the mask with them."""

    def __init__(self, *tensors):
        self.tensors, self.hypotheses = list(tensors), 1
        self.calls = []

    def widen(self, hypotheses):
        self.tensors = [t.repeat_interleave(hypotheses, 0) for t in self.tensors]
        self.hypotheses = hypotheses

    def reorder(self, rows):
        self.calls.append("reorder")
        own = torch.arange(len(self.tensors[0]))
        assert not torch.equal(rows, own), "nothing to do"
        assert torch.equal(rows // self.hypotheses, own // self.hypotheses), "a row of another source"
        self.tensors = [t[rows] for t in self.tensors]

    def keep(self, sources):
        self.calls.append("keep")
        assert torch.equal(sources, sources.unique())
        assert 0 < len(sources) < len(self.tensors[0]) // self.hypotheses, "nothing to do"
        self.tensors = [t.unflatten(0, (-1, self.hypotheses))[sources].flatten(0, 1) for t in self.tensors]


class Recording(Writer):
    """Remembers what it was asked with, how many rows each step had, and its memory."""

    max_length = None

    def begin(self, batch, adapters=None, room=0):
        self.asked, self.rows = (adapters, room), [len(batch)]
        self.memory = self.remember(batch)
        return self.memory, self.score(self.memory)

    def next(self, tokens, memory):
        self.rows.append(len(tokens))
        memory.tensors = self.write(tokens[:, None], *memory.tensors)
        return self.score(memory)


class StockPair(Recording):
    """A stock encoder–decoder that runs over everything at each token."""

    marks = Marks(START, END, PAD)

    def __init__(self, stock):
        super().__init__()
        self.stock = stock
        self.eval()

    def remember(self, batch):
        return Rows(torch.full((len(batch), 1), START), batch.ids, batch.mask)

    def write(self, tokens, ids, source, mask):
        return [torch.cat([ids, tokens], 1), source, mask]

    def score(self, memory):
        ids, source, mask = memory.tensors
        return self.stock(input_ids=source, attention_mask=mask.long(), decoder_input_ids=ids).logits[:, -1]


class StockText(Recording):
    """A stock language model that does."""

    marks = Marks(None, END, END)

    def __init__(self, stock):
        super().__init__()
        self.stock = stock
        self.eval()

    def remember(self, batch):
        return Rows(batch.ids, batch.mask)

    def write(self, tokens, ids, mask):
        return [torch.cat([ids, tokens], 1), torch.cat([mask, torch.ones_like(tokens, dtype=torch.bool)], 1)]

    def score(self, memory):
        ids, mask = memory.tensors
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        return self.stock(input_ids=ids, attention_mask=mask.long(), position_ids=positions).logits[:, -1]


class Table(Recording):
    """log p of a token depends on the one before it, on its place, and on the source's number, its only token."""

    marks = Marks(START, END, PAD)

    def __init__(self, vocab, sources=1, end=0.0):
        super().__init__()
        self.scores = nn.Buffer(torch.randn(sources, 20, vocab, vocab) * 2)
        self.scores[..., END] += end
        self.eval()

    def remember(self, batch):
        return Rows(torch.full((len(batch), 1), START), batch.ids)

    def write(self, tokens, ids, source):
        return [torch.cat([ids, tokens], 1), source]

    def score(self, memory):
        ids, source = memory.tensors
        return self.scores[source[:, 0], ids.shape[1] - 1, ids[:, -1]]


def sources(n):
    """The sources of a `Table`."""
    return Batch(torch.arange(n)[:, None], torch.ones(n, 1))


FAMILIES = ("bart", "marian", "gpt2")


def stock(family, seed, bias):
    """A random model of a family in double precision, so that near ties are none, with a bias for the end mark."""
    torch.manual_seed(seed)
    marks = {"vocab_size": V, "pad_token_id": PAD, "eos_token_id": END, "init_std": 0.3}
    both = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    both |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_start_token_id": START}
    if family == "bart":
        model = BartForConditionalGeneration(BartConfig(**marks, **both, max_position_embeddings=64))
    elif family == "marian":
        model = MarianMTModel(MarianConfig(**marks, **both, max_position_embeddings=64))
    else:
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.3}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=V, eos_token_id=END, **sizes, tie_word_embeddings=False))
        model.lm_head = nn.Linear(16, V)
    with torch.no_grad():
        (model.lm_head.bias if family == "gpt2" else model.final_logits_bias[0])[END] = bias
    # in the place of the family's own, which for BART forces marks; that padding is not written is Marian's default
    model.generation_config = GenerationConfig(eos_token_id=END, pad_token_id=END if family == "gpt2" else PAD)
    if family != "gpt2":
        model.generation_config.update(decoder_start_token_id=START, bad_words_ids=[[PAD]])
    return model.double().eval()


def writer(model):
    return (StockPair if model.config.is_encoder_decoder else StockText)(model)


def ragged(family, rows, seed):
    """Rows of 2 to 8 tokens; a language model's have their padding before them."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 9, (rows, 1), generator=generator)
    mask = torch.arange(8) < lengths
    ids = torch.randint(4, V, (rows, 8), generator=generator).masked_fill(~mask, PAD)
    return Batch(ids.flip(1), mask.flip(1)) if family == "gpt2" else Batch(ids, mask)


def generate(model, batch, **choices):
    """What `transformers` writes: tokens without marks, whether it ended, and the score if there is one."""
    out = model.generate(
        input_ids=batch.ids,
        attention_mask=batch.mask.long(),
        max_new_tokens=MAX_NEW,
        return_dict_in_generate=True,
        output_scores=True,
        **choices,
    )
    given = 1 if model.config.is_encoder_decoder else batch.ids.shape[1]
    scores = out.get("sequences_scores")
    found = []
    for i, row in enumerate(out.sequences[:, given:].tolist()):
        ended = END in row
        found.append((row[: row.index(END)] if ended else row, ended, None if scores is None else float(scores[i])))
    n = len(found) // len(batch)
    return [found[i * n : (i + 1) * n] for i in range(len(batch))]
