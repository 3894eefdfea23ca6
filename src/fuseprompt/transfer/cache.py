"""Fit a table once and find it again: tables live in the cache folder, by fingerprint.

A table is reused only for the same tokenizers, embeddings, words and settings; a damaged or
half-written one is fitted anew. Read next: `fuseprompt.transfer.fit`.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

from fuseprompt.cache import cache_dir
from fuseprompt.errors import FingerprintError
from fuseprompt.models.base import HasVocabulary
from fuseprompt.text.words import default_words
from fuseprompt.transfer.fit import AdapterFitter, FitSettings, fingerprint_fit
from fuseprompt.transfer.table import FORMAT_VERSION, CaseKey, CaseReport, JacobianTable


def load_or_fit(
    primary: HasVocabulary,
    secondary: HasVocabulary,
    *,
    settings: FitSettings | None = None,
    folder: Path | None = None,
    on_case: Callable[[CaseKey, CaseReport, int, int], None] | None = None,
) -> JacobianTable:
    """Return the table of two models for the default words, fitted at the first call.

    Args:
        primary: The model whose tokens are chosen.
        secondary: The other model.
        settings: Settings of the fit.
        folder: Where tables are kept; by default in the user's cache.
        on_case: Called while fitting, as by `AdapterFitter`.

    Returns:
        The table.
    """
    settings = FitSettings() if settings is None else settings
    words = dict.fromkeys(default_words(), 1.0)
    fingerprint = fingerprint_fit(primary, secondary, words=words, settings=settings)
    root = cache_dir() / f"tables-v{FORMAT_VERSION}" if folder is None else folder
    name = hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()[:32]
    try:
        return JacobianTable.load(root / name, fingerprint)
    except FingerprintError:
        pass  # not there, or not whole
    fitter = AdapterFitter(primary, secondary, settings=settings, on_case=on_case)
    fitter.update(words)
    table = fitter.table
    root.mkdir(parents=True, exist_ok=True)
    made = Path(mkdtemp(dir=root))  # two processes may fit the same table at once
    table.save(made)
    shutil.rmtree(root / name, ignore_errors=True)
    try:
        made.rename(root / name)
    except OSError:  # the other process was faster, and has the same table
        shutil.rmtree(made, ignore_errors=True)
    return table
