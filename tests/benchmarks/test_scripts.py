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

from benchmarks.bootstrap import interval
from benchmarks.journal import Journal, is_named, shard
from benchmarks.photos import stamps
from benchmarks.photos.example_captions import report
from benchmarks.photos.tune_weights import Rule, outcome
from fuseprompt.tasks.caption import method_of
from fuseprompt.tasks.settings import CaptionSettings

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MODULES = sorted(
    ".".join(f.relative_to(BENCHMARKS.parent).with_suffix("").parts)
    for f in BENCHMARKS.rglob("*.py")
    if "if __name__" in f.read_text("utf-8")
)


@pytest.mark.parametrize("module", MODULES)
def test_everything_that_runs_has_help(module, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(SystemExit) as stop:
        runpy.run_module(module, run_name="__main__")
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: ")
    assert len(printed.splitlines()) > 5


def test_everything_that_runs_was_found() -> None:
    names = {"fidelity.__main__", "speed.__main__", "search_budget.__main__", "photos.stamps"}
    assert {f"benchmarks.{name}" for name in names} <= set(MODULES)


def test_a_journal_is_read_again_without_the_line_that_a_kill_cut(tmp_path) -> None:
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
    assert is_named(text, ["cat", "mug"]) is named


def test_shards_share_a_list_without_overlap() -> None:
    items = list(range(10))
    parts = [shard(items, f"{i}/3") for i in (1, 2, 3)]
    assert sorted(x for part in parts for x in part) == items
    assert shard(items, "1/1") == items


def finished(step: int, loss: float, full_stop: float = 1.0) -> dict[str, Any]:
    return {"step": step, "text": "A cat.", "loss": loss, "nll": [1.0, full_stop, 0.5]}


def test_a_rule_of_stopping_is_applied_to_a_kept_search() -> None:
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
    of_class = {"text": "class", "fluency": 2.0, "image": 0.5}
    ends = [
        {"text": "far", "fluency": 1.0, "image": 0.4},
        {"text": "near", "fluency": 2.0, "image": 0.3},
        {"text": "clumsy", "fluency": 2.1, "image": 0.1},
    ]
    assert stamps.equally_fluent({"ends": ends, "class": of_class})["text"] == "near"
    assert stamps.equally_fluent({"ends": ends[2:], "class": of_class}) is of_class


def test_an_interval_holds_the_mean_and_repeats_itself() -> None:
    values = torch.randn(40, generator=torch.Generator().manual_seed(1)).tolist()
    low, high = interval(values, draws=2000)
    assert low < sum(values) / len(values) < high
    assert (low, high) == interval(values, draws=2000)
    assert interval([1.0] * 5, draws=100) == pytest.approx((1.0, 1.0))


def test_the_report_of_the_photos_counts_named_things(tmp_path, capsys) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    setting = {"transfer": "best", "weight": 12.0, "steps": 12, "ending_nats": 2.0}
    numbers = {"loss": 4.0, "fluency": 2.0, "image": 0.25, "seconds": 2.0, "evaluations": 100}
    for photo, text in (("cat.jpg", "An image of a cat."), ("mug.jpg", "An image of a dog.")):
        journal.append(photo, {**setting, **numbers, "photo": photo, "text": text})
    report(journal, {"cat.jpg": ["cat"], "mug.jpg": ["mug"]})
    table, captions = capsys.readouterr().out.split("\n\n")
    line = "| best, weight 12, 12 tokens, ending 2 | 1 of 2 | 4.00 | 2.00 | 0.250 |"
    assert table.splitlines()[-1] == line
    assert captions.splitlines()[2:] == [
        "| best | cat | An image of a cat. |",
        "| best | mug | An image of a dog. |",
    ]


def test_the_committed_journal_makes_the_tables_of_the_photos(capsys) -> None:
    words = json.loads((BENCHMARKS.parent / "tests/data/example_synonyms.json").read_text("utf-8"))
    results = BENCHMARKS / "results"
    report(Journal(results / "example-captions.jsonl.gz"), words)
    page = (results / "captions.md").read_text("utf-8")
    assert all(table in page for table in capsys.readouterr().out.strip().split("\n\n"))


def test_the_tables_of_forty_stamps_are_made_of_the_journal() -> None:
    method = method_of(CaptionSettings())
    rule = Rule(CaptionSettings().max_tokens, method.ending_nats, method.max_end_nats)
    page = (BENCHMARKS / "results" / "captions.md").read_text("utf-8")
    assert (
        f"\n\n{stamps.report(Journal(BENCHMARKS / 'results' / 'stamps.jsonl.gz'), rule)}\n\n"
        in page
    )
