"""COCO captions: one file for each split, images named by their ids.

Read next: `fuseprompt.evaluation.datasets.karpathy`, the split that papers report on.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets.forms import Row
from fuseprompt.evaluation.datasets.gather import Found, gather, trailing_number
from fuseprompt.evaluation.datasets.lines import read_rows
from fuseprompt.evaluation.datasets.locate import ImageFolders, annotation_file, image_root
from fuseprompt.evaluation.datasets.source import Counts, Source

SPLITS: Final = ("val2014", "train2014", "val2017", "train2017")

#: Where images of COCO are looked for, below the folder of a dataset.
FOLDERS: Final = (*SPLITS, *(f"images/{split}" for split in SPLITS), "images", ".")


def read(root: Path, split: str) -> Found:
    """Return the items of a split of COCO, such as "val2014".

    Raises:
        DatasetError: If the annotations are missing or faulty.
    """
    file = annotation_file(root, (f"captions_{split}.json",), dataset="coco")
    return gather_coco(read_rows(file), root, split=split)


def gather_coco(rows: Iterable[Row], root: Path, *, split: str) -> Found:
    """Return the items of rows of COCO images.

    Args:
        rows: The rows.
        root: The dataset's folder, or its annotation file.
        split: Split of COCO in whose folder images are expected that are nowhere to be found.

    Returns:
        The items, by COCO id.

    Raises:
        DatasetError: If a row has no COCO id, or an id stands for two images.
    """
    folders = ImageFolders(image_root(root), (split, *FOLDERS))

    def name_of(row: Row) -> str:
        names = _names(row, split)
        return next((name for name in names if folders.has(name)), names[0])

    return gather(rows, folders, id_of=coco_id, name_of=name_of)


def coco_id(row: Row) -> str:
    """Return the COCO id of a row: its id, else the number in the name of the image.

    Raises:
        DatasetError: If there is no number, or id and name have two different ones.
    """
    of_id = trailing_number(row.id)
    of_name = trailing_number(row.image)
    number = of_name if of_id is None else of_id
    if number is None:
        raise DatasetError(
            f"{row.place}: expected a COCO image id or a name such as "
            f"COCO_val2014_000000000007.jpg, got {(row.id or row.image)!r}."
        )
    if of_id is not None and of_name not in (None, of_id):
        raise DatasetError(
            f"{row.place}: the id is {of_id}, the image is {row.image!r}. Both must be of one "
            "image: mend the file."
        )
    return str(number)


def _names(row: Row, split: str) -> list[str]:
    """Return what a row's image may be called: the releases of 2014 and 2017 share images."""
    given = row.image or (row.id if "." in row.id else "")
    number = f"{int(coco_id(row)):012d}.jpg"
    of_2014 = [f"COCO_{each}_{number}" for each in SPLITS if each.endswith("2014")]
    called = [f"COCO_{split}_{number}" if split.endswith("2014") else number]
    return [*([given] if given else called), *of_2014, number]


SOURCE = Source(
    title="COCO captions",
    splits=SPLITS,
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
