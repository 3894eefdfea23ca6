"""Everything that the fidelity study measures; one line for each.

Arms that lost (sum, union, blend, positionwise, relinearized, frames, anchored, surrogates) are in
the tables of the results and can be run at commit 7e42810. Read next: `benchmarks.fidelity.study`.
"""

from benchmarks.fidelity.rankers import LanguageModelRanker, Ranker, TransferRanker
from fuseprompt.tasks.caption import CaptionSettings
from fuseprompt.tasks.transfers import FittedTransfer
from fuseprompt.transfer import (
    AnchoredWords,
    CommonWords,
    RandomTransfer,
    RetokenizedTransfer,
    WordTable,
)


def default_name() -> str:
    """Return the name of the transfer that captions are made with when nothing is said."""
    return CaptionSettings().transfer.name


def all_rankers() -> tuple[Ranker, ...]:
    """Return everything that is measured, in the order of the tables."""
    wide = RetokenizedTransfer(CommonWords(64))
    return (
        LanguageModelRanker(),
        TransferRanker(RandomTransfer(), "random"),
        TransferRanker(WordTable(), "context-free"),
        # A look at 512 continuations costs 512; a search looks at the 16 likeliest.
        TransferRanker(WordTable(), "context-free-16", "", 16),
        TransferRanker(FittedTransfer(), "tproduct", "common-16", None),
        TransferRanker(RetokenizedTransfer(), "direct-16", "common-16", None),
        TransferRanker(wide, "direct-64", "common-64", None),
        TransferRanker(AnchoredWords(), "anchored-words", "", 16),
    )
