"""Tables: rows of ours and of others, percent and other numbers, no text that leaves its cell."""

import pytest

from fuseprompt.evaluation.metrics.base import METRICS, Score, Scores
from fuseprompt.evaluation.report import (
    PERCENT,
    markdown_table,
    published_rows,
    score_section,
    show,
)


def scores(**extra) -> Scores:
    numbers = map(Score, (0.5, 0.4, 0.3, 0.2, 0.25, 0.45, 0.155))
    values = dict(zip(METRICS, (*numbers, Score(None, "no CoreNLP | nowhere")), strict=True))
    return Scores(10, 0.9, {**values, **extra}, ("one caption\nis empty",))


def rows_of(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_table_escapes_what_would_leave_a_cell() -> None:
    assert markdown_table(["a"], [["x | y\n<b>\\"]]) == "| a |\n| --- |\n| x \\| y &lt;b>\\\\ |"


def test_published_rows_stand_below_ours_with_their_metrics_only() -> None:
    section = score_section("karpathy", "test", {"": scores()})
    head, _, ours, first, *_ = rows_of(section)
    assert head == [
        *("", "trained on captions", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE"),
    ]
    assert ours == ["**this run**", "", "20.00", "25.00", "45.00", "15.50", "-"]
    assert first == ["FUSE", "no", "1.59", "14.72", "-", "15.93", "9.15"]
    assert "SPICE: not available: no CoreNLP" in section
    assert "Images: 10, 90.0 % of them with a caption." in section
    assert "- one caption is empty" in section
    assert section.endswith("Here it is not part of it.")


def test_each_sentiment_has_a_table_with_its_own_rows() -> None:
    accuracy = Score(0.9, by="a lexicon", independent=True, details={"on people's captions": 0.95})
    section = score_section(
        "senticap", "test", {"positive": scores(sentiment_accuracy=accuracy), "negative": scores()}
    )
    assert "### positive" in section
    assert "### negative" in section
    assert "| **this run** |  | 30.00 | 25.00 | 90.00 |" in section
    assert "sentiment: 90.00, by a lexicon, which the captions were not optimised for;" in section
    assert "for; on people's captions 0.950." in section
    assert "| ConZIC | no | 1.78 | 5.54 | 99.10 |" in section
    assert section.count("no CoreNLP") == 1  # For both sentiments.


def test_other_datasets_show_all_that_was_scored_and_no_rows_of_others() -> None:
    score = Score(0.8, by="offline:image-text", independent=False)
    section = score_section("folder", "all", {"": scores(clip_score=score, fluency=Score(2.0))})
    assert len(rows_of(section)) == 3
    assert len(rows_of(section)[0]) == 1 + len(METRICS) + 2
    assert "by offline:image-text, **which the captions were optimised for**." in section
    assert "FUSE" not in section


def test_the_same_dataset_in_another_split_is_not_compared() -> None:
    assert "FUSE" not in score_section("karpathy", "val", {"": scores()})


@pytest.mark.parametrize(
    ("metric", "value", "shown"),
    [
        ("cider", Score(0.4929), "49.29"),
        ("fluency", Score(2.5), "2.500"),
        ("meteor", None, "-"),
        ("spice", Score(None, "x"), "-"),
        ("sentiment_accuracy:vader", Score(0.5), "50.00"),
        ("sentiment_accuracy", Score(0.838, by="j", independent=True), "83.80"),
    ],
)
def test_percent_and_other_numbers(metric, value, shown) -> None:
    assert show(metric, value) == shown


def test_published_rows_are_percent_and_name_known_metrics() -> None:
    for asked in (
        ("karpathy", "test"),
        ("nocaps", "val"),
        ("senticap", "test", "positive"),
        ("senticap", "test", "negative"),
    ):
        rows = published_rows(*asked)
        assert rows[0]["name"] == "FUSE"
        for row in rows:
            assert row["source"]
            assert set(row["scores"]) <= PERCENT
            assert all(1.0 < value < 200.0 for value in row["scores"].values())
