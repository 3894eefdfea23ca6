"""The word tables of the offline models, made ahead so that the first caption need not wait.

`find_table` imports no torch; `make` loads the models.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fuseprompt.cache import cache_dir, is_intact, usable, write_atomically
from fuseprompt.errors import ModelError
from fuseprompt.offline.manifest import recipe_digest

#: Offline models that have a table, in the order in which a caption needs them.
SECONDARIES: Final = ("image-text", "sentiment")


def find_table(secondary: str) -> Path | None:
    """Return the file of a table if it is whole and made from today's offline models."""
    try:
        made = json.loads(_stamp(secondary).read_text(encoding="utf-8"))
        file = usable(_folder() / made["file"])
        return file if made["digest"] == _digest(secondary) and is_intact(file) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def make(secondary: str, *, on_progress: Callable[[int, int], None] | None = None) -> None:
    """Make the table of one of `SECONDARIES`, or find it on disk."""
    from fuseprompt.models.causal_lm import CausalLM
    from fuseprompt.models.hub import load
    from fuseprompt.offline.manifest import offline_folder
    from fuseprompt.proposals.word_table import fingerprint, load_or_make
    from fuseprompt.text.retokenize import RetokenizationTable
    from fuseprompt.text.tokenizer import Tokenizer

    model = load(f"offline:{secondary}")
    if isinstance(model, CausalLM):
        raise ModelError(f"offline:{secondary}: expected one of {', '.join(SECONDARIES)}.")
    primary = Tokenizer.from_pretrained(offline_folder("lm"))
    table = RetokenizationTable(primary, model.tokenizer)
    load_or_make(model, table, _folder(), on_progress=on_progress)
    made = {"digest": _digest(secondary), "file": f"{fingerprint(model, table)}.safetensors"}
    write_atomically(_stamp(secondary), json.dumps(made))


def _digest(secondary: str) -> str:
    return f"{recipe_digest('lm')} {recipe_digest(secondary)}"


def _folder() -> Path:
    return cache_dir() / "word-tables"


def _stamp(secondary: str) -> Path:
    return usable(_folder() / f"offline-{secondary}.json")
