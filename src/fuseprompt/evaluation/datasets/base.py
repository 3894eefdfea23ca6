"""Datasets in memory: items with an image and people's captions, and the facts of each dataset."""

import hashlib
import itertools
import json
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Final, Literal, final

import yaml  # type: ignore[import-untyped, unused-ignore]

from fuseprompt.errors import DatasetError

#: Controls that `str.split` does not take for white space, and halves of surrogate pairs.
_CONTROLS = {
    **{code: " " for code in (*range(0x20), *range(0x7F, 0xA0))},
    **{code: "\N{REPLACEMENT CHARACTER}" for code in range(0xD800, 0xE000)},
    0xFEFF: "",
}


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


def clean_caption(text: str) -> str:
    """Return a caption on one line, with single blanks, composed (NFC) and fit for UTF-8."""
    # Scoring tools take a caption a line: a line break inside would shift all later captions.
    if text.isascii() and text.isprintable():  # almost every caption of 600,000
        return " ".join(text.split())
    return " ".join(unicodedata.normalize("NFC", text.translate(_CONTROLS)).split())


@final
@dataclass(frozen=True)
class Counts:
    """The published size of a split; None where captions are not published or never counted."""

    images: int
    captions: int | None = None


@final
@dataclass(frozen=True)
class Source:
    """Facts of a dataset that are known before its files are read."""

    splits: tuple[str, ...]  # The default first.
    ids: Literal["coco", "flickr", "nocaps", "file"]
    files: tuple[str, ...]  # Annotations below its folder, best first; "{split}" is filled in.
    images: tuple[str, ...]  # Folders of images, likewise.
    origin: tuple[str, ...] = ()
    sentiments: tuple[str, ...] = ()
    contains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # Splits in one.
    counts: Mapping[str, Counts] = field(default_factory=dict)
    domains: Mapping[str, int] = field(default_factory=dict)  # Images of the default split.


def _read_sources() -> dict[str, Source]:
    file = resources.files("fuseprompt").joinpath("data", "datasets.yaml")
    sources = {}
    for name, facts in yaml.safe_load(file.read_text("utf-8")).items():
        counts = {split: Counts(**sizes) for split, sizes in facts.pop("counts", {}).items()}
        contains = {split: tuple(parts) for split, parts in facts.pop("contains", {}).items()}
        # A list of YAML becomes a tuple: a source is frozen.
        facts = {key: tuple(v) if isinstance(v, list) else v for key, v in facts.items()}
        sources[name] = Source(**facts, counts=counts, contains=contains)
    return sources


SOURCES: Final[Mapping[str, Source]] = _read_sources()
NAMES: Final = tuple(SOURCES)
