"""The Karpathy split of COCO, in its own file and in the forms that other projects made of it.

The split under this name that neuraltalk2 made is another one. Read next:
`fuseprompt.evaluation.datasets.flickr30k`, whose file has the same form.
"""

from pathlib import Path

from fuseprompt.evaluation.datasets.coco import gather_coco
from fuseprompt.evaluation.datasets.gather import Found
from fuseprompt.evaluation.datasets.lines import read_rows
from fuseprompt.evaluation.datasets.locate import annotation_file
from fuseprompt.evaluation.datasets.source import Counts, Source, of_split, split_notes

#: Other names of a split: MAGIC and ViECap write "valid"; training means train and restval.
_ALSO = {"train": ("restval",), "val": ("valid",)}


def read(root: Path, split: str) -> Found:
    """Return the items of a split.

    Args:
        root: The dataset's folder, or an annotation file.
        split: "test", "val", "train" (with restval, as usual) or "restval".

    Returns:
        The items, by COCO id.

    Raises:
        DatasetError: If the annotations are missing or faulty.
    """
    names = (
        "dataset_coco.json",
        "caption_datasets/dataset_coco.json",
        f"coco_karpathy_{split}_gt.json",
        f"coco_karpathy_{split}.json",
        f"mscoco_{split}.json",
        f"{split}_metrics_format.json",
        f"{split}_captions.json",
    )
    file = annotation_file(root, names, dataset="karpathy")
    rows = read_rows(file)
    found = gather_coco(
        of_split(rows, split, also=_ALSO.get(split, ())),
        root,
        # Images of test, val and restval are all of val2014.
        split="train2014" if split == "train" else "val2014",
    )
    return Found(found.items, (*found.notes, *split_notes(file, rows, split)))


SOURCE = Source(
    title="COCO captions, Karpathy split",
    splits=("test", "val", "train", "restval"),
    read=read,
    files=(
        "dataset_coco.json (from caption_datasets.zip)",
        "or coco_karpathy_test_gt.json, coco_karpathy_test.json (BLIP, LAVIS)",
        "or mscoco_test.json (MAGIC), test_captions.json (ViECap), "
        "test_metrics_format.json (CapDec)",
    ),
    images="val2014/ and train2014/ (or those of 2017), also below images/",
    origin=(
        "https://cs.stanford.edu/people/karpathy/deepimagesent/ (caption_datasets.zip)",
        "https://cocodataset.org/#download (2014 Train/Val images)",
    ),
    licence="annotations of COCO, CC BY 4.0; images under the terms of Flickr",
    counts={
        "test": Counts(5_000, 25_010),
        "val": Counts(5_000, 25_010),
        "train": Counts(113_287, 566_747),
        "restval": Counts(30_504, 152_634),
    },
    remarks=(
        "train means train and restval together",
        "the split under this name in neuraltalk2 is another one",
    ),
)
