"""The proposals by name, and the paper's, whose maps are fitted when they are first needed.

In Python, a method takes any proposal as an object. Read next: `fuseprompt.transfer.base`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import final, get_args

from fuseprompt.errors import ProblemError
from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.tasks.settings import OnProgress, Proposal
from fuseprompt.text.retokenize import RetokenizationTable
from fuseprompt.transfer.anchored_words import AnchoredWords
from fuseprompt.transfer.base import TokenScorer, Transfer
from fuseprompt.transfer.controls import NoTransfer, RandomTransfer
from fuseprompt.transfer.retokenized import RetokenizedTransfer
from fuseprompt.transfer.word_table import WordTable


def proposal_named(name: str, on_progress: OnProgress | None = None) -> Transfer:
    """Return the proposal of a name, with its default settings.

    Args:
        name: One of `fuseprompt.tasks.settings.Proposal`.
        on_progress: Called while tables are made, or maps fitted.

    Raises:
        ProblemError: If there is none of that name.
    """
    on_words = None if on_progress is None else partial(on_progress, "word table")
    match name:
        case "none":
            return NoTransfer()
        case "random":
            return RandomTransfer()
        case "word-table":
            return WordTable(on_progress=on_words)
        case "additive":
            return AnchoredWords(WordTable(on_progress=on_words))
        case "gradient":
            return RetokenizedTransfer()
        case "fuse":
            return FittedTransfer(None if on_progress is None else partial(on_progress, "maps"))
    raise ProblemError(f"proposal {name!r}: expected one of {', '.join(get_args(Proposal))}.")


@final
@dataclass(frozen=True)
class FittedTransfer:
    """The paper's transfer; its maps are fitted once for a pair of models and kept in the cache.

    Attributes:
        on_progress: Called with (maps done, maps in all) while they are fitted.
    """

    on_progress: Callable[[int, int], None] | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Name in results."""
        return "tproduct"

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> TokenScorer:
        """Join the transfer to a primary and a term; fits the maps if they are not on disk."""
        from fuseprompt.fuse.fit import load_or_fit
        from fuseprompt.transfer.tproduct import TProductTransfer

        def on_case(_key: object, _report: object, done: int, planned: int) -> None:
            if self.on_progress is not None:
                self.on_progress(done, planned)

        maps = table.memo.recall(
            "fitted maps",
            (primary, loss.model),
            lambda: load_or_fit(primary, loss, on_case=on_case),
        )
        return TProductTransfer(maps).bind(primary, table, loss)
