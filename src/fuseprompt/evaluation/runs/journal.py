"""The journal of a run: one JSON object a line for every image, only ever appended to.

Once `append` has returned, its records are on the disk. A kill may cut off the last line and
nothing else; the next run removes the torn part and does that work again. The order of the lines
decides which record is newer; no clock does.
"""

import errno
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from fuseprompt.errors import RunError

#: Id of the image and sentiment: they identify a caption within a run.
Key = tuple[str, str]


@final
@dataclass(frozen=True)
class Found:
    """Result of a search for one image.

    `caption` is `text` without its prefix; `terms` are without their weights; `seconds` are those
    of the group divided by its images.
    """

    caption: str
    text: str
    token_ids: tuple[int, ...]
    loss: float
    terms: Mapping[str, float]
    finished: bool
    seconds: float


@final
@dataclass(frozen=True)
class Record:
    """One line of a journal: a caption, or a sentence on why there is none."""

    # `attempt` counts tries of this image, `group` names those that were searched with it, `time`
    # (UTC, ISO 8601) is for people only.

    dataset: str
    id: str
    sentiment: str
    settings: str
    attempt: int
    image: str
    group: tuple[str, ...]
    host: str
    time: str
    found: Found | None = None
    error: str = ""

    @property
    def key(self) -> Key:
        """Id of the image and sentiment."""
        return (self.id, self.sentiment)

    @property
    def ok(self) -> bool:
        """Whether there is a caption."""
        return self.found is not None

    def as_json(self) -> dict[str, Any]:
        """Return the record as one flat JSON object."""
        flat = asdict(self)
        found, error = flat.pop("found"), flat.pop("error")
        return {**flat, "ok": self.ok, **(found if self.ok else {"error": error})}

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> "Record":
        """Return the record in a flat JSON object; a `KeyError` or `TypeError` if there is none."""
        values = {name: read[name] for name in cls.__dataclass_fields__.keys() - {"found", "error"}}
        values["group"] = tuple(values["group"])
        if not read["ok"]:
            return cls(**values, error=str(read["error"]))
        found = {name: read[name] for name in Found.__dataclass_fields__}
        found |= {"token_ids": tuple(found["token_ids"]), "terms": dict(found["terms"])}
        return cls(**values, found=Found(**found))


class Journal(AbstractContextManager["Journal"]):
    """A journal that is open for writing, its torn last line cut off; the run's lock is held."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            self.records, self._size = _parse(path)
            os.ftruncate(self._file, self._size)
        except BaseException:
            os.close(self._file)
            raise

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        os.close(self._file)

    def append(self, records: Sequence[Record]) -> None:
        """Write the records of a group and wait until they are on the disk.

        Raises:
            RunError: If they cannot be written, such as on a full disk. None of them then is in the
                journal, and all earlier ones are.
        """
        if not records:
            return
        lines = "".join(json.dumps(record.as_json()) + "\n" for record in records)
        data, written = lines.encode("ascii"), 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):  # What is left of the line would be cut off at the next start.
                os.ftruncate(self._file, self._size)
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = "the disk is full" if is_full else f"cannot be written ({error.strerror})"
            raise RunError(
                f"{self._path}: {reason}. All earlier captions are safe: make room and go on with "
                "--resume."
            ) from None
        self._size += written
        self.records.extend(records)


def read_journal(path: Path) -> list[Record]:
    """Return the records of a journal as they were written; it may be missing, or its end torn."""
    return _parse(path)[0] if path.exists() else []


def newest(records: Iterable[Record]) -> dict[Key, Record]:
    """Return the last record of each key."""
    return {record.key: record for record in records}


def _parse(path: Path) -> tuple[list[Record], int]:
    """Return the records and the bytes that they take up."""
    *lines, torn = path.read_bytes().split(b"\n")
    records: list[Record] = []
    size = 0
    for number, line in enumerate(lines, start=1):
        try:
            records.append(Record.from_json(json.loads(line)))
        except (ValueError, KeyError, TypeError):
            # After a power cut a line may have its end and not its middle.
            if number == len(lines) and not torn:
                break
            raise RunError(
                f"{path}: line {number} is no record of a run. Remove the line; the image is then "
                "captioned again."
            ) from None
        size += len(line) + 1
    return records, size
