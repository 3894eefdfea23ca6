"""The transfers that a user can name, and the paper's transfer fitted when it is first needed.

A name stands for a `Transfer` with its default settings; in Python, pass the object itself. Read
next: `fuseprompt.transfer.base`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

from fuseprompt.errors import ProblemError
from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.text.retokenize import RetokenizationTable
from fuseprompt.transfer.anchored_table import AnchoredTable
from fuseprompt.transfer.anchored_words import AnchoredWords
from fuseprompt.transfer.base import TokenScorer, Transfer
from fuseprompt.transfer.combined import BLEND_GAIN, BlendTransfer, SumTransfer
from fuseprompt.transfer.controls import NoTransfer, RandomTransfer
from fuseprompt.transfer.frame_table import FrameTable
from fuseprompt.transfer.retokenized import RetokenizedTransfer
from fuseprompt.transfer.word_table import WordTable

TRANSFER_NAMES: Final = (
    "none", "random", "context-free", "direct", "tproduct", "sum", "frames", "anchored",
    "anchored-words", "blend", "best",
)  # fmt: skip

#: Those that look words up in the word table.
USE_WORD_TABLE: Final = frozenset({"context-free", "sum", "anchored-words", "best"})

#: Called with what is being made, how much of it is done, and how much there is.
OnMaking = Callable[[str, int, int], None]


def transfer_named(name: str, *, on_making: OnMaking | None = None) -> Transfer:
    """Return the transfer that the command line calls `name`.

    Args:
        name: One of `TRANSFER_NAMES`.
        on_making: Told of tables that have to be made first.

    Returns:
        The transfer, with its default settings.

    Raises:
        ProblemError: If there is none of that name.
    """
    words = WordTable(on_progress=_called("word table", on_making))
    on_frames = _called("frame table", on_making)
    match name:
        case "none":
            return NoTransfer()
        case "random":
            return RandomTransfer()
        case "context-free":
            return words
        # Measured: nothing finds lower losses at equal cost (benchmarks/results/search-budget.md).
        case "anchored-words" | "best":
            return AnchoredWords(words)
        case "direct":
            return RetokenizedTransfer()
        case "tproduct":
            return FittedTransfer(on_progress=_called("maps", on_making))
        case "sum":
            return SumTransfer(second=words)
        case "frames":
            return FrameTable(on_progress=on_frames)
        case "anchored":
            return AnchoredTable(FrameTable(on_progress=on_frames))
        case "blend":
            return BlendTransfer(second=FrameTable(gain=BLEND_GAIN, on_progress=on_frames))
    raise ProblemError(f"transfer {name!r}: expected one of {', '.join(TRANSFER_NAMES)}.")


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
        from fuseprompt.transfer.cache import load_or_fit
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


def _called(what: str, on_making: OnMaking | None) -> Callable[[int, int], None] | None:
    """Return a callback for (done, all) that passes on what is being made."""
    if on_making is None:
        return None
    return lambda done, total: on_making(what, done, total)
