"""The scripts of benchmarks/: each has help, and what they compute from rows of a journal is right.

The search budget has tests of its own.
"""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPTS = sorted(f.name for f in BENCHMARKS.glob("*.py") if "__main__" in f.read_text("utf-8"))


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scripts find each other, as they do when one of them is run."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_has_help(script, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: {script}")
    assert len(printed.splitlines()) > 5


def test_all_scripts_were_found() -> None:
    assert {"stamps.py", "tune_weights.py", "example_captions.py"} <= set(SCRIPTS)


def test_a_journal_is_read_again_without_the_line_that_a_kill_cut(tmp_path) -> None:
    from journal import Journal

    file = tmp_path / "rows" / "journal.jsonl"
    journal = Journal(file)
    assert "a" not in journal
    journal.append("a", {"loss": 1.0})
    journal.append("b", {"loss": 2.0})
    file.write_text(file.read_text("utf-8") + '{"key": "c", "lo', "utf-8")
    again = Journal(file)
    assert again.rows == {"a": {"key": "a", "loss": 1.0}, "b": {"key": "b", "loss": 2.0}}
    again.append("c", {"loss": 3.0})
    assert list(Journal(file).rows) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("An image of a Cat.", True),
        ("An image of cats.", True),
        ("An image of a mug.", True),
        ("An image of a catalogue.", False),
        ("An image of a dog.", False),
    ],
)
def test_a_thing_is_named_by_whole_words(text: str, named: bool) -> None:
    from journal import is_named

    assert is_named(text, ["cat", "mug"]) is named


def test_shards_share_a_list_without_overlap() -> None:
    from journal import shard

    items = list(range(10))
    parts = [shard(items, f"{i}/3") for i in (1, 2, 3)]
    assert sorted(x for part in parts for x in part) == items
    assert shard(items, "1/1") == items


def finished(step: int, loss: float, full_stop: float = 1.0) -> dict[str, Any]:
    return {"step": step, "text": "A cat.", "loss": loss, "nll": [1.0, full_stop, 0.5]}


def test_a_rule_of_stopping_is_applied_to_a_kept_search() -> None:
    from tune_weights import Rule, outcome

    # Beams hold loss, summed nll and number of tokens; step 3 finds better only if one gets there.
    row = {
        "ends": [finished(1, 5.0), finished(2, 4.0), finished(3, 3.0), finished(3, 1.0, 9.0)],
        "open": [[], [[4.5, 4.0, 2]], [[3.5, 4.0, 2]], [[9.0, 4.0, 2]]],
    }
    patient = outcome(row, Rule(steps=4, ending_nats=1.0, max_end_nats=4.0))
    assert patient is not None
    assert (patient["loss"], patient["stopped"]) == (3.0, 3)
    short = outcome(row, Rule(steps=2, ending_nats=1.0, max_end_nats=4.0))
    assert short is not None
    assert (short["loss"], short["stopped"]) == (4.0, 2)
    glued = outcome(row, Rule(steps=4, ending_nats=1.0, max_end_nats=10.0))
    assert glued is not None
    assert glued["loss"] == 1.0
    assert outcome(row, Rule(steps=4, ending_nats=1.0, max_end_nats=0.5)) is None


def test_the_equally_fluent_text_is_the_closest_of_those_or_the_class_itself() -> None:
    from stamps import equally_fluent

    of_class = {"text": "class", "fluency": 2.0, "image": 0.5}
    ends = [
        {"text": "far", "fluency": 1.0, "image": 0.4},
        {"text": "near", "fluency": 2.0, "image": 0.3},
        {"text": "clumsy", "fluency": 2.1, "image": 0.1},
    ]
    assert equally_fluent({"ends": ends, "class": of_class})["text"] == "near"
    assert equally_fluent({"ends": ends[2:], "class": of_class}) is of_class


def test_an_interval_holds_the_mean_and_repeats_itself() -> None:
    from stamps import interval

    values = torch.randn(40, generator=torch.Generator().manual_seed(1)).tolist()
    low, high = interval(values, draws=2000)
    assert low < sum(values) / len(values) < high
    assert (low, high) == interval(values, draws=2000)
    assert interval([1.0] * 5, draws=100) == (1.0, 1.0)


def test_the_report_of_the_photos_counts_named_things(tmp_path, capsys) -> None:
    from example_captions import report
    from journal import Journal

    journal = Journal(tmp_path / "journal.jsonl")
    setting = {"transfer": "best", "weight": 12.0, "steps": 12, "ending_nats": 2.0}
    numbers = {"loss": 4.0, "fluency": 2.0, "image": 0.25, "seconds": 2.0, "evaluations": 100}
    for photo, text in (("cat.jpg", "An image of a cat."), ("mug.jpg", "An image of a dog.")):
        journal.append(photo, {**setting, **numbers, "photo": photo, "text": text})
    report(journal, {"cat.jpg": ["cat"], "mug.jpg": ["mug"]})
    first, *captions = capsys.readouterr().out.splitlines()
    line = json.loads(first)
    assert (line["photos"], line["named"], line["candidates_per_s"]) == (2, 1, 50)
    assert len(captions) == 2
