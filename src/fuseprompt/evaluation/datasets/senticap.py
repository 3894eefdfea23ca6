"""SentiCap: captions of COCO images with a positive or a negative tone.

An image has an item for each tone that it has captions of. The file lists some images twice, once
for each tone; they are joined. Read next:
`fuseprompt.evaluation.datasets.flickrstyle`, captions with another kind of tone.
"""

from pathlib import Path
from typing import Final

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets.coco import gather_coco
from fuseprompt.evaluation.datasets.forms import Row
from fuseprompt.evaluation.datasets.gather import Found
from fuseprompt.evaluation.datasets.lines import read_rows
from fuseprompt.evaluation.datasets.locate import annotation_file
from fuseprompt.evaluation.datasets.source import Counts, Source, of_split

SENTIMENTS: Final = ("negative", "positive")

_NAMES: Final = (
    "senticap_dataset.json",
    "data/senticap_dataset.json",
    "senticap.json",
    "dataset_senticap.json",
)


def read(root: Path, split: str) -> Found:
    """Return the items of a split.

    Args:
        root: The dataset's folder, or an annotation file.
        split: "test", "val", "train", or "all" for the three together.

    Returns:
        The items, by COCO id and tone.

    Raises:
        DatasetError: If the annotations are missing or faulty.
    """
    rows = read_rows(annotation_file(root, _NAMES, dataset="senticap"))
    rows = rows if split == "all" else of_split(rows, split)
    return gather_coco((row for row in rows if _has_tone(row)), root, split="val2014")


def _has_tone(row: Row) -> bool:
    """Return whether a row has captions with a tone; an image without any is no item."""
    if row.captions and row.sentiment not in SENTIMENTS:
        raise DatasetError(
            f"{row.place}: sentiment is {row.sentiment!r}, expected positive or negative."
        )
    return bool(row.captions)


SOURCE = Source(
    title="SentiCap",
    splits=("test", "val", "train", "all"),
    read=read,
    files=(
        "senticap_dataset.json (from senticap_dataset.zip)",
        "or senticap.json, dataset_senticap.json (ADS-Cap), or the CSV file of senticap_reader.py "
        "as --root",
    ),
    images="those of COCO: val2014/ or images/val2014/",
    origin=(
        "https://users.cecs.anu.edu.au/~u4534172/senticap.html",
        "https://cocodataset.org/#download (2014 Val images)",
    ),
    licence="see its page; images of COCO under the terms of Flickr",
    sentiments=SENTIMENTS,
    counts={
        "test": Counts(743, 3_528),
        "val": Counts(265, 922),
        "train": Counts(1_217, 4_419),
        "all": Counts(2_225, 8_869),
    },
    remarks=(
        "its 2,360 entries (878 in test) are 2,225 images (743), 135 of them listed once per tone",
        "of the 743 test images 673 have positive captions, 503 negative ones, 433 both",
        "some papers take all images for test: --split all",
    ),
)
