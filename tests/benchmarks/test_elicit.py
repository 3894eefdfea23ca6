"""The benchmark of elicit: the front between texts, whole targets alone, the rivals' clock."""

from pathlib import Path

import pytest

from benchmarks.jobs.elicit import RIVALS, TARGETS, at, table
from benchmarks.jobs.elicit_rivals import Best, OutOfTimeError
from benchmarks.journal import Journal


def row(nll: float, fluency: float, text: str = "A text") -> dict[str, object]:
    return {"text": text, "nll": nll, "fluency": fluency, "says_it": False, "seconds": 60.0}


def test_the_front_is_the_lower_hull_of_texts() -> None:
    texts = [row(0.5, 4.0), row(1.0, 3.9), row(1.5, 2.0), row(3.0, 3.0)]
    assert at(texts, 0.5, "nll", "fluency") == 4.0
    assert at(texts, 1.0, "nll", "fluency") == pytest.approx(3.0)
    assert at(texts, 2.5, "nll", "fluency") == 2.0
    assert at(texts, 3.0, "fluency", "nll") == pytest.approx(1.0)


def test_the_table_has_whole_targets_and_counts_only_what_is_reached(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    for target in TARGETS[:2]:
        texts = [row(0.5, 4.0), row(1.5, 2.0)]
        ours = {"target": target, "first": texts[1], "texts": texts, "seconds": 60.0, "runs": 5}
        journal.append(f"ours/{target}", ours)
        for method in RIVALS:
            journal.append(f"{method}/{target}", row(1.0, 8.0, "x * y"))
    journal.append(f"nanogcg/{TARGETS[0]}", row(0.1, 8.0))
    journal.append(f"ours/{TARGETS[2]}", {})
    lines = table(journal).splitlines()
    (nanogcg,) = [line for line in lines if line.startswith("| nanogcg | 5")]
    assert nanogcg == "| nanogcg | 5.00 [5.00, 5.00] | 1 of 2 | 0.05 [-0.40, 0.50] | 2 of 2 |"
    assert "count). 2 of 20 targets were run: a text of at most 12" in lines
    assert "| ours, one search | 1.50 [1.50, 1.50] | 2.00 [2.00, 2.00] | 0 of 2 | 12 |" in lines
    assert len([line for line in lines if "x \\* y" in line]) == 5


def test_the_page_is_made_of_the_journal() -> None:
    results = Path(__file__).parents[2] / "benchmarks" / "results"
    page = (results / "elicit.md").read_text("utf-8")
    assert page == table(Journal(results / "elicit.jsonl.gz")) + "\n"


def test_a_rival_ends_with_its_best_text_when_its_seconds_are_used_up() -> None:
    best = Best(seconds=60.0)
    best.add(2.0, "good")
    best.add(3.0, "worse")
    best.seconds = 0.0
    with pytest.raises(OutOfTimeError):
        best.add(1.0, "best")
    assert (best.loss, best.text, best.steps) == (1.0, "best", 3)
