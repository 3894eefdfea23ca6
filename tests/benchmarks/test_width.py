"""The table of beam widths is made of its journal, and counts what became worse."""

from pathlib import Path

from benchmarks.journal import Journal
from benchmarks.photos.width import JOURNAL, WIDTHS, table


def test_the_page_is_made_of_the_journal() -> None:
    assert JOURNAL.with_name("width.md").read_text("utf-8").endswith(table(Journal(JOURNAL)))


def test_widths_are_paired_by_photo(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rows.jsonl")
    for photo, last in (("a.jpg", 3.0), ("b.jpg", 6.0)):
        for width, loss in zip(WIDTHS, (7.0, 6.0, 5.0, 4.0, last), strict=True):
            row = {"width": width, "photo": photo, "text": f"{width}.", "loss": loss}
            journal.append(f"{width} {photo}", row | {"finished": True, "steps": 3})
    journal.append("1 c.jpg", row | {"width": 1, "photo": "c.jpg", "loss": 100.0})
    lines = table(journal).splitlines()
    assert lines[0] == "2 photos."
    (last_line,) = [line for line in lines if line.startswith("| 16 |")]
    assert last_line == "| 16 | 4.50 | 2 | +0.50 [-1.00, +2.00] | 1, at most by 2.00 |"
    assert "* +2.00, 8 -> 16: 8. -> 16." in lines
