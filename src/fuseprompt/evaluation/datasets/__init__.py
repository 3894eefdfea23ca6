"""Captioning datasets: `read_dataset` turns local files into a `Dataset`; nothing is downloaded.

Each dataset has a module with its `Source`; forms that several have are read by `forms` and
`lines`. Read next: `fuseprompt.evaluation.datasets.base`.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets import (
    coco,
    flickr30k,
    flickrstyle,
    folder,
    karpathy,
    nocaps,
    senticap,
)
from fuseprompt.evaluation.datasets.base import Dataset, Item, make_dataset
from fuseprompt.evaluation.datasets.source import Source, different_counts

SOURCES: Final[Mapping[str, Source]] = {
    "coco": coco.SOURCE,
    "karpathy": karpathy.SOURCE,
    "nocaps": nocaps.SOURCE,
    "senticap": senticap.SOURCE,
    "flickr30k": flickr30k.SOURCE,
    "flickrstyle10k": flickrstyle.SOURCE,
    "folder": folder.SOURCE,
}

NAMES: Final = tuple(SOURCES)

__all__ = ["NAMES", "SOURCES", "Dataset", "Item", "Source", "find_source", "read_dataset"]


def read_dataset(
    name: str, root: Path, *, split: str | None = None, sentiment: str | None = None
) -> Dataset:
    """Read a split of a dataset from local files.

    Args:
        name: One of `NAMES`.
        root: The dataset's folder, or its annotation file.
        split: Name of the split; the dataset's default if None.
        sentiment: Tone to write in, "both" for every tone that the dataset has (positive and
            negative where it has none of its own). With None the tones are the dataset's own.

    Returns:
        The items with ids, images (which may be missing) and cleaned references.

    Raises:
        DatasetError: If there is no such dataset, split or tone, or a file is missing or faulty.
    """
    source = find_source(name)
    split = _known(split or source.splits[0], source.splits, f"split of {name}")
    found = source.read(Path(root), split)
    notes = (*found.notes, *different_counts(source, split, found.items))
    items: Iterable[Item] = found.items
    if sentiment is not None:
        items, remark = _in_tone(name, source, found.items, sentiment)
        notes += remark
    return make_dataset(name, split, items=items, notes=notes)


def find_source(name: str) -> Source:
    """Return what is known of a dataset.

    Raises:
        DatasetError: If there is no such dataset.
    """
    return SOURCES[_known(name, NAMES, "dataset")]


def _in_tone(
    name: str, source: Source, items: tuple[Item, ...], sentiment: str
) -> tuple[list[Item], tuple[str, ...]]:
    """Return the items of a tone, and a note if the references have none."""
    toned = [item for item in items if item.sentiment]
    known = source.sentiments or tuple(sorted({item.sentiment for item in toned}))
    if known:
        wanted = known if sentiment == "both" else (_known(sentiment, known, f"tone of {name}"),)
        return [item for item in toned if item.sentiment in wanted], ()
    wanted = ("negative", "positive") if sentiment == "both" else (sentiment,)
    note = f"the captions of {name} have no tone: those asked for are compared with plain ones"
    has_references = any(item.references for item in items)
    return [replace(item, sentiment=tone) for item in items for tone in wanted], (
        (note,) if has_references else ()
    )


def _known(given: str, known: tuple[str, ...], what: str) -> str:
    if given not in known:
        near = difflib.get_close_matches(given, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise DatasetError(f"{given!r} is no {what}, expected one of {', '.join(known)}.{hint}")
    return given
