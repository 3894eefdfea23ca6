"""The word table of the offline models, made ahead so that the first caption need not wait for it.

`is_ready` answers in a millisecond and imports no torch; `make` loads the models. Tables of other
models are made when they are first used. Read next: `fuseprompt.transfer.word_table`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fuseprompt.models.offline import cache_dir, recipe_digest

_PRIMARY: Final = "lm"
_SECONDARY: Final = "image-text"


def is_ready() -> bool:
    """Return whether the table was made from the offline models as they are now."""
    try:
        made = json.loads(_stamp().read_text(encoding="utf-8"))
        return bool(made["digest"] == _digest()) and (_folder() / made["file"]).is_file()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def make(*, on_progress: Callable[[int, int], None] | None = None) -> None:
    """Make the table, or find it on disk.

    Args:
        on_progress: Called with (words done, words in all) while it is made.

    Raises:
        MissingModelError: If the offline models were not prepared.
    """
    from fuseprompt.models.hub import load
    from fuseprompt.models.image_text import TwoTowerModel
    from fuseprompt.models.offline import offline_folder
    from fuseprompt.text.retokenize import RetokenizationTable
    from fuseprompt.text.tokenizer import Tokenizer
    from fuseprompt.transfer.word_table import fingerprint, load_or_make

    model = load(f"offline:{_SECONDARY}")
    assert isinstance(model, TwoTowerModel)
    table = RetokenizationTable(
        Tokenizer.from_pretrained(offline_folder(_PRIMARY)), model.tokenizer
    )
    load_or_make(model, table, _folder(), on_progress=on_progress)
    made = {"digest": _digest(), "file": f"{fingerprint(model, table)}.safetensors"}
    partial = _stamp().with_suffix(".part")
    partial.write_text(json.dumps(made), encoding="utf-8")
    partial.replace(_stamp())


def _digest() -> str:
    return f"{recipe_digest(_PRIMARY)} {recipe_digest(_SECONDARY)}"


def _folder() -> Path:
    return cache_dir() / "word-tables"


def _stamp() -> Path:
    return _folder() / "offline.json"
