"""Rows of an annotation file become items: one for each image and tone.

What is the same for all datasets: captions are cleaned, empty ones left out and told, rows of one
image joined. Read next: `fuseprompt.evaluation.datasets.source`.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import final

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.clean import clean_caption
from fuseprompt.evaluation.datasets.base import Item
from fuseprompt.evaluation.datasets.forms import Row
from fuseprompt.evaluation.datasets.locate import ImageFolders


@final
@dataclass(frozen=True)
class Found:
    """What a reader found.

    Attributes:
        items: The items, in any order.
        notes: What a person should know.
    """

    items: tuple[Item, ...]
    notes: tuple[str, ...] = ()


@final
@dataclass
class _Image:
    place: str
    name: str
    domain: str
    captions: list[str] = field(default_factory=list)


def gather(
    rows: Iterable[Row],
    images: ImageFolders,
    *,
    id_of: Callable[[Row], str],
    name_of: Callable[[Row], str] = lambda row: row.image,
) -> Found:
    """Return the items of rows.

    Args:
        rows: The rows of the split.
        images: Where the images lie.
        id_of: What the id of a row's image is.
        name_of: What the name of a row's image is.

    Returns:
        One item for each image and tone, with its captions in the order of the rows.

    Raises:
        DatasetError: If an id stands for two images.
    """
    joined: dict[tuple[str, str], _Image] = {}
    empty: list[str] = []
    for row in rows:
        name = name_of(row)
        key = (id_of(row), row.sentiment)
        image = joined.setdefault(key, _Image(row.place, name, row.domain))
        if _last_part(image.name) != _last_part(name):
            raise DatasetError(
                f"{row.place}: id {key[0]} stands for {name!r} here and for {image.name!r} before "
                f"({image.place}). Ids must differ: mend the file."
            )
        for caption in map(clean_caption, row.captions):
            if caption:
                image.captions.append(caption)
            else:
                empty.append(row.place)
    items = tuple(
        Item(
            id_,
            images.find(image.name, place=image.place),
            tuple(image.captions),
            sentiment,
            image.domain,
        )
        for (id_, sentiment), image in joined.items()
    )
    return Found(items, tuple(_notes(items, empty)))


def trailing_number(text: str) -> int | None:
    """Return the number at the end of a file's name or of an id, or None.

    Example:
        >>> trailing_number("val2014/COCO_val2014_000000000007.jpg"), trailing_number("coco_7")
        (7, 7)
    """
    found = re.search(r"([0-9]{1,18})(?:\.[A-Za-z]{1,5})?$", text)
    return None if found is None else int(found[1])


def _notes(items: tuple[Item, ...], empty: list[str]) -> list[str]:
    notes = []
    if empty:
        notes.append(f"{len(empty):,} empty captions left out, the first at {empty[0]}")
    bare = sorted(item.id for item in items if not item.references)
    if items and len(bare) == len(items):
        notes.append("no image has captions: captions can be written, not scored")
    elif bare:
        notes.append(f"{len(bare):,} images without a caption, the first is {bare[0]}")
    return notes


def _last_part(name: str) -> str:
    return re.split(r"[\\/]", name)[-1]
