"""What is known of a dataset before its files are read, and what every reader shares.

Read next: `fuseprompt.evaluation.datasets.coco`, the simplest source.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from fuseprompt.evaluation.datasets.base import Item
from fuseprompt.evaluation.datasets.forms import Row
from fuseprompt.evaluation.datasets.gather import Found


@final
@dataclass(frozen=True)
class Counts:
    """How much a published split has.

    Attributes:
        images: Images.
        captions: Captions, None where they are not published or nobody counted them here.
    """

    images: int
    captions: int | None = None


@final
@dataclass(frozen=True)
class Source:
    """A dataset: how it is read, and what a person needs to get it.

    Attributes:
        title: What it is, in a few words.
        splits: Names of its splits, the default first.
        read: Reads a split of the dataset in a folder.
        files: Annotation files that are understood, as a person would write them down.
        images: Where images are looked for.
        origin: Where people get it.
        licence: What is known of the terms; never legal advice.
        sentiments: Tones that its captions have.
        counts: Published counts by split.
        remarks: What surprises people.
    """

    title: str
    splits: tuple[str, ...]
    read: Callable[[Path, str], Found]
    files: tuple[str, ...]
    images: str
    origin: tuple[str, ...]
    licence: str
    sentiments: tuple[str, ...] = ()
    counts: Mapping[str, Counts] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def different_counts(source: Source, split: str, items: tuple[Item, ...]) -> tuple[str, ...]:
    """Return in words how the counts of a split differ from the published ones."""
    published = source.counts.get(split)
    if published is None:
        return ()
    images = len({item.id for item in items})
    captions = sum(len(item.references) for item in items)
    notes = []
    if images != published.images:
        notes.append(f"{images:,} images, published are {published.images:,}")
    if published.captions is not None and captions and captions != published.captions:
        notes.append(f"{captions:,} captions, published are {published.captions:,}")
    return tuple(notes)


def of_split(rows: list[Row], split: str, *, also: tuple[str, ...] = ()) -> list[Row]:
    """Return the rows of a split; rows of a file that names no split are all of it.

    Args:
        rows: All rows of a file.
        split: The split.
        also: Other names whose rows belong to it.

    Returns:
        Its rows.
    """
    return [row for row in rows if row.split in ("", split, *also)]


def split_notes(file: Path, rows: list[Row], split: str) -> tuple[str, ...]:
    """Return a note if a file, whose rows name no split, is not called after the split either."""
    if split in file.name or any(row.split for row in rows):
        return ()
    return (f"{file.name} names no split: all of it is taken for {split}",)
