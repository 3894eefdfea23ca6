"""Places of annotation files and of images.

Names in annotation files are never trusted: a path lies inside the folder that the user gave.
Read next: `fuseprompt.evaluation.datasets.read`.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import final

from fuseprompt.errors import DatasetError


def annotation_file(root: Path, names: Sequence[str], *, dataset: str) -> Path:
    """Return the annotation file of a dataset.

    Args:
        root: The dataset's folder, or the annotation file itself.
        names: Names to look for, best first, in the folder and in its folder `annotations`.
        dataset: Name of the dataset, for the message.

    Returns:
        The file.

    Raises:
        DatasetError: If there is none.
    """
    if root.is_file():
        return root
    if not root.is_dir():
        raise DatasetError(f"{root}: no such folder. --root is the folder of the dataset.")
    for file in (root / folder / name for name in names for folder in ("annotations", ".")):
        if file.is_file():
            return file
    raise DatasetError(
        f"{root}: expected one of {', '.join(names)} there or in its folder annotations. "
        f"`fuseprompt datasets {dataset}` says where people get it."
    )


@final
class ImageFolders:
    """The folders in which images of a dataset may lie.

    Args:
        root: The dataset's folder, or its annotation file.
        folders: Folders below it, first come first served; "." is the folder itself.
    """

    def __init__(self, root: Path, folders: Sequence[str]) -> None:
        if not root.is_dir():
            root = root.parent.parent if root.parent.name == "annotations" else root.parent
        # Texts, since joining and hashing 40,000 paths takes seconds.
        self._bases = [str(root / folder) for folder in folders]
        self._root = root
        self._listed: dict[str, frozenset[str]] = {}

    def find(self, names: Sequence[str], *, place: str) -> Path:
        """Return the file of an image, or where it would be expected if it is nowhere.

        Args:
            names: What it may be called, as annotations do: bare names, or paths. Of a path that is
                absolute or climbs ("..") only the last part counts: it is of another machine.
            place: Where the names stand, for the message.

        Returns:
            A path inside the dataset's folder.

        Raises:
            DatasetError: If one is no name of a file.
        """
        split = [_split(name, place) for name in names]
        for folder, last in split:
            for sub in dict.fromkeys((folder, "")):
                for base in self._bases:
                    where = os.path.join(base, sub) if sub else base
                    if last in self._names(where):
                        return Path(where, last)
        folder, last = split[0]
        return self._root / folder / last if folder else Path(self._bases[0], last)

    def _names(self, folder: str) -> frozenset[str]:
        """Return the names in a folder; one look at a folder is cheaper than one at every image."""
        if folder not in self._listed:
            try:
                self._listed[folder] = frozenset(os.listdir(folder))
            except (OSError, UnicodeError):  # No name that a file can have.
                self._listed[folder] = frozenset()
        return self._listed[folder]


def last_part(name: str) -> str:
    """Return the file's name in a path of any system."""
    return re.split(r"[\\/]", name)[-1]


def _split(name: str, place: str) -> tuple[str, str]:
    """Return the folder and the file's name in a path; a foreign path has no folder."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or parts[-1] == ".." or any("\0" in part for part in parts):
        raise DatasetError(f"{place}: {name!r} is no name of an image file.")
    is_foreign = re.match(r"/|\\|[A-Za-z]:|\w+://", name) is not None or ".." in parts
    return "" if is_foreign else "/".join(parts[:-1]), parts[-1]
