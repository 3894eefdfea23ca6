"""The folder of a run: lock, settings, journal, and the files that are made of the journal.

`captions.jsonl` depends on the captions alone: whatever was killed, retried or sharded, its bytes
are the same. When, where and how often is in `timing.jsonl`. Nothing is captioned here. Read next:
`fuseprompt.evaluation.runs.evaluate`.
"""

import fcntl
import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from fuseprompt.errors import RunError
from fuseprompt.evaluation.datasets.base import id_order
from fuseprompt.evaluation.runs.journal import Key, Record, newest, read_journal
from fuseprompt.evaluation.runs.plan import Shard
from fuseprompt.evaluation.runs.settings import RunSettings

#: Version of the folder's files.
FORMAT_VERSION: Final = 1

JOURNAL: Final = "journal.jsonl"
CAPTIONS: Final = "captions.jsonl"
TIMING: Final = "timing.jsonl"
_SETTINGS: Final = "settings.json"
_LOCK: Final = "lock"


@final
@dataclass(frozen=True)
class Scope:
    """Which captions a folder is meant to hold; no caption depends on it.

    Attributes:
        num_jobs: Captions of the whole run, all shards together.
        shard: The part of it in this folder.
        num_shard_jobs: Captions of that part.
        limit: Only the first so many images were asked for, or None.
        root: Where the dataset lies.
        sentiment: Tone that the dataset was read with, or None.
    """

    num_jobs: int
    shard: Shard
    num_shard_jobs: int
    limit: int | None
    root: str
    sentiment: str | None = None


@final
@dataclass(frozen=True)
class Run:
    """What a folder holds.

    Attributes:
        folder: The folder.
        settings: What the captions depend on.
        scope: Which captions it is meant to hold.
        records: Newest record of each key, in the order of the dataset.
        num_attempts: Records in the journal, those that were replaced by newer ones included.
    """

    folder: Path
    settings: RunSettings
    scope: Scope
    records: Mapping[Key, Record]
    num_attempts: int

    @property
    def captions(self) -> dict[Key, Record]:
        """The records with a caption."""
        return {key: record for key, record in self.records.items() if record.ok}

    @property
    def num_missing(self) -> int:
        """Captions that the folder is meant to hold and does not."""
        return max(0, self.scope.num_shard_jobs - len(self.captions))

    @property
    def failures(self) -> dict[Key, Record]:
        """The records of images that failed."""
        return {key: record for key, record in self.records.items() if not record.ok}


def read_run(folder: Path) -> Run:
    """Read the folder of a run, finished or not.

    Args:
        folder: The folder.

    Returns:
        The run.

    Raises:
        RunError: If it is no folder of a run, or one of its files is damaged.
    """
    settings, scope = read_settings(folder)
    records = read_journal(folder / JOURNAL)
    check_records(records, settings, folder)
    latest = newest(records)
    ordered = {key: latest[key] for key in sorted(latest, key=_order)}
    return Run(folder, settings, scope, ordered, len(records))


def check_records(records: Iterable[Record], settings: RunSettings, folder: Path) -> None:
    """Refuse a journal with captions of other settings than the run's.

    Args:
        records: Records of the journal.
        settings: Settings of the run.
        folder: The folder, for the message.

    Raises:
        RunError: If there is one.
    """
    for record in records:
        if record.settings != settings.hash:
            raise RunError(
                f"{folder / JOURNAL}: holds a record of {record.id} made with the settings "
                f"{record.settings}, the run's are {settings.hash}. Files of two runs were mixed: "
                "caption anew into another folder."
            )


def has_settings(folder: Path) -> bool:
    """Return whether a run was begun in a folder."""
    return (folder / _SETTINGS).exists()


def read_settings(folder: Path) -> tuple[RunSettings, Scope]:
    """Read what a run depends on and which captions it is meant to hold.

    Args:
        folder: The folder of the run.

    Returns:
        Both.

    Raises:
        RunError: If it is no folder of a run, or its settings cannot be read.
    """
    file = folder / _SETTINGS
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
        version, settings, scope = read["format_version"], read["settings"], dict(read["scope"])
        scope["shard"] = Shard(**scope["shard"])
        known = Scope(**scope)
    except FileNotFoundError:
        raise RunError(
            f"{folder}: no run, there is no {_SETTINGS} in it. Expected a folder that `fuseprompt "
            "evaluate` or `fuseprompt merge` has made."
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{file}: cannot be read ({error}). Repeat the command that made it with --resume, "
            "once this file is removed."
        ) from None
    if version != FORMAT_VERSION:
        raise RunError(
            f"{file}: has format {version}, expected {FORMAT_VERSION}. Use the version of "
            "fuseprompt that made the run."
        )
    return RunSettings.from_json(settings, where=str(file)), known


def write_settings(folder: Path, settings: RunSettings, scope: Scope) -> None:
    """Write what a run depends on and which captions it is meant to hold."""
    content = {
        "format_version": FORMAT_VERSION,
        "hash": settings.hash,
        "settings": settings.as_json(),
        "scope": {**vars(scope), "shard": vars(scope.shard)},
    }
    write_whole(folder / _SETTINGS, json.dumps(content, indent=2) + "\n")


def write_merged(run: Run) -> None:
    """Write `captions.jsonl` and `timing.jsonl` from the records of a run."""
    write_whole(
        run.folder / CAPTIONS, _lines(_caption_line(record) for record in run.captions.values())
    )
    write_whole(
        run.folder / TIMING, _lines(_timing_line(record) for record in run.records.values())
    )


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the whole of it, or what was there before.

    Raises:
        RunError: If it cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        # A file's name may hold bytes that are no UTF-8, which stay readable as escapes.
        with partial.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise RunError(
            f"{path}: cannot be written ({error.strerror}). The journal is safe: make room and go "
            "on with --resume."
        ) from None


@contextmanager
def open_folder(folder: Path, *, resume: bool) -> Iterator[None]:
    """Make the folder of a run, or open that of an earlier one, and keep all others out of it.

    Args:
        folder: The folder.
        resume: Whether there may be a run in it.

    Yields:
        Nothing; the lock is held meanwhile, and the system frees it if the process dies.

    Raises:
        RunError: If the folder is not empty and `resume` was not asked for, if something other than
            a run is in it, or if another process is writing to it.
    """
    held = _names_in(folder)
    has_run = bool({_SETTINGS, JOURNAL} & held)
    if has_run and not resume:
        raise RunError(
            f"{folder}: there is a run in it. Go on with it by --resume, or name another folder."
        )
    if held - {_LOCK} and not has_run:
        raise RunError(
            f"{folder}: is not empty and holds no run. Name an empty folder or a new one."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("a+", encoding="utf-8")
    except OSError as error:
        raise RunError(f"{folder}: cannot be written to ({error.strerror}).") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise RunError(
                f"{folder}: another run is writing to it ({lock.read().strip() or 'unknown'}). "
                "Wait for it, stop it, or name another folder."
            ) from None
        except OSError as error:
            raise RunError(
                f"{folder}: cannot be locked ({error.strerror}), so nothing would keep a second "
                "run out of it. Name a folder on another file system."
            ) from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {platform.node()}\n")
        lock.flush()
        yield


def _names_in(folder: Path) -> set[str]:
    """Return the names in a folder; none if it is not there.

    Raises:
        RunError: If it is a file or may not be read.
    """
    try:
        return {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise RunError(f"{folder}: cannot be used as a folder ({error.strerror}).") from None


def _order(key: Key) -> tuple[Any, ...]:
    """Return what sorts keys as a dataset does: by id, numbers by value, then by sentiment."""
    return (*id_order(key[0]), key[1])


def _caption_line(record: Record) -> dict[str, Any]:
    assert record.found is not None  # Only records with a caption come here.
    return {
        "dataset": record.dataset,
        "id": record.id,
        "sentiment": record.sentiment,
        "caption": record.found.caption,
        "token_ids": record.found.token_ids,
        # The last digits of a loss vary with the machine.
        "terms": {name: round(value, 4) for name, value in record.found.terms.items()},
    }


def _timing_line(record: Record) -> dict[str, Any]:
    return {
        "id": record.id,
        "sentiment": record.sentiment,
        "ok": record.ok,
        "seconds": None if record.found is None else round(record.found.seconds, 3),
        "attempt": record.attempt,
        "host": record.host,
        "time": record.time,
    }


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
