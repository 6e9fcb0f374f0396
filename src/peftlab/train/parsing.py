"""Training a parser: an adapter on a base, and a head that gives each word its head and its relation to it.

    [parse]
    name = "ud-english-ewt"      # or mine.conllu, a folder with train.conllu, dev.conllu, test.conllu

peftlab train parse.toml --out runs/parse && peftlab predict runs/parse "The dog barks ." --html tree.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peftlab.data.conllu import Sentence, Tree, read_conllu
from peftlab.data.tagged import kind_of
from peftlab.data.tokenizer import Tokenizer
from peftlab.errors import UserError
from peftlab.models.parser import Parser
from peftlab.tasks.parse import Encoded, Parse, encode, relation_names, scores, tally, universal
from peftlab.tasks.task import Tally
from peftlab.train.config import Config
from peftlab.train.on_words import OnWords


class Parsing(OnWords[Sentence]):
    """Trees over words."""

    metric = "las"
    nothing: Any = Tree([], [])

    def __init__(self, config: Config) -> None:
        assert config.parse is not None
        super().__init__(config, config.parse, read_trees)
        self.settings = config.parse
        self.names = relation_names(sentence.tree() for sentence in self.data.train)

    def content(self, sentence: Sentence) -> list[Any]:
        return [sentence.words, *sentence.tree()]

    def answers(self, sentence: Sentence) -> list[str]:
        return sentence.tree().relations

    def head(self) -> Parser:
        settings = self.settings
        return Parser(self.names, arc=settings.arc, label=settings.label, dropout=settings.dropout)

    def task(self) -> Parse:
        return Parse(self.names)

    def encode(self, tokenizer: Tokenizer, part: list[Sentence], max_length: int) -> Encoded:
        return encode(tokenizer, part, [sentence.tree() for sentence in part], self.names, max_length)

    def scores(self, answers: Sequence[Any], part: list[Sentence]) -> dict[str, float]:
        return scores([Tree(*found) for found in answers], [sentence.tree() for sentence in part])

    def tally(self, answers: Sequence[Any], part: list[Sentence]) -> list[Tally]:
        return tally([Tree(*found) for found in answers], [sentence.tree() for sentence in part], labelled=True)

    def majority(self, part: list[Sentence]) -> float:
        """Every word hangs by one relation on the word at one distance, such as on the next."""
        counts: Counter[tuple[int, str]] = Counter()
        for sentence in part:
            for word, (head, relation) in enumerate(zip(*sentence.tree(), strict=True), 1):
                counts[head - word if head else 0, universal(relation)] += 1
        return max(counts.values()) / counts.total()


def read_trees(path: Path) -> list[Sentence]:
    """The sentences of a CoNLL-U file, each found to be a tree."""
    if kind_of(path) != ".conllu":
        raise UserError(f"{path} has no trees: its name must end in .conllu, or in .gz or .bz2 after it")
    sentences = read_conllu(path)
    for sentence in sentences:
        sentence.tree()
    return sentences
