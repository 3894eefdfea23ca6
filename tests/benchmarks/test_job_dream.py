"""The page of dreams is made of its journal, and a direction is reached in both respects."""

from pathlib import Path

import pytest

from benchmarks.jobs.dream import RESULTS, reaches, table

GOOD = {"activation": 2.0, "caption_activation": 2.0, "fluency": 3.0, "caption_fluency": 3.0}


def test_the_page_is_made_of_the_journal(tmp_path: Path) -> None:
    assert (RESULTS / "dream.md").read_text("utf-8").endswith(table(tmp_path, 0) + "\n")


@pytest.mark.parametrize("worse", [{"activation": 1.99}, {"fluency": 3.01}])
def test_a_direction_is_reached_in_both_respects(worse: dict[str, float]) -> None:
    assert reaches(GOOD)
    assert not reaches({**GOOD, **worse})
