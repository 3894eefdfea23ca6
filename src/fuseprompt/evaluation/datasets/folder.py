"""A plain folder of images, with captions beside them where somebody has written some.

Every image is an item, whether it has captions or not. Read next:
`fuseprompt.evaluation.datasets.check`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

from fuseprompt.errors import DatasetError, ImageError
from fuseprompt.evaluation.datasets.base import Item
from fuseprompt.evaluation.datasets.forms import Row
from fuseprompt.evaluation.datasets.gather import Found, gather
from fuseprompt.evaluation.datasets.lines import read_rows
from fuseprompt.evaluation.datasets.locate import ImageFolders
from fuseprompt.evaluation.datasets.source import Source
from fuseprompt.models.images import list_images

#: Files of captions that are looked for beside the images, first come first served.
CAPTIONS: Final = ("captions.jsonl", "captions.json", "captions.tsv")


def read(root: Path, split: str) -> Found:  # noqa: ARG001  (there is one split)
    """Return the images of a folder (not of its sub-folders) and what its captions file names.

    Args:
        root: The folder.
        split: "all".

    Returns:
        The items, by the name of the file.

    Raises:
        DatasetError: If there is no such folder, no image in it, or its captions are faulty.
    """
    if not root.is_dir():
        raise DatasetError(f"{root}: no such folder. --root is the folder of the images.")
    try:
        names = [image.name for image in list_images(root)]
    except ImageError as error:
        raise DatasetError(str(error)) from None
    rows = []
    images = ImageFolders(root, (".",))
    file = next((root / name for name in CAPTIONS if (root / name).is_file()), None)
    if file is not None:
        rows = [replace(row, image=_name(row, names, images, root)) for row in read_rows(file)]
    captioned = gather(rows, images, id_of=lambda row: row.image)
    named = {item.id for item in captioned.items}
    others = tuple(Item(name, root / name) for name in names if name not in named)
    notes = captioned.notes
    if file is not None and others:
        notes += (f"{len(others):,} images are not in {file.name}, the first is {others[0].id}",)
    return Found((*captioned.items, *others), notes)


def _name(row: Row, names: list[str], images: ImageFolders, root: Path) -> str:
    """Return where a row's image lies in the folder; one without an ending is the only such."""
    given = row.image or row.id
    same_stem = [name for name in names if name.rpartition(".")[0] == given]
    if given not in names and len(same_stem) == 1:
        return same_stem[0]
    return images.find(given, place=row.place).relative_to(root).as_posix()


SOURCE = Source(
    title="A folder of images",
    splits=("all",),
    read=read,
    files=(
        'captions.jsonl: {"image": "photo.jpg", "captions": ["..."]} on each line (optional)',
        "or captions.tsv: photo.jpg TAB caption",
        "or captions.json in any form of the other datasets",
    ),
    images="the folder itself",
    origin=(),
    licence="",
)
