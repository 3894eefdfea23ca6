"""The page about datasets says what the sources say."""

import re
from pathlib import Path

from fuseprompt.evaluation.datasets import SOURCES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "evaluating.md"


def differing_rows(page: str) -> list[str]:
    """Return the datasets whose row lacks a split, or has other counts than its source."""
    rows = dict(re.findall(r"^\| `(\w+)` (\|.*\|)$", page, flags=re.MULTILINE))
    found = []
    for name, source in SOURCES.items():
        for split in source.splits:
            counts = source.counts.get(split)
            told = f"{split} ({counts.images:,}, " if counts else split
            told += f"{counts.captions:,})" if counts and counts.captions else ""
            if told not in rows.get(name, ""):
                found.append(f"{name}: {told}")
    return found


def test_the_page_has_every_split_with_its_counts() -> None:
    assert differing_rows(PAGE.read_text()) == []


def test_differing_rows_finds_a_wrong_count_and_a_missing_dataset() -> None:
    page = PAGE.read_text().replace("test (743,", "test (878,")
    assert differing_rows(page) == ["senticap: test (743, 3,528)"]
    assert "coco: val2014 (40,504, 202,654)" in differing_rows("")
