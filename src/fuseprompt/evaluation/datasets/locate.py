"""Files of a dataset: which file holds the annotations, and where an image lies.

Names in annotation files are never trusted: what comes out lies inside the folder that the user
gave. Read next: `fuseprompt.evaluation.datasets.gather`.
"""

import os
import re
from pathlib import Path
from typing import final

from fuseprompt.errors import DatasetError


def annotation_file(root: Path, names: tuple[str, ...], *, dataset: str) -> Path:
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
    tried = [root / folder / name for name in names for folder in ("annotations", ".")]
    for file in tried:
        if file.is_file():
            return file
    listed = ", ".join(names)
    raise DatasetError(
        f"{root}: expected one of {listed} there or in its folder annotations. "
        f"`fuseprompt datasets {dataset}` says where people get it."
    )


def image_root(root: Path) -> Path:
    """Return the folder below which images are looked for, where `root` may be a file."""
    if root.is_dir():
        return root
    return root.parent.parent if root.parent.name == "annotations" else root.parent


@final
class ImageFolders:
    """Where the images of a dataset may lie.

    Args:
        root: The dataset's folder.
        folders: Folders below it, first come first served; "." is the folder itself.
    """

    def __init__(self, root: Path, folders: tuple[str, ...]) -> None:
        # Texts, since joining and hashing 40,000 paths takes seconds.
        self._bases = [str(root / folder) for folder in folders]
        self._listed: dict[str, frozenset[str]] = {}
        self._everywhere: frozenset[str] | None = None

    def find(self, name: str, *, place: str) -> Path:
        """Return where an image is, or where it would be expected if it is nowhere.

        Args:
            name: As annotations name it: a bare name, or a path. Of a path that is absolute or
                climbs ("..") only the last part counts: it is of another machine.
            place: Where the name stands, for the message.

        Returns:
            A path inside the dataset's folder.

        Raises:
            DatasetError: If it is no name of a file.
        """
        parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
        if not parts or parts[-1] == ".." or any("\0" in part for part in parts):
            raise DatasetError(f"{place}: {name!r} is no name of an image file.")
        is_foreign = re.match(r"/|\\|[A-Za-z]:|\w+://", name) is not None or ".." in parts
        folder, last = ("" if is_foreign else "/".join(parts[:-1])), parts[-1]
        for sub in dict.fromkeys((folder, "")):
            for base in self._bases:
                where = os.path.join(base, sub) if sub else base
                if last in self._names(where):
                    return Path(where, last)
        return Path(self._bases[0], last)

    def has(self, name: str) -> bool:
        """Return whether one of the folders has a file of this name, its folders left aside."""
        if self._everywhere is None:
            self._everywhere = frozenset().union(*map(self._names, self._bases))
        return re.split(r"[\\/]", name)[-1] in self._everywhere

    def _names(self, folder: str) -> frozenset[str]:
        """Return the names in a folder; one look at a folder is cheaper than one at every image."""
        if folder not in self._listed:
            try:
                self._listed[folder] = frozenset(os.listdir(folder))
            except OSError:
                self._listed[folder] = frozenset()
        return self._listed[folder]
