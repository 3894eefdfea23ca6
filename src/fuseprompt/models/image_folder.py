"""The pictures of a folder, and a sentence on what else lies there and why it was left alone.

A file counts by its ending; what Pillow cannot open or what is hidden does not. Read next:
`fuseprompt.models.images`.
"""

from collections import Counter
from pathlib import Path
from typing import Final

from PIL import Image

from fuseprompt.errors import ImageError
from fuseprompt.models.images import INSTALL_HEIF, register_heif

#: Formats that Pillow recognises but cannot decode, or that are no pictures.
_NO_PICTURES: Final = frozenset({"BUFR", "GRIB", "HDF5", "MPEG"})

#: Formats without an opener of their own: that of another format opens them.
_OPENED_BY: Final = {"MPO": "JPEG"}

_HEIC: Final = frozenset({".heic", ".heif", ".hif"})

#: Pictures that Pillow does not read: vectors, raw files of cameras and rare formats.
_UNREAD: Final = frozenset(
    {".svg", ".ai", ".jxl", ".jxr", ".exr", ".hdr", ".xcf"}
    | {".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2", ".raw"}
)


def list_images(folder: str | Path) -> list[Path]:
    """Return the image files of a folder in name order (not of its sub-folders), by file ending.

    Raises:
        ImageError: If the folder has none, or cannot be listed.
    """
    files, left = _sort(folder, with_others=True)
    if not files:
        more = f" Left alone: {left}." if left else ""
        raise ImageError(
            f"{folder}: the folder has no image files. "
            f"Expected files such as photo.jpg or photo.png.{more}"
        )
    return files


def describe_left_alone(folder: str | Path, *, with_others: bool = True) -> str:
    """Return a sentence on what `list_images` leaves alone and why, with counts; "" for nothing.

    Args:
        folder: The folder.
        with_others: Count also what nobody takes for a picture: texts, sub-folders.

    Returns:
        The sentence, or "".

    Raises:
        ImageError: If the folder cannot be listed.
    """
    _, left = _sort(folder, with_others=with_others)
    return f"{folder}: left alone: {left}." if left else ""


def _sort(folder: str | Path, *, with_others: bool) -> tuple[list[Path], str]:
    """Return the image files of a folder, and in words what else is there, counted by reason."""
    register_heif()
    readable = {
        ending
        for ending, kind in Image.registered_extensions().items()
        if _OPENED_BY.get(kind, kind) in Image.OPEN and kind not in _NO_PICTURES
    }
    files: list[Path] = []
    left: Counter[str] = Counter()
    try:
        for file in sorted(Path(folder).iterdir()):
            reason = _why_left(file, readable)
            if not reason:
                files.append(file)
            elif with_others or file.suffix.lower() in readable | _HEIC | _UNREAD:
                left[reason] += 1
    except OSError as error:
        raise ImageError(f"{folder}: cannot be listed ({error.strerror}).") from None
    return files, ", ".join(f"{count:,} {reason}" for reason, count in sorted(left.items()))


def _why_left(file: Path, readable: set[str]) -> str:
    """Return why a file is left alone, or "" for a picture."""
    ending = file.suffix.lower()
    if file.name.startswith("."):
        return "hidden (the name begins with a dot)"
    if file.is_dir():
        return "sub-folder (name it to have its images)"
    if not file.is_file():
        return "pipe, device or broken link"
    if ending in readable:
        return ""
    if ending in _HEIC:
        return f"{ending} ({INSTALL_HEIF})"
    if ending in _UNREAD:
        return f"{ending} (Pillow does not read it; save as JPEG or PNG)"
    return f"{ending or 'without an ending'} (no image)"
