"""CoNLL-U, two-column CoNLL and JSONL: real treebanks there and back, and every mistake with its line."""

import gzip
import json
from pathlib import Path

import pytest

from peftlab.data.conllu import Sentence, Tree, find_cycle, read_conllu, write_conllu
from peftlab.data.tagged import Tagged, read_tagged, read_words
from peftlab.errors import UserError

SPANISH = """# sent_id = 1
# text = Vámonos al mar
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\t_\t_\t0\troot\t0:root\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t1:obj\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
3\ta\ta\tADP\t_\t_\t5\tcase\t5:case\t_
4\tel\tel\tDET\t_\t_\t5\tdet\t5:det\t_
4.1\tx\t_\tNOUN\t_\t_\t_\t_\t1:dep\t_
4.2\ty\t_\tNOUN\t_\t_\t_\t_\t1:dep\t_
5\tmar\tmar\tNOUN\t_\t_\t1\tobl\t1:obl\tCopyOf=1

# sent_id = 2
1\t#\t#\tSYM\t_\t_\t0\troot\t_\t_

"""


def written(tmp_path: Path, text: str, name: str = "a.conllu") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def lines(*heads: int | str, relation: str = "dep") -> str:
    """A sentence with these heads."""
    rows = [f"{i}\tw{i}\t_\tX\t_\t_\t{head}\t{relation}\t_\t_" for i, head in enumerate(heads, 1)]
    return "\n".join([*rows, "", ""])


def test_words_are_neither_multi_word_tokens_nor_empty_nodes(tmp_path):
    first, second = read_conllu(written(tmp_path, SPANISH))
    assert first.words == ["Vamos", "nos", "a", "el", "mar"]
    assert first.tags() == ["VERB", "PRON", "ADP", "DET", "NOUN"]
    assert first.tree() == Tree([0, 1, 5, 5, 1], ["root", "obj", "case", "det", "obl"])
    assert (first.line, second.line, second.words) == (1, 13, ["#"])
    assert second.where(0).endswith("a.conllu, line 14")


@pytest.mark.parametrize(
    "text",
    [SPANISH, "\n\n" + SPANISH + "\n", SPANISH.replace("\n", "\r\n"), SPANISH[:-2]],
    ids=["plain", "blank", "crlf", "open"],
)
def test_what_nobody_changed_comes_back_as_bytes(tmp_path, text):
    path = written(tmp_path, text)
    sentences = read_conllu(path)
    assert len(sentences) == 2
    write_conllu(tmp_path / "same.conllu", sentences)
    assert (tmp_path / "same.conllu").read_bytes() == path.read_bytes()
    again = [sentence.with_tree(sentence.tree()).with_tags(sentence.tags()) for sentence in sentences]
    assert again == sentences


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_sentence_is_closed_by_a_blank_line_with_the_files_own_end(tmp_path, end):
    whole = SPANISH.replace("\n", end)
    for lacking in ("", end, 2 * end):
        *_, last = read_conllu(written(tmp_path, whole.removesuffix(lacking)))
        assert last.closed == whole[-len(last.closed) :]
        assert last.closed.endswith("_" + 2 * end)


def test_a_byte_order_mark_is_dropped(tmp_path):
    assert "".join(s.text for s in read_conllu(written(tmp_path, "\ufeff" + SPANISH))) == SPANISH


def test_a_new_tree_changes_two_columns_of_words_alone(tmp_path):
    first, _ = read_conllu(written(tmp_path, SPANISH))
    changed = first.with_tree(Tree([2, 0, 2, 2, 2], ["a", "root", "b", "c", "d:e"]))
    assert changed.tree() == Tree([2, 0, 2, 2, 2], ["a", "root", "b", "c", "d:e"])
    for place, (old, new) in enumerate(zip(first.lines, changed.lines, strict=True)):
        a, b = old.split("\t"), new.split("\t")
        assert place in first.places or a == b
        assert a[:6] + a[8:] == b[:6] + b[8:]


def test_words_alone_become_a_sentence(tmp_path):
    sentence = Sentence.of(["a", "b c"])
    write_conllu(tmp_path / "new.conllu", [sentence, sentence.with_tree(Tree([0, 1], ["root", "dep"]))])
    blank, parsed = read_conllu(tmp_path / "new.conllu")
    assert blank.words == parsed.words == ["a", "b c"]
    assert parsed.tree().heads == [0, 1]
    with pytest.raises(UserError, match="line 1: its head '_' is not a token"):
        blank.tree()
    with pytest.raises(UserError, match="line 1: the word has no tag"):
        blank.tags()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (lines(0, 3, 4, 2), r"line 2: the heads 2 → 3 → 4 → 2 form a cycle"),
        (lines(0, 2), r"line 2: the heads 2 → 2 form a cycle"),
        (lines(0, 1) + lines(0, 1, 0), r"line 6: a second root, after word 1"),
        (lines(2, 1), r"line 1: a sentence begins that has no root"),
        (lines(0, 3), r"line 2: its head '3' is not a token: 0 or a word from 1 to 2"),
        (lines(0, "1.1"), r"line 2: its head '1.1' is not a token"),
        (lines(0, -1), r"line 2: its head '-1' is not a token"),
        (lines(0, 1, relation="_"), r"line 1: it has no relation"),
        (lines(0, 1).replace("2\tw2", "3\tw2"), r"line 2: its id is '3' where 2 is due"),
        (lines(0, 1).replace("2\tw2", "1\tw2"), r"line 2: its id is '1' where 2 is due"),
        (lines(0, 1).replace("1\tw1", "2-3\tw1"), r"line 1: its id is '2-3' where 1 is due"),
        (lines(0, 1).replace("2\tw2", "2-3\tw2"), r"line 2: the sentence ends at word 1, inside a multi-word token"),
        (SPANISH.replace("\n3\ta", "\n3-4\tb" + "\t_" * 8 + "\n3\ta"), r"line 7: its id is '3-4' where 3 is due"),
        (SPANISH.replace("4.2\t", "4.3\t"), r"line 10: its id is '4.3' where 5 is due"),
        (lines(0, 1).replace("w2\t_\t", "w2\t"), r"line 2: it has 9 columns, and a line of CoNLL-U has 10"),
        (lines(0, 1).replace("w2", "w\t2"), r"line 2: it has 11 columns.* is there a tab inside a form"),
        (lines(0, 1).replace("w2", " "), r"line 2: the form is empty"),
        (lines(0) + "# text = nothing\n\n", r"line 3: a sentence ends here that has no word"),
        ("\n \n", r"a.conllu is empty"),
        ("", r"a.conllu is empty"),
    ],
)
def test_a_mistake_is_told_with_file_and_line(tmp_path, text, message):
    with pytest.raises(UserError, match=r"a\.conllu.*" * message.startswith("line") + message) as told:
        [sentence.tree() for sentence in read_conllu(written(tmp_path, text))]
    assert len(str(told.value).splitlines()) == 1


def test_files_that_cannot_be_read_are_told(tmp_path):
    with pytest.raises(UserError, match="there is no file"):
        read_conllu(tmp_path / "none.conllu")
    with pytest.raises(UserError, match="cannot be read"):
        read_conllu(written(tmp_path, "no gzip", "a.conllu.gz"))
    (tmp_path / "latin.conllu").write_bytes(lines(0).encode() + "1\té".encode("latin-1"))
    with pytest.raises(UserError, match="line 3: byte 0xe9 is not UTF-8"):
        read_conllu(tmp_path / "latin.conllu")
    with pytest.raises(UserError, match=r"must end in .conllu, .conll, .jsonl"):
        read_tagged(written(tmp_path, "a O\n", "a.txt"))


def test_a_cycle_is_found_where_there_is_one():
    assert find_cycle([0]) == find_cycle([0, 0]) == find_cycle([0, 2, 3, 0]) == []
    assert find_cycle([0, 0, 4, 2, 3, 1]) == [2, 4, 3]
    assert find_cycle([0, 2, 3, 3]) == [3]


# Words and tags


def test_the_three_formats_say_the_same(tmp_path):
    rows = [(["New", "York", "#"], ["B-loc", "I-loc", "O"]), (["a"], ["O"])]
    table = "\n".join("".join(f"{w}\t{t}\n" for w, t in zip(*row, strict=True)) for row in rows)
    jsonl = "".join(json.dumps({"words": words, "tags": tags}) + "\n" for words, tags in rows)
    conllu = "".join(Sentence.of(words).with_tags(tags).text for words, tags in rows)
    files = {"a.conll": table, "b.conll": table.replace("\t", " "), "a.jsonl": jsonl, "a.conllu": conllu}
    for name, text in files.items():
        path = written(tmp_path, text, name)
        packed = tmp_path / f"{name}.gz"
        packed.write_bytes(gzip.compress(path.read_bytes()))
        found = read_tagged(path)
        assert [(sentence.words, sentence.tags) for sentence in found] == rows
        assert [sentence.line for sentence in found] == ([1, 2] if name == "a.jsonl" else [1, 5])
        assert read_tagged(packed) == [Tagged(s.words, s.tags, packed, s.line) for s in found]
        for each in (path, packed):
            assert [(s.words, s.path, s.line) for s in read_words(each)] == [(s.words, each, s.line) for s in found]
    untagged = written(tmp_path, "".join(json.dumps({"words": words}) + "\n" for words, _ in rows), "b.jsonl")
    assert [sentence.words for sentence in read_words(untagged)] == [words for words, _ in rows]


def test_documents_are_no_sentences(tmp_path):
    path = written(tmp_path, "-DOCSTART- O\n\na O\n\n-DOCSTART- O\n\n-DOCSTART- O\nb O\n")
    assert [s.words for s in read_tagged(path.rename(tmp_path / "a.conll"))] == [["a"], ["-DOCSTART-", "b"]]
    with pytest.raises(UserError, match=r"b.conll is empty: it holds no sentence"):
        read_tagged(written(tmp_path, "-DOCSTART-\tO\n", "b.conll"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.conll", "a O\nb\n", r"line 2: 'b' is not a word and its tag"),
        ("a.conll", "a\tO\n\nb\tc\tO\n", r"line 3: 'b\\tc\\tO' is not"),
        ("a.conll", "\tO\n", r"line 1: '\\tO' is not"),
        ("a.conll", "# 1\na\tO\n", r"line 1: '# 1' is not a word and its tag with a tab between them"),
        ("a.conll", "a\tO\n\n# 2\n\nb\tO\n", r"line 3: '# 2' is not a word and its tag with a tab between them"),
        ("a.conll", "a\rb\tO\n", r"line 1: 'a\\rb\\tO' is not a word and its tag"),
        ("a.conll", "\ufeff\n", "a.conll is empty"),
        ("a.jsonl", "\n", "a.jsonl is empty"),
        ("a.jsonl", '\n{"words": ["a"]\n', "line 2: it is not JSON"),
        ("a.jsonl", '["a"]\n', "line 1: it is not {"),
        ("a.jsonl", '{"words": ["a"]}\n', "line 1: it is not {"),
        ("a.jsonl", '{"words": ["a", " "], "tags": ["O", "O"]}\n', "line 1: it is not {"),
        ("a.jsonl", '{"words": ["\\ud800"], "tags": ["O"]}\n', "line 1: it is not {"),
        ("a.jsonl", '{"words": ["a\\tb"], "tags": ["O"]}\n', "line 1: it is not .* in one line without tabs"),
        ("a.jsonl", '{"words": ["a"], "tags": ["O\\n"]}\n', "line 1: it is not .* in one line without tabs"),
        ("a.jsonl", '{"words": ["a"], "tags": ["O", "O"]}\n', "line 1: it has 1 words and 2 tags"),
        ("a.jsonl", '{"words": [], "tags": []}\n', "line 1: it has 0 words and 0 tags"),
    ],
)
def test_words_without_tags_are_told_with_file_and_line(tmp_path, name, text, message):
    with pytest.raises(UserError, match=message):
        read_tagged(written(tmp_path, text, name))


# Real files


def real(path: Path) -> Path:
    if not path.is_file():
        pytest.skip(f"{path.name} is not in the shared data")
    return path


@pytest.mark.parametrize(("part", "count"), [("dev", 2001), ("test", 2077)])
def test_a_real_treebank_there_and_back(shared, tmp_path, part, count):
    path = real(shared / "data" / "ud-english-ewt" / f"en_ewt-ud-{part}.conllu.gz")
    sentences = read_conllu(path)
    assert len(sentences) == count
    again = [sentence.with_tags(sentence.tags()).with_tree(sentence.tree()) for sentence in sentences]
    write_conllu(tmp_path / "out.conllu", again)
    with gzip.open(path) as file:
        content = file.read()
    assert (tmp_path / "out.conllu").read_bytes() == content
    words = [line for line in content.decode().splitlines() if line.split("\t")[0].isdigit()]
    assert sum(len(sentence.words) for sentence in sentences) == len(words)


@pytest.mark.parametrize(("part", "count"), [("train", 3394), ("dev", 1009), ("test", 1287)])
def test_wnut_has_as_many_sentences_as_its_publishers_say(shared, part, count):
    sentences = read_tagged(real(shared / "data" / "wnut17" / f"{part}.conll.gz"))
    assert len(sentences) == count
    assert {tag[:2] for sentence in sentences for tag in sentence.tags} == {"O", "B-", "I-"}
