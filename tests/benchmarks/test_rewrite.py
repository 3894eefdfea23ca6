"""The table of rewriting pairs arms by sentence, and success has all its conditions."""

from pathlib import Path

import pytest

from benchmarks.jobs.rewrite import ARMS, JOURNAL, OURS, RESULTS, _with_case, is_success, table
from benchmarks.journal import Journal

GOOD = {"asked": "positive", "label": "positive", "similarity": 0.8, "changed": 0.4}
GOOD |= {"less_fluent": 0.5}


def test_the_page_is_made_of_the_journal() -> None:
    assert (RESULTS / "rewrite.md").read_text().endswith(table(Journal(JOURNAL)))


@pytest.mark.parametrize(
    "worse",
    [{"label": "neutral"}, {"similarity": 0.74}, {"changed": 0.41}, {"less_fluent": 0.51}],
)
def test_success_has_all_its_conditions(worse: dict[str, object]) -> None:
    assert is_success(GOOD)
    assert not is_success({**GOOD, **worse})


def test_a_rival_is_paired_with_ours_and_the_worst_come_last(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rows.jsonl")
    for i, label in enumerate(("positive", "negative")):
        for arm in (OURS, ARMS[1]):
            row = {**GOOD, "arm": arm, "original": f"Old {i}.", "text": f"New {i}.", "terms": {}}
            row |= {"label": label if arm == OURS else "negative", "cpu_seconds": 9.0}
            journal.append(f"{arm}: Old {i}.", row)
            journal.append(f"look: {arm}: Old {i}.", {"vader": label, "afinn": "positive"})
    lines = table(journal).splitlines()
    ours, rival = (line for line in lines if line.startswith(f"| {OURS}") or ARMS[1] in line)
    assert ours.startswith(f"| {OURS} | 2 | 0.50 [")
    assert rival.startswith(f"| {ARMS[1]} | 2 | 0.00 [0.00, 0.00] | 0.50 [")
    assert "| 0.50 [0.00, 1.00] | 1.00 [1.00, 1.00] | 9.0 |" in ours
    assert lines[-1].startswith("* Old 1. -> New 1. (negative, VADER negative,")


def test_a_rival_of_lower_case_gets_the_words_of_the_original_back() -> None:
    assert _with_case("The Cat, I say.", "the cat, i said.") == "The Cat, I said."
