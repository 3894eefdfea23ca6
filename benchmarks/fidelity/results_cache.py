"""Figures of a ranker in a context, kept beside the exact losses, so that a run may be continued.

A key is the exact losses and the ranker's settings; raise `VERSION` when the code of a ranker or of
a figure changes. Read next: `benchmarks.fidelity.study`.
"""

import hashlib
import json
from pathlib import Path
from typing import Final, final

from benchmarks.fidelity.exact_losses import Truth
from fuseprompt.cache import write_atomically

#: Part of every key.
VERSION: Final = 2

Rows = list[dict[str, object]]


@final
class ResultsCache:
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
        write_atomically(self._file(truth, objective, ranker), json.dumps(rows).encode())

    def _file(self, truth: Truth, objective: str, ranker: object) -> Path:
        facts = f"{VERSION}\0{truth.context}\0{objective}\0{ranker!r}"
        digest = hashlib.sha256(facts.encode())
        digest.update(truth.tokens.numpy().tobytes())
        digest.update(truth.losses[objective].numpy().tobytes())
        return self._folder / f"{digest.hexdigest()[:32]}.json"
