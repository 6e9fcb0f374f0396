"""What heads look at: guesses against a loop over words, a head that always points at the head, the fixed distance."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from experiments import heads
from peftlab.data.conllu import Sentence, Tree
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.models.encoder import Encoder, EncoderConfig
from peftlab.models.model import Output
from peftlab.tasks.parse import encode, relation_names

TREES = {
    "the dog barks": Tree([2, 3, 0], ["det", "nsubj", "root"]),
    "the cats see the barking dogs": Tree([2, 3, 0, 6, 6, 3], ["det", "nsubj", "root", "det", "amod", "obj"]),
    "see dogs": Tree([0, 1], ["root", "obj"]),
    "cats bark at barking dogs": Tree([2, 0, 5, 5, 2], ["nsubj", "root", "case", "amod", "obl"]),
    "bark": Tree([0], ["root"]),
}
SENTENCES = [Sentence.of(text.split()).with_tree(tree) for text, tree in TREES.items()]
NAMES = relation_names(TREES.values())
LAYERS, HEADS = 2, 3


class Pointing(Encoder):
    """Layer 2, head 1 looks from each word at its head, and layer 1, head 3 from each head at its dependents."""

    rows: dict[tuple[int, ...], tuple[list[list[int]], list[int]]]
    """the tokens of each sentence's words and their heads, by its tokens"""

    def forward(self, batch, attention=False, **_):
        maps = super().forward(batch, attention=True).attention
        maps = [weights.clone() for weights in maps]
        for row, (ids, mask) in enumerate(zip(batch.ids, batch.mask, strict=True)):
            tokens, above = self.rows[tuple(ids[mask].tolist())]
            for layer, head in ((1, 0), (0, 2)):
                maps[layer][row, head] = 0.0
            for word, number in enumerate(above):
                # most goes to the marks and to the word itself, which do not count
                maps[1][row, 0, tokens[word], 0] = 0.5
                maps[1][row, 0, tokens[word], tokens[word][0]] = 0.3
                if number:
                    maps[1][row, 0, tokens[word], tokens[number - 1][-1]] = 0.2
                    maps[0][row, 2, tokens[number - 1][0], tokens[word][-1]] = 0.2
        return Output(torch.zeros(len(batch), batch.ids.shape[1], 1), attention=tuple(maps))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train_on(TREES, vocab_size=45)  # so few that most words are split


@pytest.fixture
def base(tokenizer):
    config = EncoderConfig(
        vocab=tokenizer.vocab_size, dim=24, layers=LAYERS, heads=HEADS, inner=32, max_length=64, init_std=0.3
    )
    model = Pointing(config).eval()
    rows = encode(tokenizer, SENTENCES, list(TREES.values()), NAMES, 64)
    spans = [
        [list(range(*ends)) for ends in zip(firsts, [*firsts[1:], len(ids) - 1], strict=True)]
        for ids, firsts in zip(rows.words.ids, rows.words.firsts, strict=True)
    ]
    assert any(len(span) > 1 for row in spans for span in row)
    above = [tree.heads for tree in TREES.values()]
    model.rows = {tuple(ids): each for ids, *each in zip(rows.words.ids, spans, above, strict=True)}
    return SimpleNamespace(name="small", model=model, tokenizer=tokenizer, room=64)


def guessed(weights: torch.Tensor, spans: list[list[int]]) -> tuple[list[int], list[int]]:
    """By loops, of one head [T, T]: how far the other word is that each looks at most, and that looks at it most."""
    n = len(spans)
    among = [
        [sum(float(weights[a, b]) for a in spans[i] for b in spans[j]) / len(spans[i]) for j in range(n)]
        for i in range(n)
    ]
    others = [[j for j in range(n) if j != i] for i in range(n)]
    looks = [max(others[i], key=lambda j, i=i: among[i][j]) - i for i in range(n)]
    seen = [max(others[i], key=lambda j, i=i: among[j][i]) - i for i in range(n)]
    return looks, seen


def test_guesses_are_those_of_a_loop_over_the_words_of_each_sentence_alone(base, tokenizer):
    rows = encode(tokenizer, SENTENCES, list(TREES.values()), NAMES, 64)
    order = [3, 0, 1, 2]
    with torch.no_grad():
        found = heads.guess(base.model, *rows.batch(order), behind=1)
        for row, ours in zip(order, found, strict=True):
            spans, _ = base.model.rows[tuple(rows.words.ids[row])]
            maps = base.model(rows.batch([row])[0], attention=True).attention
            for layer in range(LAYERS):
                for head in range(HEADS):
                    if (layer, head) not in ((1, 0), (0, 2)):  # which have ties
                        looks, seen = guessed(maps[layer][0, head], spans)
                        assert ours[0, layer, head].tolist() == looks
                        assert ours[1, layer, head].tolist() == seen


def test_a_head_that_points_at_the_head_is_found(base, monkeypatch):
    monkeypatch.setattr(heads, "LEAST", 1)
    part = heads.follow(base, SENTENCES, NAMES)
    assert part.distances.tolist() == [1, 1, 1, 1, 2, 1, -3, -1, 1, 2, 1, -3]
    words = len(part.distances)
    shares = heads.shares(part, [], torch.tensor([1]))
    assert (shares.heads == 1.0).nonzero().tolist() == [[0, 1, 0, 0], [1, 0, 2, 0]]
    every, *relations = heads.compare(NAMES, part, part)["relations"]
    assert (every["relation"], every["words"], every["right"]) == ("all", words, 1.0)
    assert (every["layer"], every["head"], every["direction"]) == (2, 1, "dependent → head")
    assert all(entry["right"] == 1.0 for entry in relations)
    assert sum(entry["words"] for entry in relations) == words


def random_part(seed: int, words: int = 400) -> heads.Part:
    """Heads that guess a third rightly."""
    draw = torch.Generator().manual_seed(seed)
    relations = torch.randint(0, 3, (words,), generator=draw)
    distances = torch.randint(1, 5, (words,), generator=draw) * (relations - 1).sign().add(relations == 1)
    guesses = torch.randint(1, 4, (2, LAYERS, HEADS, words), generator=draw) * distances.sign()
    return heads.Part(relations, distances, guesses)


def test_heads_and_distances_are_chosen_on_one_part_and_told_of_the_other():
    validation, test = random_part(1), random_part(2)
    found = heads.compare(("a", "b", "c"), validation, test)
    assert {entry["relation"] for entry in found["relations"]} == {"all", "a", "b", "c"}
    for entry in found["relations"]:
        here, there = (
            [i for i, r in enumerate(part.relations.tolist()) if entry["relation"] in ("all", "abc"[r])]
            for part in (test, validation)
        )
        [(usual, _)] = Counter(validation.distances[there].tolist()).most_common(1)
        assert entry["distance"] == usual
        assert entry["words"] == len(here)
        assert entry["baseline"] == pytest.approx(test.distances[here].tolist().count(usual) / len(here))
        right = (validation.guesses == validation.distances)[..., there].float().mean(-1)
        place = (heads.DIRECTIONS.index(entry["direction"]), entry["layer"] - 1, entry["head"] - 1)
        assert right[place] == right.max()
        assert entry["right"] == pytest.approx((test.guesses == test.distances)[place][here].float().mean().item())
    gains = [heads.gain(entry) for row in found["heads"] for entry in row]
    assert len(gains) == LAYERS * HEADS
    lines = heads.table(found["relations"]).splitlines()
    assert len(lines) == 2 + 4
    drawn = heads.chart(found["heads"], "a < b")
    assert drawn.count('class="cell"') == LAYERS * HEADS
    assert "a &lt; b" in drawn


def test_what_cannot_be_measured_is_told(base):
    part = random_part(1, words=60)
    with pytest.raises(UserError, match="no relation has 50 words in each part"):
        heads.compare(("a", "b", "c"), part, part)
    writer = SimpleNamespace(name="mine", model=torch.nn.Identity())
    with pytest.raises(UserError, match="mine does not read a text from both sides"):
        heads.follow(writer, SENTENCES, NAMES)
