"""Datasets of three invented images in the forms that real ones come in, written into a folder.

The captions are made up; the form of every field is that of the real files. Images are small plain
squares.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

#: COCO ids and captions. White space and line breaks are as odd as in the real file.
CAPTIONS: Mapping[int, tuple[str, ...]] = {
    7: ("A red kite over a pond. ", "The kite is\nred."),
    12: ("A GREEN DOOR",),
    139: ("Three cups on a shelf.", "Cups."),
}
CLEAN = (("A red kite over a pond.", "The kite is red."), ("A GREEN DOOR",))


def coco_name(number: int, split: str = "val2014") -> str:
    return f"COCO_{split}_{number:012d}.jpg"


def write_json(file: Path, content: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def write_images(folder: Path, names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (60 * index % 256, 120, 30)).save(file)


def coco_form(names: bool = True) -> dict[str, Any]:
    """COCO's form, annotations out of order as in the real file."""
    annotations = [
        {"image_id": number, "id": 100 * number + rank, "caption": caption}
        for number, captions in CAPTIONS.items()
        for rank, caption in enumerate(captions)
    ]
    return {
        "info": {"year": 2014, "version": "1.0"},
        "licenses": [{"id": 3, "url": "u", "name": "n"}],
        "images": [
            {"license": 3, "height": 8, "width": 8, "id": number}
            | ({"file_name": coco_name(number)} if names else {})
            for number in CAPTIONS
        ],
        "annotations": annotations[::-1],
    }


def karpathy_form(splits: Sequence[str] = ("test", "restval", "test")) -> dict[str, Any]:
    images = []
    for index, (number, captions) in enumerate(CAPTIONS.items()):
        sentences = [
            {"tokens": caption.lower().split(), "raw": caption, "imgid": index, "sentid": rank}
            for rank, caption in enumerate(captions)
        ]
        images.append(
            {
                "filepath": "val2014",
                "sentids": [s["sentid"] for s in sentences],
                "filename": coco_name(number),
                "imgid": index,
                "split": splits[index],
                "sentences": sentences,
                "cocoid": number,
            }
        )
    return {"images": images, "dataset": "coco"}


def write_coco(root: Path) -> Path:
    write_json(root / "annotations" / "captions_val2014.json", coco_form())
    write_images(root / "val2014", [coco_name(number) for number in CAPTIONS])
    return root


def write_karpathy(root: Path) -> Path:
    write_json(root / "dataset_coco.json", karpathy_form())
    write_images(root / "val2014", [coco_name(number) for number in CAPTIONS])
    return root


def nocaps_form() -> dict[str, Any]:
    domains = ("near-domain", "in-domain", "out-domain")
    return {
        "licenses": [],
        "info": {"url": "http://nocaps.org", "version": "0.1"},
        "images": [
            {"id": i, "open_images_id": f"00a{i}", "file_name": f"00a{i}.jpg", "domain": domain}
            for i, domain in enumerate(domains)
        ],
        "annotations": [
            {"image_id": i, "id": 10 * i + k, "caption": f"Thing {i} seen {k} times."}
            for i in range(3)
            for k in range(2)
        ],
    }


def write_nocaps(root: Path) -> Path:
    write_json(root / "nocaps_val_4500_captions.json", nocaps_form())
    write_images(root / "images", [f"00a{i}.jpg" for i in range(3)])
    return root


def senticap_form() -> dict[str, Any]:
    """SentiCap's form; image 12 is listed twice, once for each tone, as 135 real ones are."""

    def sentence(raw: str, sentiment: int) -> dict[str, Any]:
        tokens = raw.lower().rstrip(".").split()
        weights = [0.0] * (len(tokens) - 1) + [1]
        return {
            "tokens": tokens,
            "word_sentiment": weights,
            "sentiment": sentiment,
            "raw": raw,
        }

    rows = (
        (7, "test", [("a lovely kite.", 1), ("a torn kite.", 0), ("a fine kite.", 1)]),
        (12, "test", [("a pretty door.", 1)]),
        (12, "test", [("an ugly\ndoor.", 0)]),
        (139, "train", [("great cups.", 1)]),
    )
    return {
        "images": [
            {
                "filename": coco_name(number),
                "imgid": index,
                "split": split,
                "sentences": [sentence(raw, tone) for raw, tone in sentences],
            }
            for index, (number, split, sentences) in enumerate(rows)
        ]
    }


def write_senticap(root: Path) -> Path:
    write_json(root / "senticap_dataset.json", senticap_form())
    write_images(root / "val2014", [coco_name(number) for number in CAPTIONS])
    return root


def flickr30k_form() -> dict[str, Any]:
    form = karpathy_form(("test", "train", "val"))
    for image, number in zip(form["images"], (1000, 36979, 65567), strict=True):
        del image["filepath"], image["cocoid"]
        image["filename"] = f"{number}.jpg"
    return {**form, "dataset": "flickr30k"}


def write_flickr30k(root: Path) -> Path:
    write_json(root / "dataset_flickr30k.json", flickr30k_form())
    write_images(root / "flickr30k-images", ["1000.jpg", "36979.jpg", "65567.jpg"])
    return root


def pickled_names(names: Sequence[str]) -> bytes:
    """What Python 2 writes for a list of unicode names: protocol 0, as in the real train.p."""
    entries = [f"V{name}\np{index}\na" for index, name in enumerate(names, start=2)]
    return ("(lp1\n" + "".join(entries) + ".").encode("ascii")


def write_flickrstyle(root: Path) -> Path:
    base = root / "FlickrStyle_v0.9"
    names = pickled_names(["1000_03d333.jpg", "36979_d3e38d.jpg"])
    texts = {
        "humor/funny_train.txt": "a dog digs for gold .\r\nthe café is on strike .".encode(),
        # A Chinese comma in GB 18030, as in the real file.
        "romantic/romantic_train.txt": b"two hearts on the track\xa3\xacin love .\r\na kiss .",
    }
    for name, content in texts.items():
        file = base / name
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
        (file.parent / "train.p").write_bytes(names)
    write_images(root / "images", ["1000.jpg", "36979.jpg"])
    return root


def write_folder(root: Path) -> Path:
    write_images(root, ["a.jpg", "b.png", "c.jpg"])
    lines = [
        {"image": "a.jpg", "captions": ["A red kite.", "Kite."]},
        {"image": "b.png", "captions": ["A door.\u2028Green."]},
        {"image": "c.jpg", "caption": "Cups."},
    ]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (root / "captions.jsonl").write_text(text, encoding="utf-8")
    return root


#: Writer, split, expected ids of the default split, for every dataset.
WRITERS = {
    "coco": (write_coco, ["7", "12", "139"]),
    "karpathy": (write_karpathy, ["7", "139"]),
    "nocaps": (write_nocaps, ["0", "1", "2"]),
    "senticap": (write_senticap, ["7", "7", "12", "12"]),
    "flickr30k": (write_flickr30k, ["1000"]),
    "flickrstyle10k": (write_flickrstyle, ["1000", "1000", "36979", "36979"]),
    "folder": (write_folder, ["a.jpg", "b.png", "c.jpg"]),
}
