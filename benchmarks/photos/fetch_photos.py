"""Fetch the photos of `captions.py` from COCO by id, with people's captions, laid out as COCO's.

`python -m benchmarks.photos.fetch_photos test FOLDER`: the ids are those of the committed journal.
The captions are in the package pycocoevalcap. Each photo has a licence of its own, which COCO's
annotations name. Written without a network, and never run with one.
"""

import argparse
import json
import zipfile
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from benchmarks.journal import Journal
from benchmarks.photos.captions import JOURNAL
from fuseprompt.evaluation.metrics.coco_tools import library_folder

URL = "http://images.cocodataset.org/{split}/COCO_{split}_{id:012d}.jpg"
SPLITS = ("val2014", "train2014")


def main() -> None:
    """Fetch what is not there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("set", choices=("tune", "test"))
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    rows = Journal(JOURNAL).rows.values()
    names = sorted({row["photo"] for row in rows if row["set"] == args.set})
    photos = args.folder / args.set / "val2014"
    photos.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not (photos / name).exists():
            (photos / name).write_bytes(_fetch(int(Path(name).stem.rpartition("_")[2])))
    annotations = photos.parent / "annotations"
    annotations.mkdir(exist_ok=True)
    content = json.dumps(_read_annotations(set(names)))
    (annotations / "captions_val2014.json").write_text(content, encoding="utf-8")


def _fetch(number: int) -> bytes:
    """Return a photo, whichever split of 2014 it is in."""
    for split in SPLITS:
        try:
            with urlopen(URL.format(split=split, id=number)) as answer:
                return bytes(answer.read())
        except HTTPError as error:
            if error.code != 404:
                raise
    raise SystemExit(f"COCO has no photo {number} any more.")


def _read_annotations(names: set[str]) -> dict:
    """Return the captions of photos; all are named as photos of val2014."""
    found: dict[str, list] = {"images": [], "annotations": []}
    with zipfile.ZipFile(library_folder() / "spice" / "spice-1.0.jar") as jar:
        for split in SPLITS:
            read = json.loads(jar.read(f"coco/annotations/captions_{split}.json"))
            for image in read["images"]:
                name = f"COCO_val2014_{image['id']:012d}.jpg"
                if name in names:
                    found["images"].append({"id": image["id"], "file_name": name})
            ids = {image["id"] for image in found["images"]}
            found["annotations"] += [a for a in read["annotations"] if a["image_id"] in ids]
    return found


if __name__ == "__main__":
    main()
