"""Datasets from local files: rows of a file become items, one for each image and sentiment."""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from fuseprompt.errors import DatasetError, ImageError
from fuseprompt.evaluation.datasets.base import (
    NAMES,
    SOURCES,
    Dataset,
    Item,
    Source,
    clean_caption,
    make_dataset,
)
from fuseprompt.evaluation.datasets.files import (
    ImageFolders,
    Row,
    last_part,
    read_flickrstyle,
    read_rows,
)
from fuseprompt.models.images import describe_left_alone, list_images

_TRAILING: Final = re.compile(r"([0-9]{1,18})(?:\.[A-Za-z]{1,5})?$")  # Of a COCO id or file name.


def read_dataset(
    name: str, root: Path, *, split: str | None = None, sentiment: str | None = None
) -> Dataset:
    """Return a split of a dataset, by default its first; `root` is its folder or annotation file.

    The sentiment is the one to write in, or "both" for every one that the dataset has (positive and
    negative where it has none); by default sentiments are the dataset's own.
    """
    source, root = find_source(name), Path(root)
    split = _known(split or source.splits[0], source.splits, f"split of {name}")
    folders = ImageFolders(root, _named(source.images, split))
    if source.ids == "file":
        items, notes = _read_folder(root, source, folders)
    else:
        rows, notes = _read_split(name, source, root, split)
        items, more = _gather(rows, folders, source.ids, split)
        notes += (*more, *_different_counts(source, split, items))
    if sentiment is not None:
        items, more = _with_sentiment(name, source, items, sentiment)
        notes += more
    return make_dataset(name, split, items=items, notes=notes)


def find_source(name: str) -> Source:
    """Return the facts of a dataset, or raise a `DatasetError` with the nearest name."""
    return SOURCES[_known(name, NAMES, "dataset")]


def _read_split(
    name: str, source: Source, root: Path, split: str
) -> tuple[list[Row], tuple[str, ...]]:
    """Return the rows of a split, and a note if the file names no splits."""
    notes: tuple[str, ...] = ()
    if name == "flickrstyle10k":
        rows = read_flickrstyle(root)
    else:
        file = _annotation_file(root, _named(source.files, split), source.origin)
        if file.suffix == ".token" and split != "all":
            raise DatasetError(
                f"{file}: a token file names no splits. Add {source.files[0]}, or take split all."
            )
        rows = read_rows(file)
        wanted = ("", split, *source.contains.get(split, ()))
        if split not in file.name and split != "all" and not any(row.split for row in rows):
            notes = (f"{file.name} names no split: all of it is taken for {split}",)
        rows = [row for row in rows if split == "all" or row.split in wanted]
    if source.sentiments:  # An image without any captions is no item then.
        rows = [row for row in rows if row.captions]
        _check(rows, "sentiment", source.sentiments)
    if source.domains:
        _check(rows, "domain", ("", *source.domains))
    return rows, notes


def _annotation_file(root: Path, names: Sequence[str], origin: Sequence[str]) -> Path:
    """Return `root` if it is a file, else the first of the names below it."""
    if root.is_file():
        return root
    _check_folder(root, "dataset")
    for file in (root / folder / name for name in names for folder in ("annotations", ".")):
        if file.is_file():
            return file
    raise DatasetError(
        f"{root}: expected one of {', '.join(names)} there or in its folder annotations. People "
        f"get it from {', '.join(origin)}."
    )


def _check_folder(root: Path, of: str) -> None:
    if not root.is_dir():
        what = "is no folder" if root.exists() else "no such folder"
        raise DatasetError(f"{root}: {what}. --root is the folder of the {of}.")


def _check(rows: Iterable[Row], name: str, known: Sequence[str]) -> None:
    for row in rows:
        if (value := getattr(row, name)) not in known:
            expected = ", ".join(filter(None, known))
            raise DatasetError(f"{row.place}: {name} is {value!r}, expected one of {expected}.")


def _read_folder(
    root: Path, source: Source, folders: ImageFolders
) -> tuple[list[Item], tuple[str, ...]]:
    """Return the images of a folder (not of its sub-folders) and those that its captions name."""
    _check_folder(root, "images")
    try:
        names = [image.name for image in list_images(root)]
        left = describe_left_alone(root, with_others=False)
    except ImageError as error:
        raise DatasetError(str(error)) from None
    notes: tuple[str, ...] = (left,) if left else ()
    file = next((root / name for name in source.files if (root / name).is_file()), None)
    if file is None:
        return [Item(name, root / name) for name in names], notes
    rows = []
    for row in read_rows(file):
        image = folders.find([row.image or row.id], place=row.place)
        rows.append(replace(row, id=image.relative_to(root).as_posix()))
    items, more = _gather(rows, folders, "file", "all")
    notes += more
    captioned = {item.id for item in items}
    others = [Item(name, root / name) for name in names if name not in captioned]
    if others:
        notes += (f"{len(others):,} images are not in {file.name}, the first is {others[0].id}",)
    return [*items, *others], notes


def _gather(
    rows: Iterable[Row], folders: ImageFolders, ids: str, split: str
) -> tuple[list[Item], tuple[str, ...]]:
    """Return an item for each image and sentiment, with its captions in the order of the rows."""
    joined: dict[tuple[str, str], tuple[Row, list[str], list[str]]] = {}
    empty: list[str] = []
    for row in rows:
        id_, names = _identify(row, ids, split)
        first, known, captions = joined.setdefault((id_, row.sentiment), (row, names, []))
        if last_part(known[0]) != last_part(names[0]):
            raise DatasetError(
                f"{row.place}: id {id_} stands for {names[0]!r} here and for {known[0]!r} "
                f"before ({first.place}). Ids must differ: mend the file."
            )
        cleaned = [clean_caption(caption) for caption in row.captions]
        captions += filter(None, cleaned)
        empty += [row.place] * cleaned.count("")
    items = []
    for (id_, sentiment), (row, names, captions) in joined.items():
        file = folders.find(names, place=row.place)
        items.append(Item(id_, file, tuple(captions), sentiment, row.domain))
    notes = []
    if empty:
        notes.append(f"{len(empty):,} empty captions left out, the first at {empty[0]}")
    bare = sorted(item.id for item in items if not item.references)
    if items and len(bare) == len(items):
        notes.append("no image has captions: captions can be written, not scored")
    elif bare:
        notes.append(f"{len(bare):,} images without a caption, the first is {bare[0]}")
    return items, tuple(notes)


def _identify(row: Row, ids: str, split: str) -> tuple[str, list[str]]:
    """Return the id of a row's image, and the names that its file may have, best first."""
    if ids == "coco":
        return _coco_image(row, split)
    if ids == "flickr":
        name = last_part(row.image)
        number = re.split(r"[._]", name)[0]
        if not (number.isascii() and number.isdigit()):
            raise DatasetError(
                f"{row.place}: expected a photo's name such as 1000092795.jpg, got {name!r}."
            )
        # FlickrStyle10K has "1000092795_2ab3cd.jpg" for Flickr30k's photo of that number.
        return number, [row.image, f"{number}.jpg"]
    if ids == "nocaps":
        # Ids of Open Images have 16 digits, which may all be decimal.
        if not (row.id.isascii() and row.id.isdigit() and len(row.id) < 16):
            raise DatasetError(
                f"{row.place}: expected a NoCaps image id, a whole number, got {row.id!r}. "
                "Ids of Open Images do not do."
            )
        return str(int(row.id)), [row.image or row.id]
    return row.id, [row.id]  # Of a folder, where the id is the place in it.


def _coco_image(row: Row, split: str) -> tuple[str, list[str]]:
    """Return COCO's id of an image, and its names: the releases of 2014 and 2017 share images."""
    of_id, of_name = _TRAILING.search(row.id), _TRAILING.search(row.image)
    found = of_id or of_name
    if found is None:
        raise DatasetError(
            f"{row.place}: expected a COCO image id or a name such as "
            f"COCO_val2014_000000000007.jpg, got {(row.id or row.image)!r}."
        )
    number = int(found[1])
    if of_name is not None and int(of_name[1]) != number:
        raise DatasetError(
            f"{row.place}: the id is {number}, the image is {row.image!r}. Both must be of one "
            "image: mend the file."
        )
    releases = sorted(("val2014", "train2014"), key=lambda release: release != split)
    names = [f"COCO_{release}_{number:012d}.jpg" for release in releases]
    names.insert(0 if split.endswith("2017") else 2, f"{number:012d}.jpg")
    return str(number), [row.image, *names] if row.image else names


def _different_counts(source: Source, split: str, items: Sequence[Item]) -> Iterator[str]:
    """Yield in words how the counts of a split differ from the published ones."""
    if published := source.counts.get(split):
        images = len({item.id for item in items})
        captions = sum(len(item.references) for item in items)
        if images != published.images:
            yield f"{images:,} images, published are {published.images:,}"
        if captions and published.captions not in (None, captions):
            yield f"{captions:,} captions, published are {published.captions:,}"
    if source.domains and split == source.splits[0]:
        counts = Counter(item.domain for item in items)
        if set(counts) == {""}:
            yield f"the file names no domains: scores by domain need {source.files[0]}"
        else:
            for domain, count in source.domains.items():
                if counts[domain] != count:
                    yield f"{counts[domain]:,} images are {domain}, published are {count:,}"


def _with_sentiment(
    name: str, source: Source, items: Sequence[Item], sentiment: str
) -> tuple[list[Item], tuple[str, ...]]:
    """Return the items of a sentiment, and a note if the references have none."""
    own = source.sentiments or tuple(sorted({item.sentiment for item in items} - {""}))
    if own:
        if sentiment != "both":
            own = (_known(sentiment, own, f"sentiment of {name}"),)
        return [item for item in items if item.sentiment in own], ()
    wanted = ("negative", "positive") if sentiment == "both" else (sentiment,)
    note = f"the captions of {name} have no sentiment: those asked for are compared with plain ones"
    notes = (note,) if any(item.references for item in items) else ()
    return [replace(item, sentiment=each) for item in items for each in wanted], notes


def _named(names: Iterable[str], split: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.format(split=split) for name in names))


def _known(given: str, known: tuple[str, ...], what: str) -> str:
    if given not in known:
        near = difflib.get_close_matches(given, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise DatasetError(f"{given!r} is no {what}, expected one of {', '.join(known)}.{hint}")
    return given
