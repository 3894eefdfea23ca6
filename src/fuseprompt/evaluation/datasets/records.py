"""Annotation files as objects that know where they stand, so that every fault can be found.

JSON is read here and fields are checked; what the fields mean is not known. Read next:
`fuseprompt.evaluation.datasets.forms`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from fuseprompt.errors import DatasetError

#: Beginnings of files that are not what their name says, and what they are.
_NOT_DATA = {
    "<": "a web page, not data (a failed download?)",
    "version https://git-lfs": "a Git LFS pointer, not the data",
}


@final
@dataclass(frozen=True)
class Record:
    """One JSON object of an annotation file.

    Attributes:
        fields: The object.
        place: Where it stands, for messages, such as "captions.json: images 3".
    """

    fields: Mapping[str, Any]
    place: str

    def has(self, name: str) -> bool:
        """Return whether a field is there and not null."""
        return self.fields.get(name) is not None

    def text(self, name: str) -> str:
        """Return a text.

        Raises:
            DatasetError: If the field is missing or no text.
        """
        value = self._get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value

    def number(self, name: str) -> int:
        """Return a whole number, written as one, as 7.0 or as "7".

        Raises:
            DatasetError: If the field is missing or no whole number.
        """
        value = self._get(name)
        number = as_whole_number(value)
        if number is None:
            raise self._wrong(name, "a whole number")
        return number

    def name(self, name: str) -> str:
        """Return an id: a text, or a whole number as text.

        Raises:
            DatasetError: If the field is missing or neither.
        """
        value = self._get(name)
        if isinstance(value, str):
            return value
        number = as_whole_number(value)
        if number is None:
            raise self._wrong(name, "a whole number or a text")
        return str(number)

    def records(self, name: str) -> Iterator["Record"]:
        """Return the objects of a list, one after the other.

        Args:
            name: The field.

        Returns:
            The objects with their places.

        Raises:
            DatasetError: If the field is missing or no list of objects.
        """
        values = self._get(name)
        if not isinstance(values, list):
            raise self._wrong(name, "a list of objects")
        return as_records(values, f"{self.place}: {name}")

    def _get(self, name: str) -> Any:
        if not self.has(name):
            raise DatasetError(
                f"{self.place}: expected the field {name!r}, found {_listed(self.fields)}."
            )
        return self.fields[name]

    def _wrong(self, name: str, expected: str) -> DatasetError:
        return DatasetError(
            f"{self.place}: {name} is {_short(self.fields[name])}, expected {expected}."
        )


def read_json(file: Path) -> Any:
    """Return the content of a JSON file.

    Args:
        file: UTF-8, with or without a byte order mark.

    Returns:
        Objects, lists and values.

    Raises:
        DatasetError: If it cannot be read, or is no JSON.
    """
    text = read_text(file)
    try:
        return json.loads(text)
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


def read_text(file: Path) -> str:
    """Return the content of a text file in UTF-8, without its byte order mark.

    Raises:
        DatasetError: If it cannot be read, is in another encoding, a web page or a Git LFS pointer.
    """
    content = read_bytes(file)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{file}: byte {error.start} is not UTF-8. Convert the file: "
            "iconv -f latin1 -t utf-8 OLD > NEW."
        ) from None
    for start, what in _NOT_DATA.items():
        if text.lstrip().startswith(start):
            raise DatasetError(f"{file}: {what}. Download it again.")
    return text


def read_bytes(file: Path) -> bytes:
    """Return the content of a file.

    Raises:
        DatasetError: If it cannot be read.
    """
    try:
        return file.read_bytes()
    except OSError as error:
        raise DatasetError(f"{file}: cannot be read ({error.strerror}).") from None


def as_records(values: Sequence[Any], place: str) -> Iterator[Record]:
    """Yield the objects of a list with their places.

    Args:
        values: What should be objects.
        place: Where the list stands.

    Yields:
        The objects, counted from 0.

    Raises:
        DatasetError: If one is no object.
    """
    for index, value in enumerate(values):
        yield as_record(value, f"{place} {index}")


def as_record(value: Any, place: str) -> Record:
    """Return a value as an object with its place.

    Raises:
        DatasetError: If it is no object.
    """
    if not isinstance(value, dict):
        raise DatasetError(f"{place}: is {_short(value)}, expected an object {{...}}.")
    return Record(value, place)


def as_whole_number(value: Any) -> int | None:
    """Return the whole number that a value means, or None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _listed(fields: Mapping[str, Any]) -> str:
    return ", ".join(sorted(fields)[:12]) or "none"
