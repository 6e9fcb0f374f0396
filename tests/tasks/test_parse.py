"""Parsing: the loss against single words, trees through the loop, UAS and LAS by hand and from written files."""

from pathlib import Path

import numpy as np
import pytest
import torch

import peftlab
from peftlab.data.conllu import Sentence, Tree, read_conllu, write_conllu
from peftlab.data.tokenizer import Tokenizer
from peftlab.models.encoder import Encoder, EncoderConfig
from peftlab.models.parser import Parser, parser_of
from peftlab.tasks.parse import Encoded, Parse, completed, encode, relation_names, scores, spread, unknown_tree
from peftlab.tasks.tree import best_tree
from peftlab.train.asking import ask
from peftlab.train.loop import backward

TREES = {
    "the dog barks": Tree([2, 3, 0], ["det", "nsubj", "root"]),
    "the cats see the barking dogs": Tree([2, 3, 0, 6, 6, 3], ["det", "nsubj", "root", "det", "amod", "obj"]),
    "see dogs": Tree([0, 1], ["root", "obj"]),
    "cats bark at barking dogs": Tree([2, 0, 5, 5, 2], ["nsubj", "root", "case", "amod", "obl:at"]),
    "bark": Tree([0], ["root"]),
}
SENTENCES = [Sentence.of(text.split()) for text in TREES]
GOLD = list(TREES.values())
NAMES = ("amod", "case", "det", "nsubj", "obj", "obl:at", "root")
WORDS = 17


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train_on(TREES, vocab_size=45)


@pytest.fixture(scope="module")
def rows(tokenizer) -> Encoded:
    return encode(tokenizer, SENTENCES, GOLD, NAMES, 64)


def small(tokenizer: Tokenizer, method=None, shake: float = 0.3) -> Encoder:
    config = EncoderConfig(vocab=tokenizer.vocab_size, dim=32, layers=1, heads=2, inner=32, max_length=64, dropout=0.0)
    model = Encoder(config)
    head = Parser(labels=NAMES, arc=16, label=8, dropout=0.0)
    peftlab.attach(model, "mine", method or peftlab.Full(), head=head)
    with torch.no_grad():
        for parameter in parser_of(model).parameters():
            parameter.add_(torch.randn_like(parameter) * shake)
    return model


def alone(model: Encoder, rows: Encoded, row: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The arcs [n, 1 + n] of one sentence without padding, and its relations with every head [n, 1 + n, L]."""
    states, parser = model(rows.batch([row])[0]).scores, parser_of(model)
    words = parser.view(states[:, [0, *[1 + first for first in rows.words.firsts[row]]]])
    n = words.shape[1] - 1
    every = torch.ones(1, n, dtype=torch.bool)
    labels = [parser.score_labels(words, torch.full((1, n), head), every) for head in range(n + 1)]
    return parser.score_arcs(words)[0], torch.stack(labels, 1)


METHODS = {
    "lora": peftlab.LoRA(rank=2),
    "prompt": peftlab.Prompt(tokens=3, init="random"),
    "prompt-peft": peftlab.Prompt(tokens=3, init="random", layout="peft"),
    "prefix": peftlab.Prefix(length=3),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_loss_and_trees_are_those_of_each_sentence_alone(tokenizer, rows, method):
    assert relation_names(GOLD) == NAMES
    model, task, total = small(tokenizer, method).eval(), Parse(NAMES), 0.0
    judged = task.judge(model, *rows.batch([3, 0, 4, 1, 2]))
    for row, tree in zip([3, 0, 4, 1, 2], judged, strict=True):
        arcs, labels = alone(model, rows, row)
        for word, (head, relation) in enumerate(zip(*GOLD[row], strict=True)):
            total -= arcs[word].log_softmax(0)[head].item()
            total -= labels[word, head].log_softmax(0)[NAMES.index(relation)].item()
        assert tree.heads == best_tree(arcs.detach().numpy())
        for word, (head, relation) in enumerate(zip(*tree, strict=True)):
            if head == 0:
                assert relation == "root"
            else:
                assert relation == NAMES[int(labels[word, head, :-1].argmax())]  # root is the last name
    loss = task.loss(model, *rows.batch([3, 0, 4, 1, 2])).item()
    assert loss == pytest.approx(total / WORDS, rel=1e-4)
    assert backward(model, task, rows, [0, 1, 2, 3, 4], 3, "fp32") == pytest.approx(loss, rel=1e-4)


def test_every_parameter_of_the_parser_learns(tokenizer, rows):
    model = small(tokenizer)
    Parse(NAMES).loss(model, *rows.batch(range(5))).backward()
    assert [name for name, p in parser_of(model).named_parameters() if p.grad is None or not p.grad.any()] == []


def test_a_parser_learns_and_is_asked_through_the_loop(tokenizer, rows, tmp_path):
    model, task = small(tokenizer, shake=0.0), Parse(NAMES)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        task.loss(model, *rows.batch(range(5))).backward()
        optimizer.step()
    judged = ask(model, rows, task.judge, "fp32")
    assert judged == GOLD
    assert task.score(judged, rows) == 1.0
    blind = encode(tokenizer, SENTENCES, [unknown_tree(len(s.words)) for s in SENTENCES], NAMES, 64)
    assert ask(model, blind, task.judge, "fp32") == GOLD, "a tree is found without one to look at"
    write_conllu(tmp_path / "a.conllu", [s.with_tree(tree) for s, tree in zip(SENTENCES, judged, strict=True)])
    assert [sentence.tree() for sentence in read_conllu(tmp_path / "a.conllu")] == GOLD


def test_what_was_cut_off_is_wrong_teaches_nothing_and_hangs_on_the_root(tokenizer, rows):
    firsts = rows.words.firsts[3]
    cut = encode(tokenizer, SENTENCES[3:4], GOLD[3:4], NAMES, firsts[3] + 1)  # three of five words are left
    assert (cut.words.lost, cut.weight([0])) == (2, 3)
    assert (cut.heads, cut.relations) == ([[2, 0, -1]], [[3, 6, -1]]), "the third word's head is lost"
    model, task = small(tokenizer).eval(), Parse(NAMES)
    arcs, labels = alone(model, cut, 0)
    terms = [-arcs[i].log_softmax(0)[h] - labels[i, h].log_softmax(0)[r] for i, h, r in [(0, 2, 3), (1, 0, 6)]]
    assert task.loss(model, *cut.batch([0])).item() == pytest.approx(sum(terms).item() / 3, rel=1e-4)
    (tree,) = task.judge(model, *cut.batch([0]))
    assert len(tree.heads) == 3
    assert scores([Tree([2, 0, 2], ["nsubj", "root", "x"])], GOLD[3:4]) == {"uas": 2 / 5, "las": 2 / 5}
    whole = completed(Tree([2, 0, 2], ["nsubj", "root", "x"]), 5)
    assert whole == Tree([2, 0, 2, 2, 2], ["nsubj", "root", "x", "dep", "dep"])
    assert SENTENCES[3].with_tree(whole).tree() == whole


def test_relations_that_training_has_not_seen_are_counted_and_teach_the_arc_alone(tokenizer, rows):
    names = tuple(name for name in NAMES if name != "det")
    unseen = encode(tokenizer, SENTENCES[:1], GOLD[:1], names, 64)
    assert (unseen.unseen, unseen.heads, unseen.relations[0][0]) == (1, [[2, 3, 0]], -1)
    assert rows.unseen == 0


def test_words_of_any_place_are_spread_over_their_rows():
    x, real = torch.randn(3, 6, 2), torch.tensor([[0, 1, 0, 1, 1, 0], [0] * 5 + [1], [1] * 6]).bool()
    found = spread(x[real], real.sum(1), 7)
    assert found.shape == (3, 6, 2)
    for b in range(3):
        n = int(real[b].sum())
        assert torch.equal(found[b, :n], x[b, real[b]])
        assert (found[b, n:] == 7).all()


# The scores


def test_uas_and_las_by_hand():
    gold = [Tree([2, 0, 2, 2], ["nsubj:pass", "root", "obj", "punct"]), Tree([0], ["root"])]
    ours = [Tree([2, 0, 2, 3], ["nsubj", "root", "iobj", "punct"]), Tree([0], ["root"])]
    # of five words, the full stop included, one has the wrong head; another has the wrong relation, a subtype is none
    assert scores(ours, gold) == {"uas": 4 / 5, "las": 3 / 5}
    assert scores(gold, gold) == {"uas": 1.0, "las": 1.0}


def counted(ours: Path, gold: Path) -> tuple[float, float]:
    """UAS and LAS from the lines of two files, with the rule of the shared task's script for relations."""
    lines = [[row.split("\t") for row in path.read_text().splitlines() if row[:1].isdigit()] for path in (ours, gold)]
    pairs = [(a, b) for a, b in zip(*lines, strict=True) if a[0].isdigit()]
    heads = [a[6] == b[6] for a, b in pairs]
    both = [a[6] == b[6] and a[7].split(":")[0] == b[7].split(":")[0] for a, b in pairs]
    return sum(heads) / len(pairs), sum(both) / len(pairs)


def test_scores_of_a_real_treebank(shared, tmp_path):
    path = shared / "data" / "ud-english-ewt" / "en_ewt-ud-dev.conllu.gz"
    if not path.is_file():
        pytest.skip("UD English EWT is not in the shared data")
    sentences = read_conllu(path)[:300]
    gold = [sentence.tree() for sentence in sentences]
    random, relations = np.random.default_rng(0), relation_names(gold)
    ours = []
    for tree in gold:
        n = len(tree.heads)
        arcs = random.standard_normal((n, n + 1))
        arcs[np.arange(n), tree.heads] += 3.0
        kept = random.random(n) < 0.8
        names = [a if keep else str(random.choice(relations)) for a, keep in zip(tree.relations, kept, strict=True)]
        ours.append(Tree(best_tree(arcs), [name.split(":")[0] for name in names]))
    write_conllu(tmp_path / "gold.conllu", sentences)
    write_conllu(tmp_path / "ours.conllu", [s.with_tree(t) for s, t in zip(sentences, ours, strict=True)])
    found = scores(ours, gold)
    assert (found["uas"], found["las"]) == counted(tmp_path / "ours.conllu", tmp_path / "gold.conllu")
    assert 0.4 < found["las"] < found["uas"] < 0.99
