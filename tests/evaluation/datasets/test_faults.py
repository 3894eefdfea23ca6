"""What is wrong in a file is told with the file, the row and the field."""

import json
import os
from pathlib import Path

import pytest

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets import read_dataset
from tests.evaluation.datasets import fixtures
from tests.evaluation.datasets.fixtures import (
    coco_form,
    coco_name,
    karpathy_form,
    write_json,
)


def test_unknown_names_list_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(
        DatasetError, match=r"'coc' is no dataset, expected one of coco, kar.*coco\?"
    ):
        read_dataset("coc", tmp_path)
    with pytest.raises(DatasetError, match=r"'val' is no split of coco, expected one of val2014"):
        read_dataset("coco", tmp_path, split="val")


def test_a_missing_file_is_named_with_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"expected one of captions_val2014\.json there or in"):
        read_dataset("coco", tmp_path)
    with pytest.raises(DatasetError, match="no such folder"):
        read_dataset("coco", tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    for name in ("coco", "folder"):
        with pytest.raises(DatasetError, match=r"pipe: is no folder\. --root is the folder"):
            read_dataset(name, tmp_path / "pipe")


def test_a_split_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="split 'val' has no images"):
        read_dataset("karpathy", fixtures.write_karpathy(tmp_path), split="val")


def test_an_id_of_two_images_is_refused(tmp_path: Path) -> None:
    form = coco_form()
    form["images"][2]["id"] = 7
    form["annotations"] = []
    file = write_json(tmp_path / "captions_val2014.json", form)
    with pytest.raises(DatasetError, match=r"images 2: the id is 7, the image is .*139\.jpg'"):
        read_dataset("coco", file)
    for image in form["images"]:
        image["file_name"] = f"image_{image['height']}_{image['id']}.jpg"
        image["height"] += 1
    form["images"][2]["file_name"] = "another_7.jpg"
    write_json(file, form)
    with pytest.raises(DatasetError, match=r"images 2: id 7 stands for 'another_7\.jpg' here and"):
        read_dataset("coco", file)
    rows = [{"image": "x_7.jpg", "caption": "A."}, {"image": "y_7.jpg", "caption": "B."}]
    file = write_json(tmp_path / "list.json", rows)
    with pytest.raises(DatasetError, match=r"entry 1: id 7 stands for 'y_7\.jpg' here and for"):
        read_dataset("karpathy", file)


def test_id_and_name_must_agree(tmp_path: Path) -> None:
    form = coco_form()
    form["images"][0]["file_name"] = coco_name(8)
    file = write_json(tmp_path / "captions_val2014.json", form)
    with pytest.raises(DatasetError, match=r"the id is 7, the image is 'COCO_val2014_0+8\.jpg'"):
        read_dataset("coco", file)


def test_a_caption_of_an_unknown_image_is_refused(tmp_path: Path) -> None:
    form = coco_form()
    form["annotations"][3]["image_id"] = 99
    file = write_json(tmp_path / "captions_val2014.json", form)
    with pytest.raises(DatasetError, match="annotations 3: image_id 99 is not among the images"):
        read_dataset("coco", file)


def test_empty_captions_are_left_out_and_told(tmp_path: Path) -> None:
    form = coco_form()
    for note in form["annotations"]:
        if note["image_id"] == 12:
            note["caption"] = " \n"
    file = write_json(tmp_path / "captions_val2014.json", form)
    dataset = read_dataset("coco", file)
    assert dataset.items[1].references == ()
    assert "1 empty captions left out, the first at captions_val2014.json: images 1" in (
        dataset.notes
    )
    assert "1 images without a caption, the first is 12" in dataset.notes


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('{"images": [', r"no JSON in line 1, column \d+ .*cut short"),
        ('{"a": 1}\n{"a": 2}', r"one object a line, let its name end in \.jsonl"),
        ('{"7": ["A kite."]}', "expected the field 'images', found 7"),
        ("<!DOCTYPE html>", "a web page, not data"),
        ("version https://git-lfs.github.com/spec/v1", "a Git LFS pointer"),
        ("[1]", r"entry 0: is 1, expected an object"),
        ('[{"caption": "A."}]', r"entry 0: expected the field image or image_id; found caption"),
        ('[{"image_id": 7, "caption": [3]}]', r"entry 0: caption 0 is 3, expected a text"),
        ('[{"image_id": 7, "caption": NaN}]', r"entry 0: caption 0 is nan, expected a text"),
        ('[{"image_id": NaN}]', r"image_id is nan, expected a whole number or a text"),
        ('[{"image_id": null, "a": 1}]', r"image or image_id; found a, image_id \(null\)"),
        ('[{"image_id": true}]', r"entry 0: image_id is True, expected a whole number or a text"),
        ('{"images": [{"id": 7.5}], "annotations": []}', r"images 0: id is 7\.5, expected a whole"),
        ('{"images": [], "annotations": 3}', r"annotations is 3, expected a list of objects"),
        (
            '{"images": [], "annotations": [{"image_id": 7}]}',
            r"annotations 0: expected the field 'caption', found image_id",
        ),
        (
            '{"images": [{"id": null, "file_name": "a"}], "annotations": []}',
            r"images 0: expected the field 'id', found file_name, id \(null\)",
        ),
        ('[{"image": "kite.jpg", "caption": "A."}]', "expected a COCO image id or a name such as"),
        ('[{"image": "..", "image_id": 7}]', r"'\.\.' is no name of an image file"),
        ("[" * 100_000, "JSON that cannot be read"),
    ],
)
def test_a_fault_is_told_with_its_place(content: str, fault: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(content)
    with pytest.raises(DatasetError, match=fault):
        read_dataset("karpathy", file)


def test_bytes_that_are_not_utf_8_are_told(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(b'{"7": "caf\xe9"}')
    with pytest.raises(DatasetError, match=r"byte 10 is not UTF-8.*iconv"):
        read_dataset("karpathy", file)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps([{"image_id": 7, "captions": "café"}]), encoding="utf-8-sig")
    assert read_dataset("karpathy", file).items[0].references == ("café",)


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("x.jsonl", '{"image_id": 7}\n\n{"image', r"x\.jsonl: line 3: no JSON"),
        ("x.tsv", "7.jpg\tA kite.\n8.jpg\n", r"x\.tsv: line 2: expected an image's name, a tab"),
    ],
)
def test_a_fault_in_a_line_is_told_with_its_number(
    name: str, content: str, fault: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(DatasetError, match=fault):
        read_dataset("karpathy", file)


def test_a_folder_that_no_file_system_can_have_is_a_missing_one(tmp_path: Path) -> None:
    form = karpathy_form()
    form["images"][0]["filepath"] = "half \ud83d emoji"
    item = read_dataset("karpathy", write_json(tmp_path / "dataset_coco.json", form)).items[0]
    assert (item.id, item.image.is_file()) == ("7", False)
