"""A look at a dataset on disk before hours are spent on it: counts and missing images.

Read next: `fuseprompt.cli.datasets`, which prints this.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from fuseprompt.evaluation.datasets.read import read_dataset


@final
@dataclass(frozen=True)
class Check:
    """The content of a dataset's folder.

    Attributes:
        dataset: Its name.
        split: Its split.
        captions_to_write: Items: an image counts once for each sentiment.
        images: Images.
        references: Captions by people.
        by_sentiment: Items of each sentiment, empty without sentiments.
        by_domain: Items of each domain, empty without domains.
        missing: Images that are not there, or empty files; none is opened.
        first_missing: The first few of them.
        notes: Differences from the published dataset, and what was left out.
        fingerprint: SHA-256 of the annotations.
    """

    dataset: str
    split: str
    captions_to_write: int
    images: int
    references: int
    by_sentiment: Mapping[str, int]
    by_domain: Mapping[str, int]
    missing: int
    first_missing: tuple[str, ...]
    notes: tuple[str, ...]
    fingerprint: str

    @property
    def is_complete(self) -> bool:
        """Whether every image is there and nothing differs from what was published."""
        return not (self.missing or self.notes)


def check_dataset(
    name: str, root: Path, *, split: str | None = None, sentiment: str | None = None
) -> Check:
    """Read a dataset as `read_dataset` does, and look for its images."""
    dataset = read_dataset(name, root, split=split, sentiment=sentiment)
    images = {item.id: item.image for item in dataset.items}
    missing = [str(image) for image in images.values() if not _has_content(image)]
    return Check(
        dataset=name,
        split=dataset.split,
        captions_to_write=len(dataset.items),
        images=len(images),
        references=sum(len(item.references) for item in dataset.items),
        by_sentiment=_counted(item.sentiment for item in dataset.items),
        by_domain=_counted(item.domain for item in dataset.items),
        missing=len(missing),
        first_missing=tuple(missing[:3]),
        notes=dataset.notes,
        fingerprint=dataset.fingerprint,
    )


def _counted(values: Iterable[str]) -> dict[str, int]:
    return {value: count for value, count in sorted(Counter(values).items()) if value}


def _has_content(image: Path) -> bool:
    try:
        return image.is_file() and image.stat().st_size > 0
    except OSError:
        return False
