"""Files of a dataset: the published layouts of captions, read into rows, and where images are.

Objects of JSON know their place in a file, so that faults can be found. Names in annotation files
are never trusted: a path lies inside the folder that the user gave.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from fuseprompt.cache import decode_text
from fuseprompt.errors import DatasetError

#: Beginnings of files that are not what their name says, and what they are.
_NOT_DATA = {
    "<": "a web page, not data (a failed download?)",
    "version https://git-lfs": "a Git LFS pointer, not the data",
}


@final
@dataclass(frozen=True)
class Record:
    """One JSON object of a file, and its place for messages, such as "captions.json: images 3"."""

    fields: Mapping[str, Any]
    place: str

    @property
    def names(self) -> str:
        """The names of the fields for a message, and which of them are null."""
        names = sorted(self.fields)[:12]
        return ", ".join(n if self.has(n) else f"{n} (null)" for n in names) or "none"

    def has(self, name: str) -> bool:
        """Return whether a field is there and not null."""
        return self.fields.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text; a missing one is the default, or an error without it."""
        return str(self._read(name, "a text", _if_type(str), default))

    def number(self, name: str, default: int | None = None) -> int:
        """Return a whole number, written as one, as 7.0 or as "7"."""
        return int(self._read(name, "a whole number", _whole_number, default))

    def id(self, name: str, default: str | None = None) -> str:
        """Return an id as text: a text, or a whole number."""
        # Not as a number if it is a text: "007" stays as it is.
        convert = _if_type(str) if isinstance(self.fields.get(name), str) else _whole_number
        return str(self._read(name, "a whole number or a text", convert, default))

    def records(self, name: str) -> list["Record"]:
        """Return the objects of a list, with their places."""
        values = self._read(name, "a list of objects", _if_type(list))
        return as_records(values, f"{self.place}: {name}")

    def _read(
        self, name: str, expected: str, convert: Callable[[Any], Any], default: Any = None
    ) -> Any:
        if not self.has(name):
            if default is not None:
                return default
            raise DatasetError(f"{self.place}: expected the field {name!r}, found {self.names}.")
        value = convert(self.fields[name])
        if value is None:
            found = short(self.fields[name])
            raise DatasetError(f"{self.place}: {name} is {found}, expected {expected}.")
        return value


def as_records(values: Sequence[Any], place: str) -> list[Record]:
    """Return the values of a list, counted from 0, as objects with their places."""
    return [as_record(value, f"{place} {index}") for index, value in enumerate(values)]


def as_record(value: Any, place: str) -> Record:
    """Return a value as an object with its place, or raise a `DatasetError` if it is none."""
    if not isinstance(value, dict):
        raise DatasetError(f"{place}: is {short(value)}, expected an object {{...}}.")
    return Record(value, place)


def read_json(file: Path) -> Any:
    """Return the content of a JSON file, or raise a `DatasetError` that names the fault."""
    try:
        return json.loads(_read_text(file))
    except json.JSONDecodeError as error:
        remedy = (
            "If it has one object a line, let its name end in .jsonl."
            if error.msg == "Extra data"
            else "The file may be cut short: compare its size or download it again."
        )
        raise DatasetError(
            f"{file}: no JSON in line {error.lineno}, column {error.colno} ({error.msg}). {remedy}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{file}: JSON that cannot be read ({error}).") from None


def json_lines(file: Path) -> Iterator[Record]:
    """Yield the object on each line of a file, or raise a `DatasetError` that names the line."""
    for place, line in numbered_lines(file):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DatasetError(
                f"{place}: no JSON ({error}). Expected an object a line; the file may be cut short."
            ) from None
        yield as_record(value, place)


def numbered_lines(file: Path) -> Iterator[tuple[str, str]]:
    """Yield place and text of each line that is not blank."""
    for number, line in enumerate(split_lines(_read_text(file)), start=1):
        if line.strip():
            yield f"{file.name}: line {number}", line


def _read_text(file: Path) -> str:
    """Return the content of a text file."""
    try:
        text = decode_text(read_bytes(file))
    except ValueError as error:
        raise DatasetError(f"{file}: {error}.") from None
    for start, what in _NOT_DATA.items():
        if text.lstrip().startswith(start):
            raise DatasetError(f"{file}: {what}. Download it again.")
    return text


def read_bytes(file: Path) -> bytes:
    """Return the content of a file, or raise a `DatasetError`."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise DatasetError(f"{file}: cannot be read ({error.strerror}).") from None


def split_lines(text: str) -> list[str]:
    """Return lines without their LF or CR LF; other separators of Unicode are part of a line."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _if_type(kind: type) -> Callable[[Any], Any]:
    return lambda value: value if isinstance(value, kind) else None


def _whole_number(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def short(value: Any) -> str:
    """Return a value as Python writes it, cut for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@final
class ImageFolders:
    """The folders of images below a dataset's root, best first; the root may be a file."""

    def __init__(self, root: Path, folders: Sequence[str]) -> None:
        if not root.is_dir():
            root = root.parent.parent if root.parent.name == "annotations" else root.parent
        # Texts, since joining and hashing 40,000 paths takes seconds.
        self._bases = [str(root / folder) for folder in folders]
        self._root = root
        self._listed: dict[str, frozenset[str]] = {}

    def find(self, names: Sequence[str], *, place: str) -> Path:
        """Return the file of an image inside the folder, or where it is expected if not found."""
        split = [_split(name, place) for name in names]
        for folder, last in split:
            for sub in dict.fromkeys((folder, "")):
                for base in self._bases:
                    where = os.path.join(base, sub) if sub else base
                    if last in self._names(where):
                        return Path(where, last)
        folder, last = split[0]
        return self._root / folder / last if folder else Path(self._bases[0], last)

    def _names(self, folder: str) -> frozenset[str]:
        """Return the names in a folder; one look at a folder is cheaper than one at every image."""
        if folder not in self._listed:
            try:
                self._listed[folder] = frozenset(os.listdir(folder))
            except (OSError, UnicodeError):  # No name that a file can have.
                self._listed[folder] = frozenset()
        return self._listed[folder]


def last_part(name: str) -> str:
    """Return the file's name in a path of any system."""
    return re.split(r"[\\/]", name)[-1]


def _split(name: str, place: str) -> tuple[str, str]:
    """Return folder and file of a path; the folder of one that is absolute or climbs is dropped."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or parts[-1] == ".." or any("\0" in part for part in parts):
        raise DatasetError(f"{place}: {name!r} is no name of an image file.")
    is_foreign = re.match(r"/|\\|[A-Za-z]:|\w+://", name) is not None or ".." in parts
    return "" if is_foreign else "/".join(parts[:-1]), parts[-1]


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
