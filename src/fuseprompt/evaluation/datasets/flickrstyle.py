"""FlickrStyle10K: a humorous and a romantic caption for each of 7,000 photos of Flickr30k.

Captions and names come in two files whose lines belong together. The names are a Python pickle:
its opcodes are read, nothing is ever unpickled. Read next:
`fuseprompt.evaluation.datasets.folder`.
"""

import pickletools
from pathlib import Path
from typing import Final

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets.flickr30k import FOLDERS, photo_id
from fuseprompt.evaluation.datasets.forms import Row
from fuseprompt.evaluation.datasets.gather import Found, gather
from fuseprompt.evaluation.datasets.lines import split_lines
from fuseprompt.evaluation.datasets.locate import ImageFolders
from fuseprompt.evaluation.datasets.records import read_bytes
from fuseprompt.evaluation.datasets.source import Counts, Source

#: Tone, and its captions and names below the folder of the dataset.
_FILES: Final = {
    "humorous": ("humor/funny_train.txt", "humor/train.p"),
    "romantic": ("romantic/romantic_train.txt", "romantic/train.p"),
}

#: The opcodes that a list of texts consists of, in any protocol; those of texts carry the names.
_TEXTS: Final = frozenset(
    {
        *("STRING", "BINSTRING", "SHORT_BINSTRING"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    }
)
_LISTS: Final = frozenset(
    {
        *("PROTO", "FRAME", "MARK", "LIST", "EMPTY_LIST", "APPEND", "APPENDS", "STOP"),
        *("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"),
    }
)


def read(root: Path, split: str) -> Found:  # noqa: ARG001  (there is one split)
    """Return the items of the public part.

    Args:
        root: `FlickrStyle_v0.9`, or the folder that has it.
        split: "train", the only one that is public.

    Returns:
        The items, by the number of the photo at Flickr, as Flickr30k's, and tone.

    Raises:
        DatasetError: If a file is missing or faulty, or captions and names do not match.
    """
    base = root / "FlickrStyle_v0.9" if (root / "FlickrStyle_v0.9").is_dir() else root
    rows = [row for tone in _FILES for row in _rows(base, tone)]
    images = ImageFolders(root, FOLDERS)

    def name_of(row: Row) -> str:
        # Flickr30k's own files are called by the number alone.
        return row.image if images.has(row.image) else f"{photo_id(row)}.jpg"

    return gather(rows, images, id_of=photo_id, name_of=name_of)


def read_pickled_names(file: Path) -> list[str]:
    """Return the texts of a pickled list of texts, without unpickling it.

    Args:
        file: A pickle of any protocol.

    Returns:
        The texts, in order.

    Raises:
        DatasetError: If it is no pickle, or has anything but one list of texts.
    """
    names: list[str] = []
    try:
        for opcode, argument, position in pickletools.genops(read_bytes(file)):
            if opcode.name in _TEXTS:
                names.append(str(argument))
            elif opcode.name not in _LISTS:
                raise DatasetError(
                    f"{file}: {opcode.name} at byte {position}. Expected a pickled list of names "
                    "and nothing else; such a file is not read."
                )
    except (ValueError, UnicodeError) as error:
        raise DatasetError(f"{file}: no pickled list of names ({error}).") from None
    return names


def _rows(base: Path, tone: str) -> list[Row]:
    text_name, pickle_name = _FILES[tone]
    file = base / text_name
    captions = split_lines(_decode(read_bytes(file)))
    names = read_pickled_names(base / pickle_name)
    if len(captions) != len(names):
        raise DatasetError(
            f"{file}: {len(captions):,} captions, but {len(names):,} names in {pickle_name}. "
            "Lines belong together: take both files of one release."
        )
    return [
        Row(f"{text_name}: line {number}", name, "", (caption,), sentiment=tone)
        for number, (caption, name) in enumerate(zip(captions, names, strict=True), start=1)
    ]


def _decode(content: bytes) -> str:
    """Return a text; the romantic captions have one Chinese comma in GB 18030 among ASCII."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("gb18030", errors="replace").replace("\uff0c", ", ")


SOURCE = Source(
    title="FlickrStyle10K",
    splits=("train",),
    read=read,
    files=(
        "humor/funny_train.txt and humor/train.p",
        "romantic/romantic_train.txt and romantic/train.p",
    ),
    images="those of Flickr30k: flickr30k-images/, images/ or the folder itself",
    origin=(
        "https://zhegan27.github.io/Papers/FlickrStyle_v0.9.zip",
        "https://shannon.cs.illinois.edu/DenotationGraph/ (images, on request)",
    ),
    licence="see its page; images under the terms of Flickr",
    sentiments=tuple(_FILES),
    counts={"train": Counts(7_000, 14_000)},
    remarks=("only these 7,000 of 10,000 are public; papers split them again, each its own way",),
)
