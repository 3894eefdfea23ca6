"""Plain folders, with captions in every layout and without."""

from pathlib import Path

import pytest

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets import read_dataset
from tests.evaluation.datasets import fixtures
from tests.evaluation.datasets.fixtures import (
    write_images,
    write_json,
)


def test_a_folder_without_captions_is_a_dataset(tmp_path: Path) -> None:
    write_images(tmp_path, ["b.png", "a.jpg"])
    dataset = read_dataset("folder", tmp_path)
    assert [item.id for item in dataset.items] == ["a.jpg", "b.png"]
    assert dataset.notes == ()


def test_a_folder_says_which_images_have_no_captions(tmp_path: Path) -> None:
    root = fixtures.write_folder(tmp_path)
    write_images(root, ["z.jpg"])
    dataset = read_dataset("folder", root)
    assert dataset.items[1].references == ("A door. Green.",)
    assert dataset.items[3].references == ()
    assert dataset.notes == ("1 images are not in captions.jsonl, the first is z.jpg",)


@pytest.mark.parametrize("name", ["captions.json", "captions.tsv"])
def test_captions_of_a_folder_in_other_layouts(name: str, tmp_path: Path) -> None:
    write_images(tmp_path, ["a.jpg", "b.jpg"])
    if name == "captions.json":
        rows = [{"image": "a.jpg", "caption": "A kite."}]
        write_json(tmp_path / name, [*rows, {"image": "b.jpg", "captions": ["A door.", "Door."]}])
    else:
        (tmp_path / name).write_text(
            "image\tcaption\r\na.jpg\tA kite.\r\nb.jpg\tA door.\tDoor.\r\n"
        )
    items = read_dataset("folder", tmp_path).items
    assert [(item.id, item.references) for item in items] == [
        ("a.jpg", ("A kite.",)),
        ("b.jpg", ("A door.", "Door.")),
    ]


def test_a_caption_of_an_image_that_is_not_there_stays_an_item(tmp_path: Path) -> None:
    root = fixtures.write_folder(tmp_path)
    (root / "b.png").unlink()
    assert [item.image.is_file() for item in read_dataset("folder", root).items] == [1, 0, 1]


def test_sentiments_asked_of_plain_captions_are_told(tmp_path: Path) -> None:
    dataset = read_dataset("folder", fixtures.write_folder(tmp_path), sentiment="both")
    assert [(i.id, i.sentiment) for i in dataset.items][:2] == [
        ("a.jpg", "negative"),
        ("a.jpg", "positive"),
    ]
    assert "have no sentiment" in dataset.notes[-1]


@pytest.mark.parametrize("missing", [True, False])
def test_a_folder_must_exist_and_have_images(missing: bool, tmp_path: Path) -> None:
    root = tmp_path / "nowhere" if missing else tmp_path
    with pytest.raises(DatasetError, match="no such folder" if missing else "has no image files"):
        read_dataset("folder", root)


@pytest.mark.parametrize(
    ("named", "id_"),
    [
        ("sub/a.jpg", "sub/a.jpg"),
        ("sub\\a.jpg", "sub/a.jpg"),
        ("../b.jpg", "b.jpg"),
        ("C:\\photos\\b.jpg", "b.jpg"),
        ("gone/c.jpg", "gone/c.jpg"),
    ],
)
def test_ids_are_places_in_the_folder(named: str, id_: str, tmp_path: Path) -> None:
    write_images(tmp_path, ["b.jpg", "sub/a.jpg"])
    write_json(tmp_path / "captions.json", [{"image": named, "caption": "A kite."}])
    items = read_dataset("folder", tmp_path).items
    assert [item.id for item in items] == sorted({"b.jpg", id_})
    assert next(item for item in items if item.id == id_).references == ("A kite.",)
