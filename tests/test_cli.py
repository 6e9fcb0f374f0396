"""The command line as a user meets it: a process, its output, its exit code."""

import subprocess
import sys

import pytest

from peftlab.peft import METHODS


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "peftlab", *arguments]
    return subprocess.run(command, capture_output=True, text=True, input=stdin, timeout=120)


def test_help_teaches():
    done = run("--help")
    assert done.returncode == 0
    assert "peftlab trace" in done.stdout
    assert "standard input" in run("trace", "--help").stdout


def test_ls_has_a_line_for_everything_with_a_name():
    lines = [line.split()[0] for line in run("ls").stdout.splitlines() if line.strip()]
    assert {"minilm", "reviews", "sst2", "mnli", "qnli", *METHODS} <= set(lines)


def test_trace_names_every_dimension(minilm):
    done = run("trace", "A sentence is followed.", "--base", str(minilm))
    assert done.returncode == 0, done.stderr
    for piece in (
        "token 7 · width 384",
        "head 12 · query 7 · key 7",
        "inner width 1536",
        "[CLS] a sentence is followed . [SEP]",
        "blocks 1 … 5",
    ):
        assert piece in done.stdout
    assert run("trace", "-", "--base", str(minilm), stdin="A sentence is followed.\n").stdout == done.stdout


def test_trace_shows_every_block_on_request(minilm):
    done = run("trace", "one", "--pair", "two", "--base", str(minilm), "--full")
    assert "5.ff.down" in done.stdout
    assert "blocks 1" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trace", "x", "--base", "minilmm"], "did you mean 'minilm'"),
        (["trace", "x", "--base", "."], "config.json is missing"),
        (["trace", "long " * 600], "602"),
        (["trace", "-"], "empty"),
        (["tracee", "x"], "tracee"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_two(arguments, message, minilm):
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
