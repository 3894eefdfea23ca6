"""A resumable journal of JSON lines, and whether a caption names a thing.

Every benchmark appends a line per finished item and skips what its journal already holds, so it may
be stopped at any time. This file measures nothing. Read next: `photos/tune_weights.py`.
"""

import gzip
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


class Journal:
    """Rows in a file, one JSON object a line, each with a distinct key.

    Args:
        path: The file; made at the first row. A committed one may be compressed (.gz), to be read.
    """

    def __init__(self, path: Path) -> None:
        """Read the rows that are there; a line cut off by a kill is left out."""
        self._path = path
        self.rows: dict[str, dict[str, Any]] = {}
        content = path.read_bytes() if path.exists() else b""
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        lines = content.decode("utf-8").splitlines()
        for line in lines:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            self.rows[row["key"]] = row

    def __contains__(self, key: str) -> bool:
        """Return whether the row was finished before."""
        return key in self.rows

    def append(self, key: str, row: Mapping[str, Any]) -> None:
        """Write a row; two processes may share a file, as each line is one write."""
        self.rows[key] = {"key": key, **row}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps(self.rows[key]) + "\n")


def is_named(text: str, words: Iterable[str]) -> bool:
    """Return whether a text has one of the words, singular or plural, as a whole word."""
    pattern = "|".join(re.escape(word) for word in words)
    return re.search(rf"\b({pattern})(s|es)?\b", text, re.IGNORECASE) is not None


def shard(items: list[Any], part: str) -> list[Any]:
    """Return every n-th item, for part "i/n" counted from 1: several processes share a list."""
    index, count = (int(number) for number in part.split("/"))
    return items[index - 1 :: count]
