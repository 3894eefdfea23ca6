"""The forms with one caption or one image a line, and the choice of a form by the file's ending.

Lines end with LF or CR LF and nothing else: captions may hold Unicode's own line separators. Read
next: `fuseprompt.evaluation.datasets.gather`, which makes items of rows.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets.forms import Row, listed_row, read_json_rows
from fuseprompt.evaluation.datasets.records import as_record, read_text

#: First cells of a header.
_HEADERS: Final = frozenset({"image", "image_name", "file", "filename", "file_name"})


def read_rows(file: Path) -> list[Row]:
    """Return the rows of an annotation file.

    Args:
        file: JSON lines (`.jsonl`), tab-separated (`.tsv`, `.token`, `.txt`), what SentiCap's own
            reader writes (`.csv`), or JSON in one of the forms of
            `fuseprompt.evaluation.datasets.forms` (any other ending).

    Returns:
        Its rows, in order.

    Raises:
        DatasetError: If it cannot be read, or something in it is not as it should be.
    """
    match file.suffix.lower():
        case ".jsonl" | ".ndjson":
            return list(_json_lines(file))
        case ".tsv" | ".token" | ".txt":
            return list(_tabbed(file))
        case ".csv":
            return list(_senticap_csv(file))
        case _:
            return read_json_rows(file)


def split_lines(text: str) -> list[str]:
    """Return the lines of a text, without their LF or CR LF; a last empty line is none."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _numbered(file: Path) -> Iterator[tuple[str, str]]:
    """Yield place and text of each line that is not blank."""
    for number, line in enumerate(split_lines(read_text(file)), start=1):
        if line.strip():
            yield f"{file.name}: line {number}", line


def _json_lines(file: Path) -> Iterator[Row]:
    for place, line in _numbered(file):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"{place}: no JSON ({error}). Expected an object a line.") from None
        yield listed_row(as_record(value, place))


def _tabbed(file: Path) -> Iterator[Row]:
    """Yield rows of "image TAB caption [TAB caption ...]"; Flickr30k has "1.jpg#0" for image."""
    for index, (place, line) in enumerate(_numbered(file)):
        image, *captions = line.split("\t")
        if index == 0 and image.strip().lower() in _HEADERS:
            continue
        if not captions or not image.strip():
            raise DatasetError(f"{place}: expected an image's name, a tab and a caption.")
        yield Row(place, re.sub(r"#\d+$", "", image.strip()), "", tuple(captions))


def _senticap_csv(file: Path) -> Iterator[Row]:
    """Yield rows of "filename,is_positive,caption", whose quotes nobody escapes."""
    for index, (place, line) in enumerate(_numbered(file)):
        cells = [cell.strip() for cell in line.split(",", 2)]
        if index == 0 and cells[0].strip('"').lower() in _HEADERS:
            continue
        tones = {"1": "positive", "0": "negative"}
        if len(cells) != 3 or cells[1] not in tones:
            raise DatasetError(
                f"{place}: expected FILENAME,1 or 0,CAPTION as SentiCap's reader writes it. "
                "Captions of other images go into a .jsonl or .tsv file."
            )
        image, tone, caption = cells
        is_quoted = len(caption) > 1 and caption[0] == caption[-1] == '"'
        yield Row(
            place,
            image.strip('"'),
            "",
            (caption[1:-1] if is_quoted else caption,),
            sentiment=tones[tone],
        )
