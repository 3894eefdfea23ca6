"""Flickr30k: Karpathy's file with its splits, or the token file without any.

Read next: `fuseprompt.evaluation.datasets.flickrstyle`.
"""

from pathlib import Path

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets.forms import Row
from fuseprompt.evaluation.datasets.gather import Found, gather
from fuseprompt.evaluation.datasets.lines import read_rows
from fuseprompt.evaluation.datasets.locate import ImageFolders, annotation_file, image_root
from fuseprompt.evaluation.datasets.source import Counts, Source, of_split, split_notes

#: Where the photos of Flickr30k are looked for.
FOLDERS = ("flickr30k-images", "flickr30k_images", "images", ".")


def read(root: Path, split: str) -> Found:
    """Return the items of a split.

    Args:
        root: The dataset's folder, or an annotation file.
        split: "test", "val", "train" or "all".

    Returns:
        The items, by the number of the photo at Flickr.

    Raises:
        DatasetError: If the annotations are missing or faulty, or name no splits.
    """
    names = (
        "dataset_flickr30k.json",
        "caption_datasets/dataset_flickr30k.json",
        f"flickr30k_{split}.json",
        f"{split}_captions.json",
        "results_20130124.token",
    )
    file = annotation_file(root, names, dataset="flickr30k")
    if file.suffix == ".token" and split != "all":
        raise DatasetError(
            f"{file}: a token file names no splits. Add dataset_flickr30k.json, or take split all."
        )
    rows = read_rows(file)
    notes: tuple[str, ...] = ()
    if split != "all":
        notes = split_notes(file, rows, split)
        rows = of_split(rows, split, also=("valid",) if split == "val" else ())
    folders = ImageFolders(image_root(root), FOLDERS)
    found = gather(rows, folders, id_of=photo_id, name_of=photo_name)
    return Found(found.items, (*found.notes, *notes))


def photo_id(row: Row) -> str:
    """Return the number of a photo at Flickr, which its name begins with.

    Raises:
        DatasetError: If it has none.
    """
    name = photo_name(row).replace("\\", "/").rsplit("/", 1)[-1]
    number = name.split(".")[0].split("_")[0]
    if not (number.isascii() and number.isdigit()):
        raise DatasetError(
            f"{row.place}: expected a photo's name such as 1000092795.jpg, got {name!r}."
        )
    return number


def photo_name(row: Row) -> str:
    """Return the name of a row's image; where the file gives only ids, the id's."""
    if row.image:
        return row.image
    return row.id if "." in row.id else f"{row.id}.jpg"


SOURCE = Source(
    title="Flickr30k",
    splits=("test", "val", "train", "all"),
    read=read,
    files=(
        "dataset_flickr30k.json (from caption_datasets.zip)",
        "or flickr30k_test.json (MAGIC, BLIP), test_captions.json (ViECap)",
        "or results_20130124.token (no splits: --split all)",
    ),
    images="flickr30k-images/, flickr30k_images/, images/ or the folder itself",
    origin=(
        "https://cs.stanford.edu/people/karpathy/deepimagesent/ (caption_datasets.zip)",
        "https://shannon.cs.illinois.edu/DenotationGraph/ (images, on request)",
    ),
    licence="for research and education without profit; images under the terms of Flickr",
    counts={
        "test": Counts(1_000, 5_000),
        "val": Counts(1_014, 5_070),
        "train": Counts(29_000, 145_000),
    },
)
