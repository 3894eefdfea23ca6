"""SentiCap: sentiments, and images that are listed twice."""

from pathlib import Path

import pytest

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets import read_dataset
from tests.evaluation.datasets import fixtures
from tests.evaluation.datasets.fixtures import (
    karpathy_form,
    senticap_form,
    write_json,
)


def test_senticap_has_an_item_for_each_sentiment_and_joins_entries(tmp_path: Path) -> None:
    dataset = read_dataset("senticap", fixtures.write_senticap(tmp_path))
    assert [(item.id, item.sentiment, item.references) for item in dataset.items] == [
        ("7", "negative", ("a torn kite.",)),
        ("7", "positive", ("a lovely kite.", "a fine kite.")),
        ("12", "negative", ("an ugly door.",)),
        ("12", "positive", ("a pretty door.",)),
    ]


def test_senticap_sentiments_and_splits_can_be_chosen(tmp_path: Path) -> None:
    root = fixtures.write_senticap(tmp_path)
    positive = read_dataset("senticap", root, split="all", sentiment="positive").items
    assert [item.id for item in positive] == ["7", "12", "139"]
    assert read_dataset("senticap", root, sentiment="both") == read_dataset("senticap", root)
    with pytest.raises(
        DatasetError, match=r"'postive' is no sentiment of senticap.*mean positive\?"
    ):
        read_dataset("senticap", root, sentiment="postive")


def test_a_third_sentiment_is_refused(tmp_path: Path) -> None:
    form = senticap_form()
    form["images"][0]["sentences"][1]["sentiment"] = 2
    file = write_json(tmp_path / "senticap_dataset.json", form)
    with pytest.raises(DatasetError, match=r"images 0: sentences 1: sentiment is 2, expected 1"):
        read_dataset("senticap", file)


def test_captions_without_a_sentiment_are_refused(tmp_path: Path) -> None:
    file = write_json(tmp_path / "senticap_dataset.json", karpathy_form())
    with pytest.raises(DatasetError, match=r"images 0: sentiment is '', expected one of negative"):
        read_dataset("senticap", file)
