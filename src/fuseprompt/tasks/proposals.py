"""The proposals by name, with their default settings."""

from functools import partial
from typing import get_args

from fuseprompt.errors import ProblemError
from fuseprompt.proposals.additive import AdditiveWordTable
from fuseprompt.proposals.base import Proposal
from fuseprompt.proposals.fuse import Fuse
from fuseprompt.proposals.gradient import Gradient
from fuseprompt.proposals.language_model import LanguageModelOnly, RandomNoise
from fuseprompt.proposals.word_table import WordTable
from fuseprompt.tasks.settings import OnProgress, ProposalName


def proposal_named(name: str, on_progress: OnProgress | None = None) -> Proposal:
    """Return the proposal of a name; `on_progress` is called while tables or maps are made."""
    on_words = None if on_progress is None else partial(on_progress, "word table")
    match name:
        case "none":
            return LanguageModelOnly()
        case "random":
            return RandomNoise()
        case "word-table":
            return WordTable(on_progress=on_words)
        case "additive":
            return AdditiveWordTable(WordTable(on_progress=on_words))
        case "gradient":
            return Gradient()
        case "fuse":
            on_maps = None if on_progress is None else partial(on_progress, "maps")
            return Fuse(on_progress=on_maps)
    names = get_args(ProposalName)
    raise ProblemError(f"proposal {name!r}: expected one of {', '.join(names)}.")
