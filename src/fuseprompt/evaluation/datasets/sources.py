"""Facts of the datasets, read from `fuseprompt/data/datasets.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Final, Literal, final

import yaml  # type: ignore[import-untyped, unused-ignore]


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

    title: str
    splits: tuple[str, ...]  # The default first.
    ids: Literal["coco", "flickr", "nocaps", "file"]
    files: tuple[str, ...]  # Annotations below its folder, best first; "{split}" is filled in.
    images: tuple[str, ...]  # Folders of images, likewise.
    origin: tuple[str, ...] = ()
    licence: str = ""
    sentiments: tuple[str, ...] = ()
    contains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # Splits in one.
    counts: Mapping[str, Counts] = field(default_factory=dict)
    domains: Mapping[str, int] = field(default_factory=dict)  # Images of the default split.
    remarks: tuple[str, ...] = ()


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
