"""Flickr30k: the token file, and names that are no photos."""

from pathlib import Path

import pytest

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets import read_dataset
from tests.evaluation.datasets.fixtures import (
    write_json,
)


def test_the_token_file_has_no_splits(tmp_path: Path) -> None:
    (tmp_path / "results_20130124.token").write_text("1000.jpg#0\tA kite .\n1000.jpg#1\tKite .\n")
    with pytest.raises(DatasetError, match=r"names no splits.* take split all"):
        read_dataset("flickr30k", tmp_path)
    (item,) = read_dataset("flickr30k", tmp_path, split="all").items
    assert (item.id, item.references) == ("1000", ("A kite .", "Kite ."))


def test_a_photo_without_a_number_is_refused(tmp_path: Path) -> None:
    file = write_json(tmp_path / "x.json", [{"image": "kite.jpg", "captions": ["A kite."]}])
    with pytest.raises(DatasetError, match=r"expected a photo's name such as 1000092795\.jpg"):
        read_dataset("flickr30k", file)
