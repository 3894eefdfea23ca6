"""Every dataset in every form, from invented files: ids, captions, images, splits and faults."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets import NAMES, SOURCES, read_dataset
from tests.evaluation.datasets import fixtures
from tests.evaluation.datasets.fixtures import (
    CAPTIONS,
    CLEAN,
    WRITERS,
    coco_form,
    coco_name,
    karpathy_form,
    nocaps_form,
    senticap_form,
    write_images,
    write_json,
)


def test_every_dataset_has_a_fixture() -> None:
    assert tuple(WRITERS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_dataset_has_its_items_in_order_with_images(name: str, tmp_path: Path) -> None:
    write, ids = WRITERS[name]
    dataset = read_dataset(name, write(tmp_path))
    assert [item.id for item in dataset.items] == ids
    assert all(item.image.is_file() for item in dataset.items)
    assert all(item.references for item in dataset.items)
    assert (dataset.name, dataset.split) == (name, SOURCES[name].splits[0])
    assert len(dataset.fingerprint) == 64


@pytest.mark.parametrize("name", [name for name in NAMES if name != "folder"])
def test_counts_that_differ_from_the_published_are_notes(name: str, tmp_path: Path) -> None:
    notes = read_dataset(name, WRITERS[name][0](tmp_path)).notes
    published = SOURCES[name].counts[SOURCES[name].splits[0]]
    assert any(f"published are {published.images:,}" in note for note in notes)
    assert any(f"published are {published.captions:,}" in note for note in notes)


# --- COCO and the Karpathy split ------------------------------------------------------------------


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


def _capdec() -> list[dict[str, object]]:
    return [
        {"image_id": number, "caption": caption, "id": index}
        for number, captions in CAPTIONS.items()
        for index, caption in enumerate(captions)
    ]


def _capdec_metrics() -> dict[str, object]:
    notes = _capdec()
    return {"images": [{"id": note["image_id"]} for note in notes], "annotations": notes}


def _magic() -> list[dict[str, object]]:
    return [
        {
            "split": "test",
            "image_name": coco_name(number),
            "file_path": f"../data/val2014/{coco_name(number)}",
            "captions": list(captions),
        }
        for number, captions in CAPTIONS.items()
    ]


#: What others made of the Karpathy split: file, content.
DERIVED: dict[str, tuple[str, Callable[[], object]]] = {
    "BLIP's ground truth": ("annotations/coco_karpathy_test_gt.json", lambda: coco_form(False)),
    "LAVIS": (
        "coco_karpathy_test.json",
        lambda: [
            {"image": f"val2014/{coco_name(number)}", "caption": list(captions)}
            for number, captions in CAPTIONS.items()
        ],
    ),
    "MAGIC": ("mscoco_test.json", _magic),
    "CapDec": ("test_metrics_format.json", _capdec_metrics),
    "ViECap": (
        "test_captions.json",
        lambda: {coco_name(number): list(captions) for number, captions in CAPTIONS.items()},
    ),
}


@pytest.mark.parametrize("form", DERIVED)
def test_derived_forms_give_the_same_dataset(form: str, tmp_path: Path) -> None:
    file, make = DERIVED[form]
    write_json(tmp_path / "own" / "dataset_coco.json", karpathy_form(("test",) * 3))
    write_images(tmp_path / "val2014", [coco_name(number) for number in CAPTIONS])
    write_json(tmp_path / file, make())
    dataset = read_dataset("karpathy", tmp_path)
    assert dataset.fingerprint == read_dataset("karpathy", tmp_path / "own").fingerprint
    assert [item.image for item in dataset.items] == [
        tmp_path / "val2014" / coco_name(number) for number in CAPTIONS
    ]


def test_a_list_of_single_captions_is_joined(tmp_path: Path) -> None:
    file = write_json(tmp_path / "test.json", _capdec())
    items = read_dataset("karpathy", file).items
    assert [len(item.references) for item in items] == [2, 1, 2]


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
        "http://images.example/val2014/COCO_val2014_000000000007.jpg",
    ],
)
def test_paths_of_other_machines_stay_inside_the_folder(name: str, tmp_path: Path) -> None:
    root = fixtures.write_coco(tmp_path / "data")
    file = write_json(root / "x.json", [{"image": name, "caption": "A kite."}])
    (item,) = read_dataset("karpathy", file).items
    assert (item.id, item.image) == ("7", root / "val2014" / coco_name(7))


# --- NoCaps ---------------------------------------------------------------------------------------


def test_nocaps_has_domains_and_its_own_ids(tmp_path: Path) -> None:
    dataset = read_dataset("nocaps", fixtures.write_nocaps(tmp_path))
    assert [item.domain for item in dataset.items] == ["near-domain", "in-domain", "out-domain"]
    assert dataset.items[1].image.name == "00a1.jpg"
    assert "1 images are in-domain, published are 648" in dataset.notes


def test_nocaps_without_captions_or_domains_says_so(tmp_path: Path) -> None:
    form = nocaps_form()
    del form["annotations"]
    for image in form["images"]:
        del image["domain"]
    write_json(tmp_path / "nocaps_val_image_info.json", form)
    dataset = read_dataset("nocaps", tmp_path)
    assert all(not item.references for item in dataset.items)
    assert any("can be written, not scored" in note for note in dataset.notes)
    assert any("names no domains" in note for note in dataset.notes)


def test_nocaps_as_viecap_writes_it(tmp_path: Path) -> None:
    rows = [
        {"split": "near_domain", "image_id": "4499.jpg", "caption": ["A bear.", "Bear."]},
        {"split": "out_domain", "image_id": "3.jpg", "caption": ["A gnu."]},
    ]
    write_json(tmp_path / "nocaps_corpus.json", rows)
    write_images(tmp_path, ["near_domain/4499.jpg", "3.jpg"])
    items = read_dataset("nocaps", tmp_path).items
    assert [(item.id, item.domain) for item in items] == [
        ("3", "out-domain"),
        ("4499", "near-domain"),
    ]
    assert all(item.image.is_file() for item in items)


def test_an_unknown_domain_is_refused(tmp_path: Path) -> None:
    form = nocaps_form()
    form["images"][1]["domain"] = "mid-domain"
    write_json(tmp_path / "nocaps_val_4500_captions.json", form)
    with pytest.raises(DatasetError, match=r"images 1: domain is 'mid-domain', expected one of"):
        read_dataset("nocaps", tmp_path)


def test_ids_of_open_images_are_refused(tmp_path: Path) -> None:
    file = write_json(tmp_path / "x.json", [{"image_id": "00aa", "caption": "A bear."}])
    with pytest.raises(DatasetError, match="expected a NoCaps image id"):
        read_dataset("nocaps", file)


# --- SentiCap and FlickrStyle10K ------------------------------------------------------------------


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


def test_flickrstyle_joins_names_and_captions_of_both_encodings(tmp_path: Path) -> None:
    dataset = read_dataset("flickrstyle10k", fixtures.write_flickrstyle(tmp_path))
    assert [(item.id, item.sentiment, item.references[0]) for item in dataset.items] == [
        ("1000", "humorous", "a dog digs for gold ."),
        ("1000", "romantic", "two hearts on the track, in love ."),
        ("36979", "humorous", "the café is on strike ."),
        ("36979", "romantic", "a kiss ."),
    ]


def test_flickrstyle_refuses_lists_of_different_lengths(tmp_path: Path) -> None:
    root = fixtures.write_flickrstyle(tmp_path)
    (root / "FlickrStyle_v0.9" / "humor" / "funny_train.txt").write_text("one line\n")
    with pytest.raises(DatasetError, match=r"1 captions, but 2 names in humor/train\.p"):
        read_dataset("flickrstyle10k", root)


def test_flickrstyle_takes_photos_under_their_full_names(tmp_path: Path) -> None:
    root = fixtures.write_flickrstyle(tmp_path)
    write_images(root / "images", ["1000_03d333.jpg"])
    assert read_dataset("flickrstyle10k", root).items[0].image.name == "1000_03d333.jpg"


# --- Flickr30k ------------------------------------------------------------------------------------


def test_the_token_file_has_no_splits(tmp_path: Path) -> None:
    (tmp_path / "results_20130124.token").write_text("1000.jpg#0\tA kite .\n1000.jpg#1\tKite .\n")
    with pytest.raises(DatasetError, match=r"names no splits.* take split all"):
        read_dataset("flickr30k", tmp_path)
    (item,) = read_dataset("flickr30k", tmp_path, split="all").items
    assert (item.id, item.references) == ("1000", ("A kite .", "Kite ."))


def test_a_photo_without_a_number_is_refused(tmp_path: Path) -> None:
    file = write_json(tmp_path / "x.json", {"kite.jpg": ["A kite."]})
    with pytest.raises(DatasetError, match=r"expected a photo's name such as 1000092795\.jpg"):
        read_dataset("flickr30k", file)


# --- folders --------------------------------------------------------------------------------------


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
def test_captions_of_a_folder_in_other_forms(name: str, tmp_path: Path) -> None:
    write_images(tmp_path, ["a.jpg", "b.jpg"])
    if name == "captions.json":  # CLIPScore: ids without the ending
        write_json(tmp_path / name, {"a": ["A kite."], "b": ["A door.", "Door."]})
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


def test_tones_asked_of_plain_captions_are_told(tmp_path: Path) -> None:
    dataset = read_dataset("folder", fixtures.write_folder(tmp_path), sentiment="both")
    assert [(i.id, i.sentiment) for i in dataset.items][:2] == [
        ("a.jpg", "negative"),
        ("a.jpg", "positive"),
    ]
    assert "have no tone" in dataset.notes[-1]


@pytest.mark.parametrize("missing", [True, False])
def test_a_folder_must_exist_and_have_images(missing: bool, tmp_path: Path) -> None:
    root = tmp_path / "nowhere" if missing else tmp_path
    with pytest.raises(DatasetError, match="no such folder" if missing else "has no image files"):
        read_dataset("folder", root)


# --- faults ---------------------------------------------------------------------------------------


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


def test_a_split_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="split 'val' has no images"):
        read_dataset("karpathy", fixtures.write_karpathy(tmp_path), split="val")


def test_an_id_of_two_images_is_refused(tmp_path: Path) -> None:
    form = coco_form()
    form["images"][2]["id"] = 7
    form["annotations"] = []
    file = write_json(tmp_path / "captions_val2014.json", form)
    with pytest.raises(DatasetError, match=r"images 2: id 7 stands for .*139\.jpg' here and for"):
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
        ("<!DOCTYPE html>", "a web page, not data"),
        ("version https://git-lfs.github.com/spec/v1", "a Git LFS pointer"),
        ("[1]", r"entry 0: is 1, expected an object"),
        ('[{"caption": "A."}]', r"entry 0: expected one of the fields file_name, .*found caption"),
        ('[{"image_id": 7, "caption": [3]}]', r"entry 0: caption 0 is int, expected a text"),
        ('[{"image_id": true}]', r"entry 0: image_id is True, expected a whole number or a text"),
        ('{"images": [{"id": 7.5}], "annotations": []}', r"images 0: id is 7\.5, expected a whole"),
        ('{"images": [], "annotations": 3}', r"annotations is 3, expected a list of objects"),
        (
            '{"images": [], "annotations": [{"image_id": 7}]}',
            r"annotations 0: expected the field 'caption', found image_id",
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
    file.write_text(json.dumps({"7": "café"}), encoding="utf-8-sig")
    assert read_dataset("karpathy", file).items[0].references == ("café",)


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("x.jsonl", '{"image_id": 7}\n\n{"image', r"x\.jsonl: line 3: no JSON"),
        ("x.tsv", "7.jpg\tA kite.\n8.jpg\n", r"x\.tsv: line 2: expected an image's name, a tab"),
        ("x.csv", "7.jpg,2,A kite.\n", r"x\.csv: line 1: expected FILENAME,1 or 0,CAPTION"),
    ],
)
def test_a_fault_in_a_line_is_told_with_its_number(
    name: str, content: str, fault: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(DatasetError, match=fault):
        read_dataset("karpathy", file)
