"""The table of methods by edits is made of its journal, and says what its rows say."""

from pathlib import Path

from benchmarks.edits import AFTER, JOURNAL, RESULTS, table
from benchmarks.journal import Journal


def test_the_page_is_made_of_the_journal() -> None:
    assert (RESULTS / "edits.md").read_text().endswith(table(Journal(JOURNAL)))


def test_a_table_pairs_what_arms_found_for_a_target(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rows.jsonl")
    targets = ("They painted the kitchen walls yellow.", "You can pay by card or in cash.")
    for target, losses in zip(targets, ((5.0, 7.0), (6.0, 6.5)), strict=True):
        for arm, loss in zip((AFTER, "gcg additive"), losses, strict=True):
            row = {"arm": arm, "target": target, "text": "A text.", "loss": loss, "before": 6.0}
            row |= {"fluency": loss, "similarity": 0.0, "steps": 3, "cpu_seconds": 8.0}
            journal.append(f"{arm}: {target}", row)
    lines = table(journal).splitlines()
    assert lines[0].startswith("2 texts;")
    assert any(line.startswith(f"| {AFTER} | 5.50 |") and "-1.25 [" in line for line in lines)
    assert any("better 1, worse 0 times; -0.50" in line for line in lines)
    assert f"* {AFTER}: {targets[1]} -> A text. (6.00)" in lines
