"""The folder of everything that fuseprompt keeps on this machine: whole files, and small notes.

A note spares a check at the next start; without a readable one the check runs again. One that
cannot be written is left out, so a read-only folder works. Text that people wrote is decoded here.
"""

import codecs
import contextlib
import functools
import hashlib
import json
import os
import secrets
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fuseprompt.errors import FuseWarning


def cache_dir() -> Path:
    """Return `$FUSEPROMPT_CACHE`, else `$XDG_CACHE_HOME/fuseprompt`, else `~/.cache/fuseprompt`.

    Of a user without a home it is a private folder, which a `FuseWarning` names.
    """
    try:
        if own := os.environ.get("FUSEPROMPT_CACHE"):
            return Path(own).expanduser()
        if shared := os.environ.get("XDG_CACHE_HOME"):
            return Path(shared).expanduser() / "fuseprompt"
        return Path.home() / ".cache" / "fuseprompt"
    except RuntimeError:  # No HOME and no entry among the users, or "~name" of nobody.
        return _private_dir("This user has no home folder for a cache")


def usable(path: Path) -> Path:
    """Return a place in the cache, or its like in a private folder, which a `FuseWarning` names.

    It is the private one where this user may neither read what is there nor write.
    """
    if may_write(path) or os.access(path, os.R_OK) or not path.is_relative_to(cache_dir()):
        return path
    own = _private_dir(f"{cache_dir()} may not be written to by this user")
    return own / path.relative_to(cache_dir())


def may_write(path: Path) -> bool:
    """Return whether this user may make or replace a file or folder, with those above it."""
    # Not Path.exists, which raises for what lies in a closed folder.
    there = next(each for each in path.absolute().parents if os.path.exists(each))
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


@functools.cache
def _private_dir(reason: str) -> Path:
    """Return the home's cache, else a folder that only this user writes to; warn of it once."""
    place = None
    with contextlib.suppress(RuntimeError):  # There may be no home.
        place = Path.home() / ".cache" / "fuseprompt"
    if place is None or not may_write(place / "file"):
        user = getattr(os, "getuid", int)()
        place = Path(tempfile.gettempdir()) / f"fuseprompt-{user}"
        place.mkdir(mode=0o700, exist_ok=True)
        if place.lstat().st_uid != user:  # Somebody else made it, or the link of this name.
            place = Path(tempfile.mkdtemp(prefix="fuseprompt-"))
    remedy = "set FUSEPROMPT_CACHE to another folder to choose"
    warnings.warn(f"{reason}: using {place} instead; {remedy}.", FuseWarning, stacklevel=2)
    return place


def notes_dir() -> Path:
    """Return the folder of the notes. It may not exist."""
    return cache_dir() / "notes-v1"


def read_note(kind: str, key: str) -> dict[str, Any] | None:
    """Return the note on `key`, all that the outcome depends on; None if it cannot be read."""
    try:
        held = json.loads(_file(kind, key).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_ours = isinstance(held, dict) and held.get("key") == key
    note = held.get("note") if is_ours else None
    return note if isinstance(note, dict) else None


def write_note(kind: str, key: str, note: Mapping[str, Any]) -> bool:
    """Keep a note of plain JSON values, whole or not at all; return whether it was kept."""
    content = json.dumps({"key": key, "note": dict(note)})
    try:
        write_atomically(_file(kind, key), content)
    except OSError:
        return False
    return True


def write_atomically(path: str | Path, content: bytes | str | Callable[[Path], object]) -> None:
    """Write a file under another name, then rename it: it is whole even after a power cut."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name[:40]}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        if callable(content):
            content(partial)
            share(partial)
        else:
            # A file's name may hold bytes that are no UTF-8, which stay readable as escapes.
            data = (
                content.encode(errors="backslashreplace") if isinstance(content, str) else content
            )
            partial.write_bytes(data)
        with partial.open("rb+") as written:
            os.fsync(written.fileno())  # Or the name may reach the disk before the content.
        partial.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # A full disk does not say which file was written.
        raise


def share(path: Path) -> None:
    """Give a file, or a folder and its files, the rights that new ones have, for all to read.

    Safetensors writes for the owner alone, as do temporary folders; a cache may be shared.
    """
    os.umask(mask := os.umask(0))
    for each in (path, *path.glob("*")):
        each.chmod((0o777 if each.is_dir() else 0o666) & ~mask)


def decode_text(data: bytes) -> str:
    """Return text in UTF-8 without its byte order mark, or raise a `ValueError` with a remedy."""
    try:
        if b"\0" not in data[:2]:
            return data.decode("utf-8-sig")
        reason, coding = "the text begins with a null byte", "utf-16"
    except UnicodeDecodeError as error:
        reason, coding = f"byte {error.start} is not UTF-8", "latin1"
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        reason, coding = "the text is in UTF-16, expected UTF-8", "utf-16"
    raise ValueError(f"{reason}. Convert the file: iconv -f {coding} -t utf-8 OLD > NEW")


def is_intact(file: Path) -> bool:
    """Return whether a safetensors file has the content whose sha256 its metadata states."""
    try:
        with file.open("rb") as opened:
            header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
            content = hashlib.file_digest(opened, "sha256").hexdigest()
        return bool(header["__metadata__"]["sha256"] == content)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError):
        return False


def _file(kind: str, key: str) -> Path:
    digest = hashlib.sha256(key.encode()).hexdigest()
    return usable(notes_dir() / f"{kind}-{digest[:32]}.json")
