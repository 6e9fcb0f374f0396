"""A user's mistakes with `peftlab compare`: one sentence with file, row and column, exit code 2, before any run."""

import sys

import pytest
from small import write_films

from peftlab import cli
from peftlab.compare import grid


@pytest.fixture
def call(tiny, tmp_path, monkeypatch, capsys):
    """The command line in this process; gives what it said on standard error. No run is ever started."""

    def started(*_) -> None:
        raise AssertionError("a run was started")

    monkeypatch.setattr(grid, "start", started)

    def call(*arguments: str) -> str:
        more = ("--base", str(tiny), "--out", str(tmp_path / "out"))
        monkeypatch.setattr(sys, "argv", ["peftlab", "compare", *arguments, *more])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 2
        assert not list(tmp_path.glob("out/runs/*"))
        errors = capsys.readouterr().err.strip().splitlines()
        assert errors[-1].startswith("peftlab: ")
        return errors[-1]

    return call


GOOD = "".join(f"film {i} is good,good\nfilm {i} is bad,bad\n" for i in range(10))
FILES = {
    "an empty file": (b"", "films.csv is empty"),
    "a header alone": (b"review,verdict\n", "films.csv is empty: it holds no row of data"),
    "one class only": (b"review,verdict\na,good\nb,good\nc,good\n", "has one class only, 'good'"),
    "a missing column": (b"revue,verdict\na,good\nb,bad\n", "did you mean 'revue'"),
    "a ragged row": (f"review,verdict\n{GOOD}a,b,c\n".encode(), "row 21"),
    "a missing label": (f"review,verdict\n{GOOD}a film,\n".encode(), "row 21"),
    "a line of a megabyte": (f"review,verdict\n{GOOD}".encode() + b"word " * 200_000 + b",good\n", "row 21"),
    "latin-1": (f"review,verdict\n{GOOD}".encode() + "un film très bon,good\n".encode("latin-1"), "row 21"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_used(call, tmp_path, name):
    content, message = FILES[name]
    path = tmp_path / "films.csv"
    path.write_bytes(content)
    said = call("--task", str(path), "--text", "review", "--label", "verdict")
    assert message in said
    assert "films.csv" in said


def test_a_label_outside_the_set(call, tmp_path):
    films, test = write_films(tmp_path / "films.csv"), tmp_path / "test.csv"
    test.write_text("review,verdict\na film,good\nanother,goood\n")
    said = call("--task", str(films), "--text", "review", "--label", "verdict", "--test", str(test))
    assert "test.csv" in said
    assert "row 2" in said
    assert "'goood'" in said
    assert "good" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "lora,prefx"], "unknown method 'prefx': did you mean 'prefix'"),
        (["--task", "reviws"], "'reviws': did you mean 'reviews'"),
        (["--set", "train.stepz=3"], "unknown key of [train] in the comparison 'stepz': did you mean 'steps'"),
        (["--set", "lora.rnk=3"], "unknown setting of lora in the comparison 'rnk': did you mean 'rank'"),
        (["--set", "lora.targets=5"], "lora in the comparison can't have targets = 5"),
        (["--set", "train.lr"], "--set 'train.lr' has no value"),
        (["--set", "train.lr.x=1"], "train.lr in the comparison is {'x': 1}"),
        (["--set", "train.lr=1", "--set", "train.lr.x=1"], "--set 'train.lr.x=1': lr is a value, not a section"),
        (["--set", "method.name=lora"], "use --methods"),
        (["--set", "train.seed=3"], "use --seeds"),
        (["--set", "lora.name=prefix"], "use --methods"),
        (["--methods", "lora,lora"], "the method lora is there twice"),
        (["--methods", "lora", "--set", "prefix.length=5"], "prefix is not among the methods of the comparison"),
        (["--set", "lora.rank=99"], "rank 99 is larger than the matrix"),
        (["--steps", "5", "--epochs", "2"], "--steps and --epochs both say how long to train"),
        (["--quick", "--epochs", "2"], "--epochs and --quick both say how long to train"),
        (["--budget", "hours=3"], "unknown budget 'hours'"),
    ],
)
def test_an_option_that_cannot_be_used(call, tmp_path, arguments, message):
    films = write_films(tmp_path / "films.csv")
    task = [] if "--task" in arguments else ["--task", str(films), "--text", "review", "--label", "verdict"]
    assert message in call(*task, *arguments)


def test_what_is_unusual_but_right_is_taken(tiny, tmp_path, monkeypatch, capsys):
    """A byte order mark; test rows that are training rows, with a warning."""
    films = write_films(tmp_path / "films.csv")
    films.write_bytes(b"\xef\xbb\xbf" + films.read_bytes())
    test = tmp_path / "test.csv"
    test.write_text("review,verdict\n" + "\n".join(films.read_text("utf-8-sig").splitlines()[1:4]) + "\nnew,bad\n")
    monkeypatch.setattr(grid, "start", lambda *_: (_ for _ in ()).throw(StopIteration))
    columns = ["--text", "review", "--label", "verdict", "--test", str(test)]
    arguments = ["compare", "--task", str(films), *columns, "--base", str(tiny), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["peftlab", *arguments])
    with pytest.raises((StopIteration, RuntimeError)):
        cli.main()
    assert "3 of the 4 rows of the test split are also training rows" in capsys.readouterr().err
