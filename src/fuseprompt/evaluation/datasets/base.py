"""A dataset in memory: items with an image and the captions that people wrote for it."""

import hashlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from fuseprompt.errors import DatasetError


@final
@dataclass(frozen=True)
class Item:
    """One caption to write; id and sentiment together are unique in a dataset."""

    id: str  # A whole number where the dataset has such ids, else the name of the file.
    image: Path  # It may be missing: a reader reads annotations only.
    references: tuple[str, ...] = ()  # Cleaned captions by people, in the order of the file.
    sentiment: str = ""  # Of the caption and of its references.
    domain: str = ""  # "in-domain", "near-domain" or "out-domain" in NoCaps.


@final
@dataclass(frozen=True)
class Dataset:
    """The items of one split, by id (numbers by value, before names), then by sentiment."""

    name: str
    split: str
    items: tuple[Item, ...]
    fingerprint: str  # SHA-256 of name, split and annotations, not of where the images lie.
    notes: tuple[str, ...] = ()


def make_dataset(
    name: str, split: str, *, items: Iterable[Item], notes: tuple[str, ...] = ()
) -> Dataset:
    """Return a dataset of items in any order."""
    ordered = tuple(sorted(items, key=lambda item: (*id_order(item.id), item.sentiment)))
    if not ordered:
        raise DatasetError(
            f"{name}: split {split!r} has no images. Choose another split or look at the file."
        )
    for one, other in itertools.pairwise(ordered):
        if (one.id, one.sentiment) == (other.id, other.sentiment):
            raise DatasetError(
                f"{name}: id {one.id} stands for two images, {one.image.name} and "
                f"{other.image.name}. Ids must differ: mend the annotation file."
            )
    content = [name, split, [[i.id, list(i.references), i.sentiment, i.domain] for i in ordered]]
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return Dataset(name, split, ordered, digest, notes)


def id_order(id_: str) -> tuple[int, int, str]:
    """Return a key that puts numbers by value before names."""
    is_number = id_.isascii() and id_.isdigit()
    return (0, int(id_), "") if is_number else (1, 0, id_)
