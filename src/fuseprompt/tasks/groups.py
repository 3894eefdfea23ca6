"""Groups of texts, pictures or vectors, as `fuseprompt name` takes them from a file or folder.

What cannot be read costs itself and is counted; a file without the columns, or a folder without
sub-folders, is a `UsageError`.
"""

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from fuseprompt.cache import decode_text
from fuseprompt.errors import ImageError, UsageError
from fuseprompt.models.images import list_images

#: Endings of text files, and what parts the columns there; a CSV file may have semicolons.
_TABLES = {".csv": ",", ".tsv": "\t", ".jsonl": "", ".ndjson": ""}


@final
@dataclass(frozen=True)
class Groups:
    """The members of each group, and a sentence on what was left out."""

    members: Mapping[str, list[Any]]
    note: str = ""


def read_groups(path: str | Path, *, column: str = "text", group: str = "group") -> Groups:
    """Return the groups of a file or folder.

    Args:
        path: A CSV, TSV or JSONL file of texts; a folder with a folder of pictures for each group;
            or a safetensors file with a tensor for each group, a vector in each row.
        column: Column, or key, of the texts.
        group: Column, or key, that says which group a text is in.

    Raises:
        UsageError: If there is no such file, or no group in it.
    """
    path = Path(path)
    ending = path.suffix.lower()
    if os.path.isdir(path):
        return _read_folder(path)
    if not os.path.isfile(path) or ending not in {*_TABLES, ".safetensors"}:
        found = f"a file {ending or 'without an ending'}" if os.path.exists(path) else "nothing"
        raise UsageError(
            f"{path}: expected a file .csv, .tsv or .jsonl of texts, a .safetensors file of "
            f"vectors, or a folder with a folder of pictures for each group; found {found}."
        )
    try:
        if ending == ".safetensors":
            return _read_vectors(path)
        text = decode_text(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}.") from None
    rows = _read_json(text) if not _TABLES[ending] else _read_table(path, text, _TABLES[ending])
    return _by_group(path, rows, column, group)


def _read_json(text: str) -> Iterator[Mapping[str, Any] | str]:
    for line in filter(str.strip, text.split("\n")):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        yield row if isinstance(row, dict) else "no JSON object"


def _read_table(path: Path, text: str, delimiter: str) -> Iterator[Mapping[str, Any] | str]:
    first = text.partition("\n")[0]
    if delimiter == "," and first.count(";") > first.count(","):
        delimiter = ";"
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    if len(set(reader.fieldnames or ())) < len(reader.fieldnames or ()):
        raise UsageError(f"{path}: two columns have one name: {reader.fieldnames}. Rename one.")
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            row = {}
            yield f"no row of a table ({error})"
        if row is None:
            return
        if row:
            yield "more values than columns" if None in row else row


def _by_group(
    path: Path, rows: Iterator[Mapping[str, Any] | str], column: str, group: str
) -> Groups:
    members: dict[str, list[Any]] = {}
    bad: Counter[str] = Counter()
    there: Counter[str] = Counter()
    num_rows = 0
    for row in rows:
        num_rows += 1
        if isinstance(row, str):
            bad[row] += 1
            continue
        there.update(map(str, row))
        text, name = row.get(column), row.get(group)
        name = "" if name is None or isinstance(name, dict | list) else str(name).strip()
        if not isinstance(text, str) or not text.strip():
            bad[f"without a text in {column!r}"] += 1
        elif not name:
            bad[f"without a name in {group!r}"] += 1
        else:
            members.setdefault(name, []).append(text)
    if lacking := [name for name in (column, group) if name not in there]:
        names = ", ".join(map(repr, there)) or "none"
        raise UsageError(
            f"{path}: no column {lacking[0]!r}; the columns are {names}. Say which one has the "
            "texts (--column), and which one the groups (--group)."
        )
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in bad.items())
    note = f"{path}: {sum(bad.values()):,} of {num_rows:,} rows left out: {reasons}." if bad else ""
    if not members:
        raise UsageError(note or f"{path}: no rows. Expected a text and its group in each.")
    return Groups(members, note)


def _read_folder(folder: Path) -> Groups:
    members: dict[str, list[Any]] = {}
    empty = []
    inside = sorted(each for each in folder.iterdir() if each.is_dir() and each.name[0] != ".")
    for each in inside:
        try:
            members[each.name] = [*list_images(each)]
        except ImageError:
            empty.append(each.name)
    if not members:
        raise UsageError(
            f"{folder}: expected a folder of pictures for each group in it, found "
            f"{len(inside)} folders and no picture in them."
        )
    note = f"{folder}: no pictures in {', '.join(empty)}; left out." if empty else ""
    return Groups(members, note)


def _read_vectors(path: Path) -> Groups:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise UsageError(f"{path}: is no safetensors file ({error}).") from None
    flat = [name for name, rows in tensors.items() if rows.ndim != 2 or not len(rows)]
    if flat or not tensors:
        shapes = {name: tuple(tensors[name].shape) for name in flat}
        raise UsageError(
            f"{path}: expected one tensor for each group with a vector in each row, got "
            f"{shapes or 'no tensor'}."
        )
    return Groups({name: [*rows.float()] for name, rows in sorted(tensors.items())})
