"""Everything that the fidelity benchmark judges; one line for each.

To judge something new, add a line here: a `TransferRanker` for a transfer, a `Ranker` of its own
for what asks for exact losses in rounds. What was measured before stays measured, since figures are
kept by ranker (`benchmarks.fidelity.results_cache`). Read next: `benchmarks.fidelity.study`.
"""

from benchmarks.fidelity.adaptive import SurrogateRanker
from benchmarks.fidelity.rankers import LanguageModelRanker, Ranker, TransferRanker
from fuseprompt.tasks.caption import CaptionSettings
from fuseprompt.tasks.transfers import FittedTransfer
from fuseprompt.transfer import (
    AnchoredTable,
    AnchoredWords,
    BlendTransfer,
    CommonWords,
    FrameTable,
    PositionwiseTransfer,
    RandomTransfer,
    RelinearizedTransfer,
    RetokenizedTransfer,
    SumTransfer,
    UnionTransfer,
    WordTable,
)


def default_name() -> str:
    """Return the name of the transfer that captions are made with when nothing is said."""
    return CaptionSettings().transfer.name


def all_rankers() -> tuple[Ranker, ...]:
    """Return everything that is judged, in the order of the tables."""
    few = BlendTransfer(RetokenizedTransfer(CommonWords(4)))
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
        TransferRanker(PositionwiseTransfer(), "positionwise", "common-16 by width", None),
        TransferRanker(RelinearizedTransfer(), "relinearized", "common-16, then best 16", None),
        TransferRanker(SumTransfer(), "sum", "common-16", None),
        TransferRanker(UnionTransfer(), "union", "common-16", None),
        TransferRanker(FrameTable(), "frames", "", None),
        TransferRanker(AnchoredTable(), "anchored", "", None),
        TransferRanker(AnchoredWords(), "anchored-words", "", 16),
        TransferRanker(few, "blend-4", "common-4", None),
        TransferRanker(BlendTransfer(), "blend", "common-16", None),
        SurrogateRanker(WordTable(), "surrogate of table", "", 16),
        SurrogateRanker(SumTransfer(), "surrogate of sum", "common-16", None),
        SurrogateRanker(FrameTable(), "surrogate of frames", "", None, words=FrameTable()),
        SurrogateRanker(AnchoredTable(), "surrogate of anchored", "", None, words=FrameTable()),
        SurrogateRanker(few, "surrogate of blend-4", "common-4", None, words=FrameTable()),
    )
