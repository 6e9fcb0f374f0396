"""Text to token ids and back: a thin wrapper around the `tokenizers` library.

WordPiece as in BERT (arXiv 1810.04805) and byte-level BPE as in GPT-2/RoBERTa (arXiv 1508.07909; Radford et al. 2019)
load from their older files or are trained; any `tokenizer.json` loads.

    tokenizer = Tokenizer.load(folder)
    batch = tokenizer.encode([("is it good?", "a film to see twice"), ("and this?", "no")])
    Tokenizer.of_bytes().ids("é")                              # two: nothing was learned, a token is a byte

Shapes: B rows, T tokens in the longest row. Marks are special tokens: [CLS], [SEP], <s>, …
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor

from peftlab.data.batch import Batch
from peftlab.data.files import read_object, write_text
from peftlab.errors import UserError, unknown

Name = str | os.PathLike[str]
Texts = str | Sequence[str | tuple[str, str]]

MARKS = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>", "<|endoftext|>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "bos": ("<s>", "<|endoftext|>"),
    "eos": ("</s>", "<|endoftext|>"),
}
"""usual spellings of each mark, for a folder whose configuration does not name it"""

HALVED = "holds half of a surrogate pair, which no text has"

KINDS = {"wordpiece": "[PAD] [UNK] [CLS] [SEP] [MASK]", "bpe": "<s> <pad> </s> <unk> <mask>"}
"""what can be trained, and the marks that get its first ids"""


class Tokenizer:
    """A vocabulary with its rules; nothing in it changes once made, so threads may share one."""

    def __init__(self, backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
        backend.no_padding()  # a tokenizer.json may carry padding of its own (all-MiniLM: 128); only `encode` decides
        backend.no_truncation()
        # what is spelled as a mark is then text like any other; `transformers` knows the setting, too
        self.splits_marks = backend.encode_special_tokens = bool(config.get("split_special_tokens", False))
        marks = _marks(backend, config)
        known = {token.content for token in backend.get_added_tokens_decoder().values()}
        backend.add_special_tokens([mark for mark, _ in marks.values() if mark not in known])
        ids = {role: i for role, (_, i) in marks.items()}
        self.pad, self.unk, self.mask = ids.get("pad"), ids.get("unk"), ids.get("mask")
        self.cls, self.sep, self.bos, self.eos = ids.get("cls"), ids.get("sep"), ids.get("bos"), ids.get("eos")
        self.vocab_size = max(backend.get_vocab().values(), default=-1) + 1
        # under these two the library still numbers the second text of a pair 1, though no model of theirs has segments
        plain = isinstance(backend.post_processor, processors.ByteLevel | processors.RobertaProcessing | None)
        inputs = ["input_ids", "attention_mask"] if plain else ["input_ids", "token_type_ids", "attention_mask"]
        self._config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs}
        self._config |= {f"{role}_token": mark for role, (mark, _) in marks.items()} | dict(config)
        self._segments = "token_type_ids" in self._config["model_input_names"]
        self._backend = backend

    @classmethod
    def load(cls, folder: Name) -> "Tokenizer":
        """The tokenizer of a model's folder: `tokenizer.json`, else `vocab.txt`, else `vocab.json`+`merges.txt`."""
        folder = Path(folder)
        path = next(
            (p for p in map(folder.joinpath, ("tokenizer.json", "vocab.txt", "vocab.json")) if p.is_file()), None
        )
        if path is None:
            raise UserError(f"{folder} has none of tokenizer.json, vocab.txt, vocab.json: one is needed")
        marks = _read_object(folder / "special_tokens_map.json")
        config = {key: _text(mark) for key, mark in marks.items() if key.removesuffix("_token") in MARKS}
        config |= _read_object(folder / "tokenizer_config.json")
        merges = folder / "merges.txt"
        try:
            if path.name == "tokenizer.json":
                return cls(tokenizers.Tokenizer.from_file(str(path)), config)
            if path.name == "vocab.txt":
                unk = _text(config.get("unk_token")) or "[UNK]"
                return cls(_build(models.WordPiece.from_file(str(path), unk_token=unk), config), config)
            return cls(_build(models.BPE.from_file(str(path), str(merges)), config), config)
        except Exception as error:  # the library raises nothing narrower
            files = f"{path} with {merges}" if path.name == "vocab.json" else path
            raise UserError(f"{files} cannot be read as a tokenizer: {error}") from error

    @classmethod
    def train(
        cls, files: Name | Iterable[Name], kind: str = "wordpiece", *, vocab_size: int = 8000, lowercase: bool = False
    ) -> "Tokenizer":
        """A new vocabulary from files of text, as `train_on` makes it; one line in memory at a time.

        >>> Tokenizer.train("reviews.txt", "bpe", vocab_size=4000).save("my-tokenizer")  # doctest: +SKIP
        """
        lines = _read_lines([files] if isinstance(files, str | os.PathLike) else files)
        return cls.train_on(lines, kind, vocab_size=vocab_size, lowercase=lowercase)

    @classmethod
    def train_on(
        cls, texts: Iterable[str], kind: str = "wordpiece", *, vocab_size: int = 8000, lowercase: bool = False
    ) -> "Tokenizer":
        """A new vocabulary of at most `vocab_size` tokens, "wordpiece" or byte-level "bpe"; deterministic."""
        if kind not in KINDS:
            raise unknown("kind of tokenizer", str(kind), KINDS)
        special = KINDS[kind].split()
        vocab = {mark: i for i, mark in enumerate(special)}
        config = {"do_lower_case": lowercase}
        model = models.WordPiece(vocab, unk_token="[UNK]") if kind == "wordpiece" else models.BPE(vocab, [])
        backend = _build(model, config)
        if kind == "bpe":
            backend.normalizer = normalizers.Lowercase() if lowercase else None
        words = _count_words(texts, backend)
        if kind == "wordpiece":
            alphabet = sorted(set(chain.from_iterable(words)))
            # the library numbers "##x" pieces in hash order and breaks ties by number, so trainings would disagree;
            # passed as special tokens, their numbers are fixed before training starts
            special += sorted({f"##{character}" for word in words for character in word[1:]})
        else:
            alphabet = pre_tokenizers.ByteLevel.alphabet()
        least = len(special) + len(alphabet)
        if vocab_size < least:
            raise UserError(f"vocab_size={vocab_size} is too small: marks and characters alone need {least}")
        trainer = (trainers.WordPieceTrainer if kind == "wordpiece" else trainers.BpeTrainer)(
            vocab_size=vocab_size,
            special_tokens=special,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        bare = tokenizers.Tokenizer(type(backend.model)())
        bare.train_from_iterator(words.elements(), trainer)
        backend.model = bare.model
        return cls(backend, config)

    @classmethod
    def of_bytes(cls, lowercase: bool = False) -> "Tokenizer":
        """Without a vocabulary to learn: the marks of "bpe" and the 256 bytes. Any text comes back as it was."""
        tokens = [*KINDS["bpe"].split(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
        config = {"do_lower_case": lowercase, "split_special_tokens": True}
        backend = _build(models.BPE({token: i for i, token in enumerate(tokens)}, []), config)
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # there are no words
        backend.normalizer = normalizers.Lowercase() if lowercase else None
        return cls(backend, config)

    def save(self, folder: Name) -> list[str]:
        """Write `tokenizer.json` and `tokenizer_config.json`, from which `transformers` makes the same tokenizer."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        config = json.dumps(self._config, indent=2, sort_keys=True, ensure_ascii=False)
        texts = {"tokenizer.json": self._backend.to_str(pretty=True), "tokenizer_config.json": config}
        for name, text in texts.items():
            write_text(Path(folder, name), text + "\n")
        return list(texts)

    def to_json(self) -> str:
        """Vocabulary and rules as one text: two tokenizers with equal texts, and equal `splits_marks`, are equal."""
        return str(self._backend.to_str())

    def encode(
        self, texts: Texts, *, max_length: int | None = None, truncate: bool = False, pad_side: str = "right"
    ) -> Batch:
        """Texts, or pairs of texts, as one batch padded to its longest row.

        A row longer than `max_length` is an error, unless `truncate`, when its longer text loses its end first.
        Where there is no pad token, padding uses the end token: the mask alone says what is real.

        >>> tokenizer.encode(["a good film", "no"]).mask.sum(1)  # doctest: +SKIP
        tensor([5, 3])
        """
        if pad_side not in ("right", "left"):
            raise unknown("pad_side", str(pad_side), ["right", "left"])
        ids, segments = self.rows(texts, max_length, truncate)
        lengths = torch.tensor([[len(row)] for row in ids])  # B 1
        T = int(lengths.max())
        mask = torch.arange(T) < lengths if pad_side == "right" else torch.arange(T) >= T - lengths  # B T
        fill = next(i for i in (self.pad, self.eos, 0) if i is not None)
        return Batch(_pad(ids, mask, fill), mask, _pad(segments, mask, 0) if any(map(any, segments)) else None)

    def rows(
        self, texts: Texts, max_length: int | None = None, truncate: bool = False
    ) -> tuple[list[list[int]], list[list[int]]]:
        """The same row by row, without padding: ids, and segments, of which there are none where no model has them."""
        if truncate and max_length is None:
            raise UserError("truncate=True needs max_length, the number of tokens to cut to")
        texts = [texts] if isinstance(texts, str) else texts
        # a tuple could be two texts or one pair, so it is neither
        if isinstance(texts, tuple) or not isinstance(texts, Sequence) or not texts:
            raise UserError("texts must be a list of at least one text or (text, text) pair")
        encodings = self._encode(texts)
        ids, segments = [e.ids for e in encodings], [e.type_ids for e in encodings] if self._segments else []
        for i, row in enumerate(ids):
            if not row:
                raise UserError(f"texts[{i}] is empty and this tokenizer adds no marks: a row needs one token")
            if max_length is not None and len(row) > max_length:
                problem = f"texts[{i}] has {len(row)} tokens, more than max_length={max_length}"
                if not truncate:
                    raise UserError(f"{problem}: shorten it, or cut it with truncate=True")
                kept = _longest_first(encodings[i].sequence_ids, max_length, problem)
                for table in (ids, segments) if segments else (ids,):
                    table[i] = [table[i][k] for k in kept]
        return ids, segments

    def decode(self, ids: Sequence[int] | Tensor, skip_special: bool = True) -> str:
        """The text of one row of ids; an id no token has, such as a label's -100, is left out."""
        held = [i for i in map(int, ids) if 0 <= i < self.vocab_size]
        return str(self._backend.decode(held, skip_special_tokens=skip_special))

    def ids(self, text: str) -> list[int]:
        """The ids of a text alone, without the marks that a model wants around it."""
        try:
            return list(self._backend.encode(text, add_special_tokens=False).ids)
        except TypeError:
            raise UserError(f"{text!r:.80} {HALVED}") from None

    def tokens(self, ids: Sequence[int] | Tensor) -> list[str]:
        """The tokens of one row of ids, as the vocabulary spells them."""
        names: list[str] = []
        for i in map(int, ids):
            name = self._backend.id_to_token(i) if i >= 0 else None
            if name is None:
                raise UserError(f"no token has the id {i}: ids go from 0 to {self.vocab_size - 1}")
            names.append(name)
        return names

    def _encode(self, rows: Sequence[str | tuple[str, str]]) -> list[tokenizers.Encoding]:
        """The rows with their marks, neither cut nor padded."""
        try:
            return self._backend.encode_batch_fast(rows)
        except TypeError:
            for i, row in enumerate(rows):
                try:
                    self._backend.encode_batch_fast([row])
                except TypeError:
                    raise UserError(f"texts[{i}] is {row!r:.80}: {_wrong(row)}") from None
            raise


def _build(model: models.WordPiece | models.BPE, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """BERT's rules around WordPiece; around BPE, RoBERTa's if the vocabulary holds its marks, else GPT-2's."""
    backend = tokenizers.Tokenizer(model)
    marks = _marks(backend, config)
    if isinstance(model, models.WordPiece):
        if not {"cls", "sep"} <= marks.keys() or backend.token_to_id(model.unk_token) is None:
            raise UserError(f"it has no [CLS], no [SEP] or no {model.unk_token}")
        backend.normalizer = normalizers.BertNormalizer(
            handle_chinese_chars=config.get("tokenize_chinese_chars", True),
            strip_accents=config.get("strip_accents"),
            lowercase=config.get("do_lower_case", True),
        )
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.post_processor = processors.BertProcessing(marks["sep"], marks["cls"])
        backend.decoder = decoders.WordPiece()
    else:
        if config.get("add_bos_token"):  # OPT: its vocabulary looks like RoBERTa's, its rows do not
            raise UserError("add_bos_token is known only from a tokenizer.json, which is not there")
        space = config.get("add_prefix_space", False)
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
        backend.decoder = decoders.ByteLevel()
        sep, cls = marks.get("sep"), marks.get("cls")
        if sep and cls and (sep[0], cls[0]) == ("</s>", "<s>"):
            backend.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=space)
    return backend


def _marks(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """The marks the vocabulary holds, with their ids: as the configuration names them, else as is usual."""
    marks: dict[str, tuple[str, int]] = {}
    for role, spellings in MARKS.items():
        for mark in [_text(config[f"{role}_token"])] if f"{role}_token" in config else spellings:
            if mark and role not in marks and (i := backend.token_to_id(mark)) is not None:
                marks[role] = (mark, i)
    return marks


def _text(mark: Any) -> str | None:
    """The text of a mark, which a configuration gives by itself or in an object with flags."""
    text = mark.get("content") if isinstance(mark, dict) else mark
    if text is not None and not isinstance(text, str):
        raise UserError(f"its configuration has {mark!r} for a special token, which must be a string")
    return text


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} if there is no such file."""
    return read_object(path) if path.is_file() else {}


def _read_lines(files: Iterable[Name]) -> Iterator[str]:
    """The lines of all files, which are there before the first is read."""
    paths = [Path(file) for file in files]
    for path in paths:
        if not path.is_file() or path.stat().st_size == 0:
            raise UserError(f"{path} is missing or empty: a tokenizer is trained on files of text")
    for path in paths:
        try:
            with path.open(encoding="utf-8") as lines:
                yield from lines
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8 text: {error}") from None


def _count_words(texts: Iterable[str], backend: tokenizers.Tokenizer) -> Counter[str]:
    """How often each word stands in the texts, as the backend splits them."""
    words: Counter[str] = Counter()
    for text in texts:
        normal = backend.normalizer.normalize_str(text) if backend.normalizer else text
        words.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normal))
    if not words:
        raise UserError("there are no words to train a tokenizer on: at least one text with words is needed")
    return words


def _wrong(row: Any) -> str:
    """Why a row can't become tokens."""
    texts = row if isinstance(row, tuple | list) else [row]
    halved = any("\ud800" <= character <= "\udfff" for text in texts if isinstance(text, str) for character in text)
    return f"it {HALVED}" if halved else "a text or a pair of texts is needed"


def _longest_first(owners: list[int | None], max_length: int, problem: str) -> list[int]:
    """The places that stay when the longer text of a row loses its end first; a mark's owner is None."""
    first, second, marks = owners.count(0), owners.count(1), owners.count(None)
    room = max_length - marks
    if room < 1:
        raise UserError(f"{problem}, and {marks} of them are marks: max_length must be at least {marks + 1}")
    short = min(first, second, room // 2)
    sizes = (room - short, short) if first > second else (short, room - short)
    kept = {place for i in (0, 1) for place in [k for k, owner in enumerate(owners) if owner == i][: sizes[i]]}
    return [k for k, owner in enumerate(owners) if owner is None or k in kept]


def _pad(rows: list[list[int]], mask: Tensor, value: int) -> Tensor:
    """Ragged rows as [B, T]: at the places of the mask, and a value elsewhere."""
    padded = torch.full(mask.shape, value)
    padded[mask] = torch.tensor(list(chain.from_iterable(rows)))
    return padded
