"""Captions are read from every layout, and each finds its image or an error says which did not."""

import json
from pathlib import Path

import pytest

from fuseprompt.errors import DatasetError, MetricError
from fuseprompt.evaluation.datasets.base import Item
from fuseprompt.evaluation.metrics.predictions import (
    Prediction,
    match,
    optimised_models,
    read_predictions,
)

ITEMS = (
    Item("7", Path("val2014/COCO_val2014_000000000007.jpg"), ("A red kite.",)),
    Item("9", Path("val2014/COCO_val2014_000000000009.jpg"), ("A dog.",)),
)
CAPTIONS = {"7": "A kite.", "9": "A cat."}

LAYOUTS = {
    "coco.json": [{"image_id": 7, "caption": "A kite."}, {"image_id": 9, "caption": "A cat."}],
    "magic.json": [
        {
            "split": "test",
            "image_name": f"COCO_val2014_00000000000{n}.jpg",
            "captions": ["Not this."],
            "prediction": caption,
        }
        for n, caption in CAPTIONS.items()
    ],
    "mapping.json": CAPTIONS,
    "viecap.json": {f"/data/val2014/COCO_val2014_00000000000{n}": [c] for n, c in CAPTIONS.items()},
}


def write(file: Path, content: object) -> Path:
    """Write JSON, or JSON lines where the file is called so."""
    is_lines = file.suffix == ".jsonl"
    assert isinstance(content, list | dict)
    lines = content if is_lines else [content]
    file.write_text("\n".join(json.dumps(line) for line in lines))
    return file


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_gives_the_same_captions(tmp_path: Path, name: str) -> None:
    assert match(read_predictions([write(tmp_path / name, LAYOUTS[name])]), ITEMS) == CAPTIONS


def test_json_lines_of_ours_and_the_folder_of_a_run(tmp_path: Path) -> None:
    lines = [
        {"id": "7", "caption": "A kite.", "text": "An image of a kite.", "ok": True},
        {"id": "9", "ok": False, "error": "torn"},
    ]
    write(tmp_path / "captions.jsonl", lines)
    assert match(read_predictions([tmp_path]), ITEMS) == {"7": "A kite."}
    found = read_predictions([tmp_path], field="text")
    assert match(found, ITEMS) == {"7": "An image of a kite."}
    one = write(tmp_path / "one.json", {"image": "x/COCO_val2014_000000000009.jpg", "text": "A."})
    assert match(read_predictions([one]), ITEMS) == {"9": "A."}


def test_a_run_names_the_models_that_it_optimised_for(tmp_path: Path) -> None:
    assert optimised_models([tmp_path, tmp_path / "x.json"]) == ()
    models = {"lm": "offline:lm", "image_text": "offline:image-text"}
    write(tmp_path / "settings.json", {"settings": {"models": models}})
    assert optimised_models([tmp_path]) == ("offline:lm", "offline:image-text")


def test_shards_are_joined(tmp_path: Path) -> None:
    first = write(tmp_path / "0.json", LAYOUTS["coco.json"][:1])  # type: ignore[index]
    second = write(tmp_path / "1.jsonl", LAYOUTS["coco.json"][1:])  # type: ignore[index]
    assert match(read_predictions([first, second]), ITEMS) == CAPTIONS


def test_captions_stay_as_written_for_what_scores_them(tmp_path: Path) -> None:
    odd = {"7": "A red\u2028kite\f<|endoftext|>", "9": ""}
    file = write(tmp_path / "c.json", odd)
    assert match(read_predictions([file]), ITEMS) == odd


def test_two_captions_for_one_image_are_refused(tmp_path: Path) -> None:
    twice = [{"image_id": 7, "caption": "A."}, {"image_id": "7", "caption": "A."}]
    file = write(tmp_path / "c.json", twice)
    with pytest.raises(MetricError, match=r"entry 1: a second caption for image 7; the first is"):
        match(read_predictions([file]), ITEMS)


def test_captions_for_unknown_images_are_named() -> None:
    found = [Prediction(f"line {n}", (str(n),), "A.") for n in range(100, 107)]
    with pytest.raises(MetricError, match=r"100 \(line 100\), .* and 2 more\. .* such as 7"):
        match(found, ITEMS)


def test_only_captions_of_the_sentiment_are_taken() -> None:
    found = [
        Prediction("line 1", ("7",), "A lovely kite.", "positive"),
        Prediction("line 2", ("7",), "A sad kite.", "negative"),
        Prediction("line 3", ("9",), "A dog."),
    ]
    assert match(found, ITEMS, sentiment="negative") == {"7": "A sad kite.", "9": "A dog."}
    with pytest.raises(MetricError, match="or --sentiment"):
        match(found, ITEMS)


def test_a_name_that_two_images_share_is_no_name() -> None:
    items = (Item("1", Path("a/x.jpg")), Item("2", Path("b/x.jpg")))
    with pytest.raises(MetricError, match="not in the split"):
        match([Prediction("line 1", ("x.jpg",), "A.")], items)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "no captions"),
        ('{"image_id": 7', "no JSON in line 1"),
        ('{"id": "7", "caption": "A."}\n{"id": "9", "capt', r"let its name end in \.jsonl"),
        ('[{"caption": "A."}]', "entry 0: expected one of image_id, .*; found caption"),
        ('[{"image_id": true, "caption": "A."}]', "entry 0: image_id is True, expected a whole"),
        ('[{"image_id": 7, "caption": 3}]', "the caption is 3, expected a text"),
        ('[{"image_id": 7, "caption": NaN}]', "the caption is nan, expected a text"),
        ('[{"image_id": null, "caption": "A."}]', r"found caption, image_id \(null\)\."),
        ('{"7": ["A.", "B."]}', "the caption is a list of 2, expected a text"),
        ("[7]", "expected an object"),
        ("<html>", "a web page, not data"),
    ],
)
def test_faults_say_where_they_are(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "c.json"
    file.write_text(text)
    with pytest.raises((MetricError, DatasetError), match=message):
        read_predictions([file])


def test_a_file_that_is_cut_short_is_said(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_text('{"id": "7", "caption": "A."}\n{"id": "9", "capt')
    with pytest.raises(DatasetError, match=r"line 2: no JSON .* cut short"):
        read_predictions([file])


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="cannot be read"):
        read_predictions([tmp_path / "none.json"])
