"""The JSON forms in which captions are passed around, each read into rows.

A form is recognised by its content, not by the file's name. Nothing is known here of single
datasets: which rows belong to a split and what an id is, their own modules say. Read next:
`fuseprompt.evaluation.datasets.lines`, the forms of one caption a line, then
`fuseprompt.evaluation.datasets.gather`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets.records import Record, as_record, as_records, read_json

#: Fields of listed objects, first come first served. MAGIC, CapDec, LAVIS, ViECap, ADS-Cap.
_IMAGE: Final = ("file_name", "image_name", "filename", "image_path", "file_path", "image")
_ID: Final = ("cocoid", "image_id", "img_id", "id")
_CAPTIONS: Final = ("captions", "caption", "references", "refs")
_SENTIMENT: Final = ("sentiment", "style")

#: What files call a tone, and what we call it.
_SENTIMENTS: Final = {"1": "positive", "0": "negative", "funny": "humorous", "humor": "humorous"}


@final
@dataclass(frozen=True)
class Row:
    """What a file says of one image; an image may have several rows.

    Attributes:
        place: Where it stands, for messages.
        image: The image file as the annotations name it, "" if they give only an id.
        id: The image's id as the annotations give it, "" if they give none.
        captions: Captions as they were written.
        split: Split, "" if the file does not say.
        sentiment: Tone of the captions, or "".
        domain: Domain of NoCaps, or "".
    """

    place: str
    image: str
    id: str
    captions: tuple[str, ...]
    split: str = ""
    sentiment: str = ""
    domain: str = ""


def read_json_rows(file: Path) -> list[Row]:
    """Return the rows of a JSON file in any of the forms of this module.

    Args:
        file: The file.

    Returns:
        Its rows, in order.

    Raises:
        DatasetError: If it is in none of the forms, or something in it is not as it should be.
    """
    content = read_json(file)
    place = file.name
    if isinstance(content, list):
        return [listed_row(record) for record in as_records(content, f"{place}: entry")]
    top = as_record(content, place)
    if isinstance(top.fields.get("images"), list):
        images = list(top.records("images"))
        if any("sentences" in image.fields for image in images):
            return [row for image in images for row in _sentence_rows(image)]
        return list(_coco_rows(top))
    return [_mapped_row(name, value, place) for name, value in top.fields.items()]


def _coco_rows(top: Record) -> Iterator[Row]:
    """Yield the rows of COCO's own form, `{"images": [...], "annotations": [...]}`.

    A file of images alone, as NoCaps publishes it, has no annotations.

    Raises:
        DatasetError: If an id stands for two images, or a caption belongs to none.
    """
    captions: dict[int, list[tuple[int, str]]] = {}
    places: dict[int, str] = {}
    notes = top.records("annotations") if "annotations" in top.fields else ()
    for order, note in enumerate(notes):
        image_id = note.number("image_id")
        # Annotations are listed in no order; their ids are the order that others sort by.
        rank = note.number("id") if note.has("id") else order
        captions.setdefault(image_id, []).append((rank, note.text("caption")))
        places.setdefault(image_id, note.place)
    seen: dict[int, str] = {}
    for image in top.records("images"):
        image_id = image.number("id")
        name = image.text("file_name") if image.has("file_name") else ""
        if image_id in seen:
            # CapDec lists an image once for each of its captions.
            if seen[image_id] != name:
                raise DatasetError(
                    f"{image.place}: id {image_id} stands for {name!r} here and for "
                    f"{seen[image_id]!r} before. Ids must differ: mend the file."
                )
            continue
        seen[image_id] = name
        domain = image.text("domain") if image.has("domain") else ""
        ordered = sorted(captions.pop(image_id, []), key=lambda pair: pair[0])
        texts = tuple(text for _, text in ordered)
        yield Row(image.place, name, str(image_id), texts, domain=domain)
    if captions:
        image_id = next(iter(captions))
        raise DatasetError(
            f"{places[image_id]}: image_id {image_id} is not among the images. "
            "Both lists must be of one split."
        )


def _sentence_rows(image: Record) -> Iterator[Row]:
    """Yield the rows of an image in Karpathy's form; SentiCap adds a tone to each sentence."""
    name = image.text("filename")
    if image.has("filepath"):
        name = f"{image.text('filepath')}/{name}"
    id_ = image.name("cocoid") if image.has("cocoid") else ""
    split = image.text("split")
    by_tone: dict[str, list[str]] = {}
    for sentence in image.records("sentences"):
        tone = ""
        if sentence.has("sentiment"):
            number = sentence.number("sentiment")
            if number not in (0, 1):
                raise DatasetError(
                    f"{sentence.place}: sentiment is {number}, expected 1 (positive) or 0."
                )
            tone = _SENTIMENTS[str(number)]
        by_tone.setdefault(tone, []).append(sentence.text("raw"))
    for tone, texts in (by_tone or {"": []}).items():
        yield Row(image.place, name, id_, tuple(texts), split, tone)


def listed_row(record: Record) -> Row:
    """Return the row of an object that stands for itself in a list or on a line.

    Args:
        record: An object with an image's name or id; captions, split, tone and domain are optional.

    Returns:
        The row.

    Raises:
        DatasetError: If it has neither name nor id, or a field is of the wrong kind.
    """
    image = next((record.text(key) for key in _IMAGE if record.has(key)), "")
    # Where an image is named, "id" is the caption's.
    keys = _ID[:-1] if image else _ID
    id_ = next((record.name(key) for key in keys if record.has(key)), "")
    if not image and not id_:
        raise DatasetError(
            f"{record.place}: expected one of the fields {', '.join((*_IMAGE, *_ID))}; "
            f"found {', '.join(sorted(record.fields)[:12]) or 'none'}."
        )
    captions = next((record.fields[key] for key in _CAPTIONS if record.has(key)), ())
    tone = next((record.name(key) for key in _SENTIMENT if record.has(key)), "")
    split = record.text("split") if record.has("split") else ""
    domain = record.text("domain") if record.has("domain") else ""
    return Row(
        record.place,
        image,
        id_,
        _texts(captions, record.place),
        split,
        _SENTIMENTS.get(tone, tone),
        domain,
    )


def _mapped_row(name: str, value: Any, place: str) -> Row:
    """Return the row of `{"name or id": ["caption", ...]}`: ViECap, CLIPScore."""
    return Row(f"{place}: {name!r}", "", name, _texts(value, f"{place}: {name!r}"))


def _texts(value: Any, place: str) -> tuple[str, ...]:
    """Return captions that are one text, texts, or objects with a text "raw" or "caption"."""
    if isinstance(value, str):
        return (value,)
    texts = []
    for index, entry in enumerate(value if isinstance(value, list | tuple) else (value,)):
        if isinstance(entry, Mapping):
            record = as_record(entry, f"{place}, caption {index}")
            entry = record.text("raw" if record.has("raw") else "caption")
        if not isinstance(entry, str):
            raise DatasetError(
                f"{place}: caption {index} is {type(entry).__name__}, expected a text."
            )
        texts.append(entry)
    return tuple(texts)
