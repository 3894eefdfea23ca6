"""A dataset in memory: items with an image and the captions that people wrote for it.

Nothing is read here. Read next: `fuseprompt.evaluation.datasets.read`.
"""

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
    """One caption to write: an image, and the captions of people where there are any.

    Attributes:
        id: The image's id, a whole number in decimal where the dataset has such ids, else the name
            of the file. Unique in a dataset together with `sentiment`.
        image: The image file. It may be missing: a reader reads annotations only.
        references: Captions by people, cleaned (`clean_caption`), in the order of the file.
        sentiment: Sentiment of the caption and of its references, such as "positive", or "".
        domain: "in-domain", "near-domain" or "out-domain" in NoCaps, else "".
    """

    id: str
    image: Path
    references: tuple[str, ...] = ()
    sentiment: str = ""
    domain: str = ""


@final
@dataclass(frozen=True)
class Dataset:
    """The items of one split, by id (numbers by value, before names), then by sentiment.

    Attributes:
        fingerprint: SHA-256 of name, split and annotations; where the images lie is not in it.
        notes: Captions left out, counts that differ from the published, in sentences.
    """

    name: str
    split: str
    items: tuple[Item, ...]
    fingerprint: str
    notes: tuple[str, ...] = ()


def make_dataset(
    name: str, split: str, *, items: Iterable[Item], notes: tuple[str, ...] = ()
) -> Dataset:
    """Return a dataset of items in any order.

    Raises:
        DatasetError: If there is no item, or two have the same id and sentiment.
    """
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
