"""NoCaps: images of things that COCO's captions never name, in three domains.

CIDEr of a domain has its own word statistics, so scores of domains are never averaged into one of
the whole. Read next: `fuseprompt.evaluation.datasets.senticap`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets.forms import Row
from fuseprompt.evaluation.datasets.gather import Found, gather
from fuseprompt.evaluation.datasets.lines import read_rows
from fuseprompt.evaluation.datasets.locate import ImageFolders, annotation_file, image_root
from fuseprompt.evaluation.datasets.source import Counts, Source

#: Images of the validation split by domain.
DOMAINS: Final = {"in-domain": 648, "near-domain": 2_938, "out-domain": 914}


def read(root: Path, split: str) -> Found:
    """Return the items of a split.

    Args:
        root: The dataset's folder, or an annotation file.
        split: "val", or "test", whose captions are not public.

    Returns:
        The items, by NoCaps' own ids (0 to 4499), not by the ids of Open Images.

    Raises:
        DatasetError: If the annotations are missing or faulty.
    """
    with_captions = (
        ("nocaps_val_4500_captions.json", "nocaps_corpus.json") if split == "val" else ()
    )
    names = (*with_captions, f"nocaps_{split}_image_info.json", f"nocaps_{split}.json")
    rows = _with_domains(read_rows(annotation_file(root, names, dataset="nocaps")))
    folders = ImageFolders(image_root(root), (split, "images", f"images/{split}", "."))
    found = gather(rows, folders, id_of=_id, name_of=lambda row: row.image or row.id)
    if split != "val":
        return found
    return Found(found.items, (*found.notes, *_domain_notes(item.domain for item in found.items)))


def _with_domains(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows with domains as NoCaps writes them; ViECap has "in_domain" as the split."""
    for row in rows:
        said = row.domain or (row.split if "domain" in row.split else "")
        domain = said.replace("_", "-")
        if domain not in ("", *DOMAINS):
            raise DatasetError(
                f"{row.place}: domain is {said!r}, expected one of {', '.join(DOMAINS)}."
            )
        # ViECap keeps the images of a domain in a folder of its name.
        image = row.image or (f"{said}/{row.id}" if said else row.id)
        yield replace(row, domain=domain, image=image)


def _id(row: Row) -> str:
    stem = row.id.partition(".")[0]  # ViECap has "4499.jpg"
    # Ids of Open Images have 16 digits, which may all be decimal.
    if not (stem.isascii() and stem.isdigit() and len(stem) < 16):
        raise DatasetError(
            f"{row.place}: expected a NoCaps image id, a whole number, got {row.id!r}. "
            "Ids of Open Images do not do."
        )
    return str(int(stem))


def _domain_notes(domains: Iterable[str]) -> list[str]:
    counts = Counter(domains)
    if set(counts) == {""}:
        return ["the file names no domains: scores by domain need nocaps_val_4500_captions.json"]
    return [
        f"{counts[domain]:,} images are {domain}, published are {published:,}"
        for domain, published in DOMAINS.items()
        if counts[domain] != published
    ]


SOURCE = Source(
    title="NoCaps",
    splits=("val", "test"),
    read=read,
    files=(
        "nocaps_val_4500_captions.json",
        "or nocaps_val_image_info.json (no captions, no domains)",
        "or nocaps_corpus.json (ViECap)",
    ),
    images="val/, images/, images/val/ or the folder itself, named by file_name",
    origin=(
        "https://nocaps.org/download (image info)",
        "https://nocaps.s3.amazonaws.com/nocaps_val_4500_captions.json (captions)",
    ),
    licence="images of Open Images, CC BY 2.0; see nocaps.org for the captions",
    counts={"val": Counts(4_500, 45_000), "test": Counts(10_600)},
    remarks=(
        "ids are 0 to 4499, not those of Open Images",
        "the captions of test are not public",
    ),
)
