"""COCO and its Karpathy split: ids, places of images, splits."""

from pathlib import Path

import pytest

from fuseprompt.evaluation.datasets import read_dataset
from tests.evaluation.datasets import fixtures
from tests.evaluation.datasets.fixtures import (
    CAPTIONS,
    CLEAN,
    coco_form,
    coco_name,
    karpathy_form,
    write_images,
    write_json,
)


def test_captions_are_cleaned_and_in_the_order_of_their_ids(tmp_path: Path) -> None:
    items = read_dataset("coco", fixtures.write_coco(tmp_path)).items
    assert tuple(item.references for item in items[:2]) == CLEAN


def test_root_may_be_the_annotation_file(tmp_path: Path) -> None:
    root = fixtures.write_coco(tmp_path)
    by_folder = read_dataset("coco", root)
    assert read_dataset("coco", root / "annotations" / "captions_val2014.json") == by_folder


def test_the_fingerprint_depends_on_captions_and_not_on_places(tmp_path: Path) -> None:
    one = read_dataset("coco", fixtures.write_coco(tmp_path / "one"))
    assert read_dataset("coco", fixtures.write_coco(tmp_path / "two")).fingerprint == (
        one.fingerprint
    )
    form = coco_form()
    form["annotations"][0]["caption"] += " Again."
    write_json(tmp_path / "two" / "annotations" / "captions_val2014.json", form)
    assert read_dataset("coco", tmp_path / "two").fingerprint != one.fingerprint


def test_train_has_restval_and_test_never_has(tmp_path: Path) -> None:
    root = fixtures.write_karpathy(tmp_path)
    write_json(root / "dataset_coco.json", karpathy_form(("test", "restval", "train")))

    def ids(split: str) -> list[str]:
        return [item.id for item in read_dataset("karpathy", root, split=split).items]

    assert (ids("test"), ids("train"), ids("restval")) == (["7"], ["12", "139"], ["12"])


def test_a_list_gives_the_same_dataset(tmp_path: Path) -> None:
    write_json(tmp_path / "own" / "dataset_coco.json", karpathy_form(("test",) * 3))
    write_images(tmp_path / "val2014", [coco_name(number) for number in CAPTIONS])
    rows = [
        {"image": f"val2014/{coco_name(number)}", "caption": caption}
        for number, captions in CAPTIONS.items()
        for caption in captions
    ]
    dataset = read_dataset("karpathy", write_json(tmp_path / "test.json", rows))
    assert dataset.fingerprint == read_dataset("karpathy", tmp_path / "own").fingerprint
    assert [item.image for item in dataset.items] == [
        tmp_path / "val2014" / coco_name(number) for number in CAPTIONS
    ]


def test_images_may_have_ids_and_no_names(tmp_path: Path) -> None:
    write_images(tmp_path / "val2014", [coco_name(number) for number in CAPTIONS])
    file = write_json(tmp_path / "annotations" / "coco_karpathy_test_gt.json", coco_form(False))
    items = read_dataset("karpathy", file).items
    assert [item.image for item in items] == [
        tmp_path / "val2014" / coco_name(number) for number in CAPTIONS
    ]


@pytest.mark.parametrize("id_", [7, "7", 7.0, "0007"])
def test_ids_may_be_numbers_or_texts(id_: object, tmp_path: Path) -> None:
    file = write_json(tmp_path / "x.json", [{"image_id": id_, "caption": "A kite."}])
    assert read_dataset("karpathy", file).items[0].id == "7"


@pytest.mark.parametrize(
    "name",
    [
        "val2014\\COCO_val2014_000000000007.jpg",
        "C:\\Users\\ann\\val2014\\COCO_val2014_000000000007.jpg",
        "/home/ann/COCO_val2014_000000000007.jpg",
        "../../../etc/COCO_val2014_000000000007.jpg",
        "../../outside/COCO_val2014_000000000007.jpg",
        "http://images.example/val2014/COCO_val2014_000000000007.jpg",
    ],
)
def test_paths_of_other_machines_stay_inside_the_folder(name: str, tmp_path: Path) -> None:
    root = fixtures.write_coco(tmp_path / "data")
    write_images(tmp_path / "outside", [coco_name(7)])
    file = write_json(root / "x.json", [{"image": name, "caption": "A kite."}])
    (item,) = read_dataset("karpathy", file).items
    assert (item.id, item.image) == ("7", root / "val2014" / coco_name(7))


def test_images_of_train_are_found_by_id_alone(tmp_path: Path) -> None:
    file = write_json(tmp_path / "train.json", [{"image_id": 9, "caption": "A kite."}])
    write_images(tmp_path / "train2014", [coco_name(9, "train2014")])
    (item,) = read_dataset("karpathy", file, split="train").items
    assert item.image == tmp_path / "train2014" / coco_name(9, "train2014")


@pytest.mark.parametrize("folder", ["train2017", "images/val2017"])
def test_the_same_images_under_the_names_of_2017(folder: str, tmp_path: Path) -> None:
    write_json(tmp_path / "dataset_coco.json", karpathy_form(("test",) * 3))
    write_images(tmp_path / folder, [f"{number:012d}.jpg" for number in CAPTIONS])
    items = read_dataset("karpathy", tmp_path).items
    assert [item.image for item in items] == [
        tmp_path / folder / f"{number:012d}.jpg" for number in CAPTIONS
    ]


def test_a_file_of_another_split_is_told(tmp_path: Path) -> None:
    file = write_json(tmp_path / "coco_karpathy_val_gt.json", coco_form())
    note = "coco_karpathy_val_gt.json names no split: all of it is taken for test"
    assert note in read_dataset("karpathy", file).notes
    assert note not in read_dataset("karpathy", file, split="val").notes


def test_a_missing_image_is_expected_in_the_folder_of_its_split(tmp_path: Path) -> None:
    write_json(tmp_path / "captions_train2014.json", coco_form(False))
    item = read_dataset("coco", tmp_path, split="train2014").items[0]
    assert item.image == tmp_path / "train2014" / coco_name(7, "train2014")
    write_json(tmp_path / "captions_val2017.json", coco_form(False))
    item = read_dataset("coco", tmp_path, split="val2017").items[0]
    assert item.image == tmp_path / "val2017" / "000000000007.jpg"
