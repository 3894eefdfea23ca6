"""SentiCap: tones, images that are listed twice, and its derived forms."""

from pathlib import Path

import pytest

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets import read_dataset
from tests.evaluation.datasets import fixtures
from tests.evaluation.datasets.fixtures import (
    coco_name,
    senticap_form,
    write_json,
)


def test_senticap_has_an_item_for_each_tone_and_joins_entries(tmp_path: Path) -> None:
    dataset = read_dataset("senticap", fixtures.write_senticap(tmp_path))
    assert [(item.id, item.sentiment, item.references) for item in dataset.items] == [
        ("7", "negative", ("a torn kite.",)),
        ("7", "positive", ("a lovely kite.", "a fine kite.")),
        ("12", "negative", ("an ugly door.",)),
        ("12", "positive", ("a pretty door.",)),
    ]


def test_senticap_tones_and_splits_can_be_chosen(tmp_path: Path) -> None:
    root = fixtures.write_senticap(tmp_path)
    positive = read_dataset("senticap", root, split="all", sentiment="positive").items
    assert [item.id for item in positive] == ["7", "12", "139"]
    assert read_dataset("senticap", root, sentiment="both") == read_dataset("senticap", root)
    with pytest.raises(DatasetError, match=r"'postive' is no tone of senticap.*mean positive\?"):
        read_dataset("senticap", root, sentiment="postive")


def test_a_third_tone_is_refused(tmp_path: Path) -> None:
    form = senticap_form()
    form["images"][0]["sentences"][1]["sentiment"] = 2
    file = write_json(tmp_path / "senticap_dataset.json", form)
    with pytest.raises(DatasetError, match=r"images 0: sentences 1: sentiment is 2, expected 1"):
        read_dataset("senticap", file)


def test_senticap_as_ads_cap_writes_it(tmp_path: Path) -> None:
    rows = [
        {
            "captions": [
                {"raw": "a lovely kite.", "caption": ["a", "lovely"], "caption_style": ["lovely"]}
            ],
            "style": "positive",
            "filename": coco_name(7),
            "split": "test",
        }
    ]
    write_json(tmp_path / "dataset_senticap.json", rows)
    (item,) = read_dataset("senticap", tmp_path).items
    assert (item.id, item.sentiment, item.references) == ("7", "positive", ("a lovely kite.",))


def test_senticap_csv_keeps_quotes_that_nobody_escaped(tmp_path: Path) -> None:
    file = tmp_path / "senticap.csv"
    file.write_text(
        f'filename,is_positive_sentiment,caption\n{coco_name(7)},1,"a "lovely" kite, red."\n'
        f"{coco_name(7)},0,a torn kite.\n"
    )
    assert [(i.sentiment, i.references) for i in read_dataset("senticap", file).items] == [
        ("negative", ("a torn kite.",)),
        ("positive", ('a "lovely" kite, red.',)),
    ]
