"""The race track: what its figures come to, what it prints, when it fails, and one row of it with real processes."""

import csv
import json
import statistics
import sys
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
import transformers
from small import BAD, GOOD

from benchmarks import __main__ as command
from benchmarks import track
from benchmarks.contestant import Repeated, Turn
from benchmarks.roofline import predicting, training
from benchmarks.row import Row, Settings
from benchmarks.rows import ROWS, chosen
from benchmarks.rows.mixing import add_adapters
from benchmarks.rows.training import build, part_of, trained_on
from benchmarks.side import Side
from benchmarks.table import goal, regressions, table
from peftlab.models.encoder import EncoderConfig

FIELDS = {
    "row",
    "ours",
    "peer_default",
    "peer_best",
    "ratio_default",
    "ratio_best",
    "goal_default",
    "goal_best",
}
ROW = Row("made-up", "nowhere", "made up", 4.0, 1.3)
TURNS = {
    "ours": [Turn(1.0, 100, 6e9, memory=7), Turn(2.0, 100, 6e9), Turn(4.0, 100, 6e9)],
    "default": [Turn(5.0, memory=9), Turn(9.0), Turn(12.0)],
    "best": [Turn(2.0, memory=8), Turn(3.0), Turn(5.0)],
}


def test_ratios_are_found_round_by_round():
    found = track.summary(ROW, TURNS, {"fp32": 10e9})
    for side in ("default", "best"):
        ratios = [peer.seconds / ours.seconds for ours, peer in zip(TURNS["ours"], TURNS[side], strict=True)]
        assert found[f"ratio_{side}"] == pytest.approx(np.median(ratios))
        assert found[f"quartiles_{side}"] == pytest.approx(np.quantile(ratios, [0.25, 0.75]).tolist())
        assert found[f"peer_{side}"] == statistics.median(turn.seconds for turn in TURNS[side])
    assert (found["goal_default"], found["goal_best"]) == (4.0, 1.3)
    assert [found[f"memory_{side}"] for side in ("ours", "default", "best")] == [7, 9, 8]
    assert found["tokens_second"] == 100 / 2.0
    assert found["roofline"] == pytest.approx(6e9 / 2.0 / 10e9)


def test_a_missed_goal_says_what_the_peak_would_allow():
    found = track.summary(ROW, TURNS, {"fp32": 10e9})  # 4.5 and 1.5 times, at 0.3 of the peak
    assert goal(found, "default") == "4.00 [green]met[/]"
    assert goal({**found, "goal_best": 2.0}, "best") == "2.00 [red]missed[/], peak 5.0"
    assert goal({**found, "goal_best": 2.0, "roofline": None}, "best") == "2.00 [red]missed[/]"
    assert goal({**found, "goal_best": None}, "best") == "–"


def test_share_of_the_peak_is_that_of_the_precision():
    turn = Turn(1.0, flops=6e9, precision="bf16")
    assert track.share(turn, 2.0, {"fp32": 1e9, "bf16": 12e9}) == pytest.approx(0.25)
    assert track.share(turn, 2.0, {"fp32": 1e9}) is None


def test_a_row_of_bytes_compares_memory_and_one_without_a_best_says_so():
    row = Row("made-up", "nowhere", "made up", 1 / 0.6, None, unit="bytes")
    turns = {"ours": [Turn(1.0, memory=60)], "default": [Turn(0.1, memory=120)]}
    found = track.summary(row, turns, {"fp32": 1e9})
    assert (found["ours"], found["peer_default"], found["ratio_default"]) == (60, 120, 2.0)
    assert found["peer_best"] is found["ratio_best"] is found["goal_best"] is None
    assert found["roofline"] is None


def test_the_worst_point_is_the_row(monkeypatch):
    row = Row("scaling", "nowhere", "made up", 1.0, None, points=({"tokens": 32}, {"tokens": 64}, {"tokens": 128}))
    seconds = {32: 3.0, 64: 0.5, 128: 2.0}
    monkeypatch.setattr(
        track, "race", lambda row, point, settings: {"ours": [Turn(1.0)], "default": [Turn(seconds[point["tokens"]])]}
    )
    found = track.run(row, Settings(), {})
    assert found["ratio_default"] == 0.5
    assert found["point"] == "tokens 64"
    assert [point["ratio_default"] for point in found["points"]] == [3.0, 0.5, 2.0]


def test_rows_have_the_names_and_are_chosen_by_them():
    methods = {f"train-{name}" for name in ("bitfit", "lora", "adapter", "prefix", "p-tuning", "prompt")}
    others = {"train-full", "train-head", "train-top2", "predict", "mixed-16", "mixed-1000", "grid", "memory", "start"}
    written = {f"generate-{search}-{batch}" for search in ("greedy", "beam") for batch in (1, 32)}
    assert set(ROWS) == methods | others | written | {"scaling"}
    assert [row.name for row in chosen("predict,mixed")] == ["predict", "mixed-16", "mixed-1000"]
    assert [row.name for row in chosen("train-lora")] == ["train-lora"]
    with pytest.raises(ValueError, match="'lora'"):
        chosen("lora")


def test_a_short_run_has_fewer_rounds_and_may_be_told_how_many():
    plain, quick = Settings(), Settings(quick=True)
    assert [ROWS[name].turns(plain) for name in ("grid", "train-lora", "mixed-16")] == [2, 3, 15]
    assert [ROWS[name].turns(quick) for name in ("grid", "train-lora", "mixed-16")] == [2, 3, 5]
    assert [ROWS[name].turns(Settings(rounds=1)) for name in ("grid", "mixed-16")] == [1, 1]


def figures(name: str, default: float, best: float | None) -> dict:
    here = torch.backends.cpu.get_cpu_capability()
    return {"row": name, "ratio_default": default, "ratio_best": best, "processor": here, "precision": "fp32"}


def test_a_ratio_that_lost_more_than_a_fifth_is_a_regression():
    kept = [figures("a", 5.0, 2.0), figures("b", 5.0, None), figures("c", 1.0, 1.0)]
    for row in (figures("a", 4.01, 1.61), figures("b", 9.0, None), figures("new", 0.1, 0.1)):
        assert regressions(row, kept) == []
    (told,) = regressions(figures("a", 4.1, 1.59), kept)
    assert "a: 1.59 times the peer's best" in told
    for other in ("processor", "precision"):
        assert regressions({**figures("a", 0.1, 0.1), other: "another"}, kept) == []


def test_what_ci_compares_with_is_of_every_processor_and_precision_that_it_was_kept_for():
    kept = json.loads((Path(__file__).parents[1] / "benchmarks/quick.json").read_text())
    assert {row["row"] for row in kept} == {"train-lora", "predict", "mixed-16"}
    for row in kept:
        assert regressions({**row, "ratio_default": row["ratio_default"] / 2}, kept)


def test_command_prints_json_and_fails_at_a_regression(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "measured_peaks", lambda settings: {"fp32": 1e9})
    monkeypatch.setattr(command, "run", lambda row, settings, peaks: track.summary(row, TURNS, peaks))
    file = tmp_path / "kept.json"
    kept = figures("train-lora", 4.5, 1.5)
    for worse, code in ((kept, 0), ({**kept, "ratio_default": 4.5 / 0.79}, 1)):
        file.write_text(json.dumps([worse]))
        monkeypatch.setattr(sys, "argv", ["benchmarks", "--rows", "train-lora", "--json", "--check", str(file)])
        with pytest.raises(SystemExit) as ended:
            command.main()
        assert ended.value.code == code
        printed, said = capsys.readouterr()
        (found,) = json.loads(printed)
        assert found.keys() > FIELDS
        assert ("train-lora" in said) == (code == 1)


@pytest.mark.parametrize(("good", "code"), [(1, 0), (3, 0), (4, 1)])
def test_a_row_that_lost_is_raced_again(monkeypatch, tmp_path, capsys, good, code):
    """The time that it is as good as before is the last, or it has lost."""
    raced = []

    def run(row, settings, peaks):
        raced.append(row.name)
        return figures(row.name, 4.0 if len(raced) == good else 2.0, 1.0)

    monkeypatch.setattr(command, "measured_peaks", lambda settings: {"fp32": 1e9})
    monkeypatch.setattr(command, "run", run)
    file = tmp_path / "kept.json"
    file.write_text(json.dumps([figures("train-lora", 4.0, 1.0)]))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--rows", "train-lora", "--json", "--check", str(file)])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == code
    assert len(raced) == min(good, 3)
    assert capsys.readouterr().err.count("once more") == min(good, 3) - 1


@pytest.mark.parametrize(
    ("why", "code", "told"), [(KeyboardInterrupt(), 130, "stopped"), (SystemExit("a side ended"), 1, "a side ended")]
)
def test_a_race_that_is_stopped_prints_the_rows_that_are_raced(monkeypatch, capsys, why, code, told):
    def run(row, settings, peaks):
        if row.name == "train-full":
            raise why
        return track.summary(row, TURNS, peaks)

    monkeypatch.setattr(command, "measured_peaks", lambda settings: {"fp32": 1e9})
    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--rows", "train-lora,train-full", "--json"])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == code
    printed = capsys.readouterr()
    assert [row["row"] for row in json.loads(printed.out)] == ["train-lora"]
    assert f"{told}: 1 of 2 rows" in printed.err


def test_table_has_every_row_and_says_whether_goals_are_met():
    rows = [ROWS["train-lora"], ROWS["train-head"], ROWS["start"]]
    found = [track.summary(row, {side: TURNS[side] for side in row.sides}, {"fp32": 1e9}) for row in rows]
    columns = {}
    for column in table(found, "made up").columns:
        columns.setdefault(column.header, []).append(list(column.cells))
    assert columns["row"] == [["train-lora", "train-head", "start"]]
    default, best = columns["goal"]
    assert ["met" in goal for goal in default] == [row.goal_default <= 4.5 for row in rows] == [True, False, True]
    assert ["met" in goal for goal in best[:2]] == [True, False]
    assert best[2] == "–"


def test_flops_of_training_by_hand():
    D, inner, T, H = 8, 16, 5, 2
    config = EncoderConfig(vocab=50, dim=D, layers=3, heads=H, inner=inner, max_length=32)

    def block(T: int, n: int) -> int:
        """q, k, v, o and the feed-forward network of n tokens, scores and their sum; of one token by whole tokens."""
        width = D if n == T else H * D
        return 2 * (4 * n * D * D + 2 * n * D * inner + 2 * n * T * width)

    whole, top = 2 * block(T, T) + block(T, 1), block(T, T) + block(T, 1)
    assert predicting(config, [T, T]) == 2 * whole
    assert training(config, [T], "full", 2) == 2 * 3 * whole
    assert training(config, [T], "lora", 2) == 2 * 2 * whole
    assert training(config, [T], "head", 3) == whole
    assert training(config, [T], "top2", 3) == block(T, T) + 3 * 2 * top
    assert training(config, [T], "prompt") == 2 * (2 * block(T + 20, T + 20) + block(T + 20, 1))


def test_sides_that_answer_differently_do_not_race(monkeypatch):
    class Answering:
        def __init__(self, row, point, side, settings):
            self.contestant = Repeated(lambda: side, checked=True)
            self.contestant.warm_up()

        def wait(self) -> None:
            pass

        def turn(self) -> Turn:
            return self.contestant.turn()

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(track, "Side", Answering)
    with pytest.raises(SystemExit, match="different answers"):
        track.race(ROW, {}, Settings())


@pytest.mark.slow
def test_a_process_of_ours_and_the_peer_train_on_the_same_tokens(tiny, tmp_path):
    file = tmp_path / "films.csv"
    texts = [f"{text}, number {i}" for i in range(8) for text in (*GOOD, *BAD)]
    with file.open("w", newline="") as out:
        lines = csv.writer(out)
        lines.writerow(["text", "label"])
        lines.writerows([text, "good" if text.split(",")[0] in GOOD else "bad"] for text in texts)
    asked = {"method": "lora", "epochs": 2, "rows": 32}
    settings = Settings(base=str(tiny), task=str(file), threads=torch.get_num_threads(), precision="fp32")
    with Side(Row("train-lora", "training", "a smoke run", 4.0, 1.3, asked=asked), {}, "ours", settings) as side:
        side.wait()
        turns = [side.turn()]
    for name in ("default", "best"):  # not in a process: importing `transformers` once more would take the longest
        peer = build(name, asked, settings)
        peer.warm_up()
        turns.append(peer.turn())
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    trained = trained_on(part_of(str(file), 32))
    assert len(trained) == 32
    tokens = 2 * sum(len(ids) for ids in tokenizer(trained.texts)["input_ids"])
    assert [turn.tokens for turn in turns] == [tokens] * 3
    assert all(turn.seconds > 0 for turn in turns)
    assert turns[0].memory > 0


def test_adapters_are_added_as_peft_adds_them(tiny):
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["query", "value"], init_lora_weights=False)
    names = ["one", "two", "three"]
    slow, fast = (
        peft.get_peft_model(transformers.AutoModel.from_pretrained(tiny), config, adapter_name="one").eval()
        for _ in range(2)
    )
    for name in names[1:]:
        slow.add_adapter(name, config)
    add_adapters(fast, names)
    assert {key: tensor.shape for key, tensor in fast.state_dict().items()} == {
        key: tensor.shape for key, tensor in slow.state_dict().items()
    }
    fast.load_state_dict(slow.state_dict())
    inputs = {
        "input_ids": torch.randint(1000, 2000, (1, 6)).repeat(4, 1),
        "adapter_names": ["one", "three", "two", "one"],
    }
    with torch.no_grad():
        expected = slow(**inputs).last_hidden_state
        torch.testing.assert_close(fast(**inputs).last_hidden_state, expected, rtol=0, atol=0)
    assert len({tuple(row.flatten().tolist()) for row in expected}) == 3
