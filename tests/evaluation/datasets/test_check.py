"""What `check_dataset` finds in a folder."""

from pathlib import Path

from fuseprompt.evaluation.datasets.read import check_dataset
from tests.evaluation.datasets import fixtures


def test_a_complete_folder(tmp_path: Path) -> None:
    check = check_dataset("folder", fixtures.write_folder(tmp_path))
    assert (check["images"], check["references"], check["captions_to_write"]) == (3, 4, 3)
    assert check["complete"]


def test_missing_and_empty_images_are_counted_once_each(tmp_path: Path) -> None:
    root = fixtures.write_senticap(tmp_path)
    (root / "val2014" / fixtures.coco_name(7)).unlink()
    (root / "val2014" / fixtures.coco_name(12)).write_bytes(b"")
    check = check_dataset("senticap", root)
    assert (check["images"], check["captions_to_write"], check["missing"]) == (2, 4, 2)
    assert check["by_sentiment"] == {"negative": 2, "positive": 2}
    assert check["first_missing"][0].endswith(fixtures.coco_name(7))
    assert not check["complete"]


def test_domains_are_counted(tmp_path: Path) -> None:
    check = check_dataset("nocaps", fixtures.write_nocaps(tmp_path))
    assert check["by_domain"] == {"in-domain": 1, "near-domain": 1, "out-domain": 1}
    assert (check["missing"], check["complete"]) == (0, False)  # 3 of 4,500 images
