"""The published layouts of captions, each read into rows: COCO, Karpathy, lists, tables."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets.files import (
    Record,
    as_record,
    as_records,
    json_lines,
    numbered_lines,
    read_bytes,
    read_json,
    short,
    split_lines,
)

#: FlickrStyle10K: captions and names of each sentiment.
_STYLES: Final = {
    "humorous": ("humor/funny_train.txt", "humor/train.p"),
    "romantic": ("romantic/romantic_train.txt", "romantic/train.p"),
}

#: A list of texts as Python 2 pickles it, in lines: "(lp1", then "Vname" or "S'name'", "p2", "a".
_PICKLED_LIST: Final = re.compile(rb"\(lp\d+\n((V[^\n']+|S'[^\n']+')\np\d+\na)*\.\s*")
_PICKLED_TEXT: Final = re.compile(rb"^a?(?:V|S')([^\n']+)", re.MULTILINE)


@final
@dataclass(frozen=True)
class Row:
    """Raw annotations of one image, which may have several rows; a field not in the file is ""."""

    place: str  # In the file, for messages.
    image: str  # The file as the annotations name it.
    id: str
    captions: tuple[str, ...]
    split: str = ""
    sentiment: str = ""
    domain: str = ""


def read_rows(file: Path) -> list[Row]:
    """Return the rows of an annotation file; its name's ending and its content say the layout."""
    suffix = file.suffix.lower()
    if suffix == ".jsonl":
        return [_listed_row(record) for record in json_lines(file)]
    if suffix in (".tsv", ".token"):
        return list(_table_rows(file))
    content = read_json(file)
    if isinstance(content, list):
        return [_listed_row(record) for record in as_records(content, f"{file.name}: entry")]
    top = as_record(content, file.name)
    images = top.records("images")
    if any("sentences" in image.fields for image in images):
        return [row for image in images for row in _karpathy_rows(image)]
    return list(_coco_rows(top, images))


def read_flickrstyle(root: Path) -> list[Row]:
    """Return the rows of FlickrStyle10K; its pickled lists of names are read, never unpickled."""
    base = root / "FlickrStyle_v0.9" if (root / "FlickrStyle_v0.9").is_dir() else root
    rows = []
    for sentiment, (captions_file, names_file) in _STYLES.items():
        pickled = read_bytes(base / names_file)
        if _PICKLED_LIST.fullmatch(pickled) is None:
            raise DatasetError(
                f"{base / names_file}: no pickled list of names as Python 2 writes it. Take the "
                "file of the release; nothing else is read."
            )
        names = [name.decode("ascii", "replace") for name in _PICKLED_TEXT.findall(pickled)]
        # The release has one comma in GB 18030; all else is UTF-8.
        content = read_bytes(base / captions_file).replace(b"\xa3\xac", b", ")
        captions = split_lines(content.decode("utf-8-sig", "replace"))
        if len(captions) != len(names):
            raise DatasetError(
                f"{base / captions_file}: {len(captions):,} captions, but {len(names):,} names in "
                f"{names_file}. Lines belong together: take both files of one release."
            )
        for number, (caption, name) in enumerate(zip(captions, names, strict=True), start=1):
            place = f"{captions_file}: line {number}"
            rows.append(Row(place, name, "", (caption,), sentiment=sentiment))
    return rows


def _coco_rows(top: Record, images: list[Record]) -> Iterator[Row]:
    """Yield the rows of `{"images": [...], "annotations": [...]}`; NoCaps has images alone."""
    notes_of: dict[int, list[tuple[int, str, str]]] = {}
    notes = top.records("annotations") if "annotations" in top.fields else []
    for order, note in enumerate(notes):
        # Annotations are listed in no order; their ids are the order that others sort by.
        ranked = (note.number("id", order), note.text("caption"), note.place)
        notes_of.setdefault(note.number("image_id"), []).append(ranked)
    for image in images:
        image_id = image.number("id")
        ordered = sorted(notes_of.pop(image_id, []), key=lambda note: note[0])
        texts = tuple(text for _, text, _ in ordered)
        name, domain = image.text("file_name", ""), image.text("domain", "")
        yield Row(image.place, name, str(image_id), texts, domain=domain)
    for image_id, ((_, _, place), *_) in notes_of.items():
        raise DatasetError(
            f"{place}: image_id {image_id} is not among the images. "
            "Both lists must be of one split."
        )


def _karpathy_rows(image: Record) -> Iterator[Row]:
    """Yield the rows of an image with "sentences"; SentiCap adds a sentiment to each of them."""
    name, folder = image.text("filename"), image.text("filepath", "")
    by_sentiment: dict[str, list[str]] = {}
    for sentence in image.records("sentences"):
        number = sentence.number("sentiment", -1)
        if number not in (-1, 0, 1):
            raise DatasetError(
                f"{sentence.place}: sentiment is {number}, expected 1 (positive) or 0."
            )
        sentiment = ("negative", "positive", "")[number]
        by_sentiment.setdefault(sentiment, []).append(sentence.text("raw"))
    for sentiment, texts in (by_sentiment or {"": []}).items():
        path, id_ = f"{folder}/{name}" if folder else name, image.id("cocoid", "")
        yield Row(image.place, path, id_, tuple(texts), image.text("split"), sentiment)


def _listed_row(record: Record) -> Row:
    """Return the row of an object in a list or on a line."""
    image, id_ = record.text("image", ""), record.id("image_id", "")
    if not image and not id_:
        found = record.names
        raise DatasetError(f"{record.place}: expected the field image or image_id; found {found}.")
    given = record.fields.get("captions", record.fields.get("caption")) or ()
    captions = given if isinstance(given, list | tuple) else (given,)
    for index, caption in enumerate(captions):
        if not isinstance(caption, str):
            raise DatasetError(
                f"{record.place}: caption {index} is {short(caption)}, expected a text."
            )
    split, sentiment, domain = (record.text(key, "") for key in ("split", "sentiment", "domain"))
    return Row(record.place, image, id_, tuple(captions), split, sentiment, domain)


def _table_rows(file: Path) -> Iterator[Row]:
    """Yield rows of "image TAB caption [TAB caption ...]"; Flickr30k has "1.jpg#0" for image."""
    for index, (place, line) in enumerate(numbered_lines(file)):
        image, *captions = line.split("\t")
        if index == 0 and image.strip().lower() == "image":
            continue
        if not captions or not image.strip():
            raise DatasetError(f"{place}: expected an image's name, a tab and a caption.")
        yield Row(place, re.sub(r"#\d+$", "", image.strip()), "", tuple(captions))
