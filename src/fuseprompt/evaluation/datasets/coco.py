"""COCO captions: one file for each split, images named by their ids.

Read next: `fuseprompt.evaluation.datasets.karpathy`, the split that papers report on.
"""

from pathlib import Path

from fuseprompt.evaluation.datasets.forms import Row
from fuseprompt.evaluation.datasets.gather import Found, gather
from fuseprompt.evaluation.datasets.lines import read_rows
from fuseprompt.evaluation.datasets.locate import ImageFolders, annotation_file, image_root
from fuseprompt.evaluation.datasets.source import Counts, Source, coco_id


def read(root: Path, split: str) -> Found:
    """Return the items of a split of COCO, such as "val2014".

    Raises:
        DatasetError: If the annotations are missing or faulty.
    """
    file = annotation_file(root, (f"captions_{split}.json",), dataset="coco")
    folders = ImageFolders(image_root(root), coco_folders(split))
    return gather(
        read_rows(file), folders, id_of=coco_id, name_of=lambda row: coco_name(row, split)
    )


def coco_folders(*splits: str) -> tuple[str, ...]:
    """Return where the images of splits are looked for, below the folder of the dataset."""
    return (*splits, *(f"images/{split}" for split in splits), "images", ".")


def coco_name(row: Row, split: str) -> str:
    """Return the name of a row's image; where the file gives only ids, as COCO names it."""
    if row.image or "." in row.id:
        return row.image or row.id
    number = int(coco_id(row))
    prefix = f"COCO_{split}_" if split.endswith("2014") else ""
    return f"{prefix}{number:012d}.jpg"


SOURCE = Source(
    title="COCO captions",
    splits=("val2014", "train2014", "val2017", "train2017"),
    read=read,
    files=("annotations/captions_val2014.json (the name has the split)",),
    images="val2014/ or images/val2014/ (the folder has the split)",
    origin=("https://cocodataset.org/#download (2014 Train/Val annotations and images)",),
    licence="annotations CC BY 4.0; images under the terms of Flickr",
    counts={
        "val2014": Counts(40_504, 202_654),
        "train2014": Counts(82_783, 414_113),
        "val2017": Counts(5_000, 25_014),
        "train2017": Counts(118_287, 591_753),
    },
    remarks=("papers report on the Karpathy test split, not on val2014: see karpathy",),
)
