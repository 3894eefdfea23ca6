"""What was measured before: figures of a ranker in a context, kept beside the truth cache.

They are found again only while the truth, the ranker's settings and the code of the ranker and of
the judge are the same, so that a changed transfer is measured anew and the others are not. Read
next: `benchmarks.fidelity.study`.
"""

import dataclasses
import hashlib
import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Final, final

from benchmarks.fidelity.exact_losses import Truth

#: Modules that decide every figure; the first is imported by name only, as it imports this one.
_ALWAYS: Final = (
    "benchmarks.fidelity.study",
    "benchmarks.fidelity.statistics",
    "benchmarks.fidelity.rankers",
    "fuseprompt.transfer.tproduct",
)

#: Packages whose modules are followed from a ranker's own.
_FOLLOWED: Final = ("fuseprompt.transfer.", "benchmarks.fidelity.", "fuseprompt.text.")

Rows = list[dict[str, object]]


@final
class MeasuredCache:
    """Rows of JSON by truth, objective and ranker.

    Args:
        folder: Where they are kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "measured"

    def read(self, truth: Truth, objective: str, ranker: object) -> Rows | None:
        """Return the rows kept, or None."""
        try:
            rows: Rows = json.loads(self._file(truth, objective, ranker).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return rows

    def write(self, truth: Truth, objective: str, ranker: object, rows: Rows) -> None:
        """Keep rows; a reader sees all of them or none."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._file(truth, objective, ranker)
        partial = file.with_name(f"{file.name}.{os.getpid()}.part")
        partial.write_text(json.dumps(rows), "utf-8")
        partial.replace(file)

    def _file(self, truth: Truth, objective: str, ranker: object) -> Path:
        facts = f"{truth.context}\0{objective}\0{ranker!r}\0{code_digest(ranker)}"
        digest = hashlib.sha256(facts.encode())
        digest.update(truth.tokens.numpy().tobytes())
        digest.update(truth.losses[objective].numpy().tobytes())
        return self._folder / f"{digest.hexdigest()[:32]}.json"


def code_digest(ranker: object) -> str:
    """Return a hash of the source files that decide a ranker's figures.

    These are the modules of the ranker and of the settings in it, and what they import from the
    packages of transfers, evaluation and text.
    """
    names = set(_ALWAYS)
    todo = [*(_ALWAYS), *_modules_of(ranker)]
    while todo:
        name = todo.pop()
        names.add(name)
        for value in vars(sys.modules.get(name, object)).values() if name in sys.modules else ():
            other = str(getattr(value, "__module__", ""))
            if other.startswith(_FOLLOWED) and other not in names:
                names.add(other)
                todo.append(other)
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(_source(name))
    return digest.hexdigest()[:16]


def _modules_of(value: object) -> set[str]:
    """Return the modules of an object and of the dataclasses inside it."""
    found = {type(value).__module__}
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            inside = getattr(value, field.name)
            if type(inside).__module__.startswith("fuseprompt."):
                found |= _modules_of(inside)
    return found


@cache
def _source(name: str) -> bytes:
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(file).read_bytes() if file else b""
