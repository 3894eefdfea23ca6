"""What was measured before: figures of a ranker in a context, kept beside the truth cache.

They are found again only while the truth, the ranker's name and the code that ranks and judges are
the same, so that a changed transfer is measured anew. Read next: `fuseprompt.evaluation.fidelity`.
"""

import hashlib
import json
import os
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final, final

from fuseprompt.evaluation.truth import Truth

#: What decides a figure, besides truths and models.
_CODE: Final = (
    ("transfer", ""),
    ("evaluation", "fidelity.py"),
    ("evaluation", "rankers.py"),
    ("evaluation", "statistics.py"),
    ("text", "retokenize.py"),
)

Rows = list[dict[str, object]]


@final
class MeasuredCache:
    """Rows of JSON by truth, objective and ranker.

    Args:
        folder: Where they are kept, or `None` to keep nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder / "measured" / code_digest()

    def read(self, truth: Truth, objective: str, ranker: str) -> Rows | None:
        """Return the rows kept, or None."""
        if self._folder is None:
            return None
        try:
            rows: Rows = json.loads(self._file(truth, objective, ranker).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return rows

    def write(self, truth: Truth, objective: str, ranker: str, rows: Rows) -> None:
        """Keep rows; a reader sees all of them or none."""
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._file(truth, objective, ranker)
        partial = file.with_name(f"{file.name}.{os.getpid()}.part")
        partial.write_text(json.dumps(rows), "utf-8")
        partial.replace(file)

    def _file(self, truth: Truth, objective: str, ranker: str) -> Path:
        assert self._folder is not None
        digest = hashlib.sha256(f"{truth.context}\0{objective}\0{ranker}".encode())
        digest.update(truth.tokens.numpy().tobytes())
        digest.update(truth.losses[objective].numpy().tobytes())
        return self._folder / f"{digest.hexdigest()[:32]}.json"


@cache
def code_digest() -> str:
    """Return a hash of the source files that decide a figure."""
    digest = hashlib.sha256()
    for folder, name in _CODE:
        package = resources.files("fuseprompt").joinpath(folder)
        files = [f for f in package.iterdir() if f.name.endswith(".py") and name in ("", f.name)]
        for file in sorted(files, key=lambda f: f.name):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
