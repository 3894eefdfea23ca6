"""The folder of a run: what its captions depend on, its lock, and what is made from its journal.

`captions.jsonl` depends on the captions alone: whatever was killed, retried or sharded, its bytes
are the same. Times, hosts and attempts are in `timing.jsonl`. Nothing is captioned here.
"""

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, final

from filelock import FileLock, Timeout

from fuseprompt.cache import write_atomically
from fuseprompt.errors import RunError
from fuseprompt.evaluation.datasets.base import id_order
from fuseprompt.evaluation.runs.journal import Found, Journal, Key, Record, newest, read_journal
from fuseprompt.evaluation.runs.plan import ALL, Shard

#: Version of the folder's files.
FORMAT_VERSION: Final = 1

JOURNAL: Final = "journal.jsonl"
CAPTIONS: Final = "captions.jsonl"
TIMING: Final = "timing.jsonl"
SETTINGS: Final = "settings.json"
LOCK: Final = "lock"


@final
@dataclass(frozen=True)
class RunSettings:
    """Everything that a caption of a run depends on, as plain JSON values."""

    # `fingerprint` is of the annotations; `revisions` fix the weights behind each id (a commit, or
    # a hash of files); the seed of a caption is derived from `seed`, its image and sentiment.

    dataset: str
    split: str
    fingerprint: str
    models: Mapping[str, str]
    revisions: Mapping[str, str]
    search: Mapping[str, Any]
    group_size: int
    seed: int
    device: str
    threads: int
    versions: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def hash(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the settings."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@final
@dataclass(frozen=True)
class Scope:
    """Which captions a folder is meant to hold, of `num_jobs` of the whole run.

    Limit, root and sentiment are those that the dataset was read with.
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
    """Content of a folder: the newest record of each key, and the number of all records."""

    folder: Path
    settings: RunSettings
    scope: Scope
    records: Mapping[Key, Record]
    num_attempts: int

    @cached_property
    def captions(self) -> dict[Key, Found]:
        """The captions."""
        return {key: one.found for key, one in self.records.items() if one.found is not None}

    @cached_property
    def failures(self) -> dict[Key, Record]:
        """The records of images that failed."""
        return {key: record for key, record in self.records.items() if not record.ok}

    @property
    def num_missing(self) -> int:
        """Captions that the folder is meant to hold and does not."""
        return max(0, self.scope.num_shard_jobs - len(self.captions))


def read_run(folder: Path) -> Run:
    """Read the folder of a run, finished or not; refuse any other, or one with damaged files."""
    settings, scope = read_settings(folder)
    records = read_journal(folder / JOURNAL)
    check_records(records, settings, folder)
    latest = newest(records)
    # As a dataset does: by id, numbers by value, then by sentiment.
    keys = sorted(latest, key=lambda key: (*id_order(key[0]), key[1]))
    return Run(folder, settings, scope, {key: latest[key] for key in keys}, len(records))


def check_records(records: Iterable[Record], settings: RunSettings, folder: Path) -> None:
    """Refuse a journal with a record of other settings than the run's."""
    for record in records:
        if record.settings != settings.hash:
            raise RunError(
                f"{folder / JOURNAL}: holds a record of {record.id} made with the settings "
                f"{record.settings}, the run's are {settings.hash}. Files of two runs were mixed: "
                "caption anew into another folder."
            )


def check_same(there: RunSettings, here: RunSettings, *, where: Path) -> None:
    """Refuse to add to a run that was made with other settings; name the differences."""
    if there.hash != here.hash:
        lines = "; ".join(_differences(asdict(there), asdict(here), ""))
        raise RunError(
            f"{where} was made with other settings ({lines}). Use the settings of the run, or "
            "another folder."
        )


def read_settings(folder: Path) -> tuple[RunSettings, Scope]:
    """Read what a run depends on and which captions it is meant to hold."""
    file = folder / SETTINGS
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
        version, settings, scope = read["format_version"], read["settings"], dict(read["scope"])
        scope["shard"] = Shard(**scope["shard"])
        known, differing = Scope(**scope), set(settings) ^ set(RunSettings.__dataclass_fields__)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(
            f"{folder}: no run, there is no {SETTINGS} in it. Expected a folder that `fuseprompt "
            "evaluate` or `fuseprompt merge` has made."
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{file}: cannot be read ({error}). Repeat the command that made it with --resume, "
            "once this file is removed."
        ) from None
    if version != FORMAT_VERSION or differing:
        raise RunError(
            f"{file}: has format {version}, expected {FORMAT_VERSION}; settings that are missing "
            f"or unknown here: {', '.join(sorted(differing)) or 'none'}. The run was made by "
            "another version of fuseprompt: finish it with that one."
        )
    return RunSettings(**settings), known


def write_settings(folder: Path, settings: RunSettings, scope: Scope) -> None:
    """Write what a run depends on and which captions it is meant to hold."""
    content = {
        "format_version": FORMAT_VERSION,
        "hash": settings.hash,
        "settings": asdict(settings),
        "scope": asdict(scope),
    }
    write_text(folder / SETTINGS, json.dumps(content, indent=2) + "\n")


def write_merged(run: Run) -> None:
    """Write `captions.jsonl` and `timing.jsonl` from the records of a run."""
    captions = [
        {
            "dataset": run.settings.dataset,
            "id": id_,
            "sentiment": sentiment,
            "caption": found.caption,
            "token_ids": found.token_ids,
            # The last digits of a loss vary with the machine.
            "terms": {name: round(value, 4) for name, value in found.terms.items()},
        }
        for (id_, sentiment), found in run.captions.items()
    ]
    timing = []
    for key, record in run.records.items():
        seconds = round(run.captions[key].seconds, 3) if record.ok else None
        row = {"id": record.id, "sentiment": record.sentiment, "ok": record.ok, "seconds": seconds}
        row |= {"attempt": record.attempt, "host": record.host, "time": record.time}
        timing.append(row)
    for name, rows in ((CAPTIONS, captions), (TIMING, timing)):
        write_text(run.folder / name, "".join(json.dumps(row) + "\n" for row in rows))


def write_text(path: Path, text: str) -> None:
    """Write a text file of a run: a reader sees the whole of it, or what was there before."""
    try:
        write_atomically(path, text)
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written ({error.strerror}). The journal is safe: make room and go "
            "on with --resume."
        ) from None


@contextmanager
def open_folder(folder: Path, *, resume: bool) -> Iterator[None]:
    """Make the folder of a run, or with `resume` open an earlier run's; hold its lock meanwhile.

    Raises:
        RunError: If the folder holds a run without `resume`, or anything else than a run, or if
            another process is writing to it.
    """
    file = folder / LOCK
    lock = FileLock(file)
    try:
        held = {path.name for path in folder.iterdir()} if folder.exists() else set()
        has_run = bool({SETTINGS, JOURNAL} & held)
        if has_run and not resume:
            raise RunError(
                f"{folder}: there is a run in it. Go on with it by --resume, or name another "
                "folder."
            )
        if held - {LOCK} and not has_run:
            raise RunError(
                f"{folder}: is not empty and holds no run. Name an empty folder or a new one."
            )
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        raise RunError(
            f"{folder}: another run is writing to it ({file.read_text().strip() or 'unknown'}). "
            "Wait for it, stop it, or name another folder."
        ) from None
    except OSError as error:
        raise RunError(
            f"{folder}: cannot be used as a folder or locked ({error.strerror}). Name a folder "
            "that you may write to, on another file system if need be."
        ) from None
    try:
        with suppress(OSError):  # Only a message needs it.
            file.write_text(f"process {os.getpid()} on {platform.node()}\n", encoding="utf-8")
        yield
    finally:
        lock.release()


def merge(folders: Sequence[Path], out: Path | None = None) -> Run:
    """Return runs joined in a new folder, or one run, its merged files written from its journal.

    Runs may be unfinished. Of a caption in two folders the first counts.

    Raises:
        RunError: If one is no run, they differ in settings or in the images that were asked for,
            the new folder cannot be used, or another process is writing to it.
    """
    runs = [read_run(folder) for folder in folders]
    first = runs[0]
    if out is None:
        with open_folder(first.folder, resume=True):
            write_merged(run := read_run(first.folder))
        return run
    for run in runs[1:]:
        check_same(first.settings, run.settings, where=first.folder)
        if run.scope.num_jobs != first.scope.num_jobs:
            raise RunError(
                f"{first.folder} is part of a run of {first.scope.num_jobs:,} captions, "
                f"{run.folder} of one of {run.scope.num_jobs:,}. Merge shards of one run."
            )
    records: dict[Key, Record] = {}
    for key, record in ((key, record) for run in runs for key, record in run.records.items()):
        if key not in records or (record.ok and not records[key].ok):
            records[key] = record
    scope = replace(first.scope, shard=ALL, num_shard_jobs=first.scope.num_jobs)
    with open_folder(out, resume=False):
        write_settings(out, first.settings, scope)
        with Journal(out / JOURNAL) as journal:
            journal.append(list(records.values()))
        write_merged(merged := read_run(out))
    return merged


def compare(one: Run, other: Run) -> dict[str, int | float]:
    """Return how far two runs agree that grouped the same images otherwise, as JSON has it.

    Captions differ where two candidates are nearly equal: a batch of another size rounds otherwise.
    `largest_difference` is that of a term between equal texts, relative to max(1, the term).
    """
    pairs = [(a, other.captions[key]) for key, a in one.captions.items() if key in other.captions]
    same = [(a.terms, b.terms) for a, b in pairs if a.text == b.text]
    differences = [
        abs(value - b[name]) / max(1.0, abs(value)) for a, b in same for name, value in a.items()
    ]
    return {
        "num_captions": len(pairs),
        "num_differing": len(pairs) - len(same),
        "largest_difference": max(differences, default=0.0),
    }


def _differences(there: Any, here: Any, name: str) -> Iterator[str]:
    """Yield name, old and new value of every leaf that differs."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in sorted({*there, *here}):
            yield from _differences(there.get(key), here.get(key), f"{name}.{key}".lstrip("."))
    elif there != here:
        old, new = (json.dumps(value, ensure_ascii=False) for value in (there, here))
        old, new = (text if len(text) <= 40 else f"{text[:37]}..." for text in (old, new))
        yield f"{name}: {old} there, {new} here"
