"""The arms of the search budget: who proposes, when a step may cost so much for each open text.

An arm is a function from a budget in forward equivalents to the setting of a proposer, so a new one
is one line of `ARMS`. Arms that lost (sums, frames, anchored, surrogate, turn taking) stay in the
results and can be run at commit 7e42810. Gradient and exact evaluations are paid from the same
budget: an arm with g linearisation points has 3 g less to evaluate. The splits were set beforehand
and not tuned.

This file runs no search. Read next: `meter.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fuseprompt.fuse.fit import load_or_fit
from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.search.proposers import (
    LanguageModelProposer,
    ProposalSetting,
    TransferProposer,
)
from fuseprompt.text.retokenize import RetokenizationTable
from fuseprompt.transfer.anchored_words import AnchoredWords
from fuseprompt.transfer.base import GRADIENT_COST, Slots, TokenScorer, Transfer
from fuseprompt.transfer.controls import RandomTransfer
from fuseprompt.transfer.linearise import CommonWords
from fuseprompt.transfer.retokenized import RetokenizedTransfer
from fuseprompt.transfer.tproduct import TProductTransfer
from fuseprompt.transfer.word_table import WordTable

#: Exact evaluations that every arm keeps, whatever its gradient would like to spend.
_FEWEST = 4
#: Wide enough for every token that survives the round trip.
EVERYTHING = 1_000_000

LM = "LM top-k"

Arm = Callable[[int], ProposalSetting]


@dataclass(frozen=True)
class WordsOnly:
    """A transfer asked about new words only; lengthening the last word changes nothing, it says.

    Continuations are then ranked among each other by the language model alone, and against new
    words as if they were words of average loss. That costs nothing, for every arm alike.

    Attributes:
        transfer: Asked about new words.
    """

    transfer: Transfer

    @property
    def name(self) -> str:
        """Name of the transfer."""
        return self.transfer.name

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> TokenScorer:
        """Join the transfer to a primary and a term."""
        return _WordsOnlyScorer(self.transfer.bind(primary, table, loss))


@dataclass(frozen=True)
class _WordsOnlyScorer:
    scorer: TokenScorer
    _means: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    @property
    def cost(self) -> float:
        return self.scorer.cost

    def new_words(self, slots: Slots, words: Tensor) -> Tensor:
        predicted = self.scorer.new_words(slots, words)
        self._means.update(zip(_places(slots), predicted.mean(1), strict=True))
        return predicted

    def continuations(self, slots: Slots, tokens: Tensor) -> Tensor:
        means = torch.stack([self._means[place] for place in _places(slots)])
        return means[:, None].expand(tokens.shape).clone()


def _places(slots: Slots) -> list[tuple[str, int]]:
    return list(zip(slots.left, slots.problems.tolist(), strict=True))


@dataclass(frozen=True)
class FittedMaps:
    """The paper's transfer with a number of linearisation points; maps come from the cache.

    Attributes:
        num_points: Common words at which the loss is linearised.
    """

    num_points: int
    name: str = "tproduct"

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> TokenScorer:
        """Join the transfer to a primary and a term; fits the maps if they are not on disk."""
        maps = table.memo.recall(
            "fitted maps", (primary, loss.model), lambda: load_or_fit(primary, loss)
        )
        return TProductTransfer(maps, CommonWords(self.num_points)).bind(primary, table, loss)


def most_points(budget: int, wanted: int) -> int:
    """Return how many linearisation points a budget pays, `_FEWEST` evaluations left over."""
    return max(1, min(wanted, int((budget - _FEWEST) // GRADIENT_COST)))


def with_gradient(make: Callable[[int], Transfer], budget: int, *, wanted: int) -> ProposalSetting:
    """Return the proposer of a transfer with a gradient, paid from the budget."""
    points = most_points(budget, wanted)
    width = budget - int(GRADIENT_COST) * points
    return TransferProposer(WordsOnly(make(points)), search_width=width)


def _direct(points: int) -> Transfer:
    return RetokenizedTransfer(CommonWords(points))


def _random(seed: int) -> Arm:
    return lambda budget: TransferProposer(RandomTransfer(seed), search_width=budget)


#: Every arm; the random one has three seeds, the others are deterministic.
ARMS: Mapping[str, Arm] = {
    LM: lambda budget: LanguageModelProposer(budget),
    "table": lambda budget: TransferProposer(WordsOnly(WordTable()), search_width=budget),
    "anchored words": lambda budget: TransferProposer(
        WordsOnly(AnchoredWords()), search_width=budget
    ),
    "direct": lambda budget: with_gradient(_direct, budget, wanted=16),
    "direct-4": lambda budget: with_gradient(_direct, budget, wanted=4),
    "paper's map": lambda budget: with_gradient(FittedMaps, budget, wanted=16),
    "random/0": _random(0),
    "random/1": _random(1),
    "random/2": _random(2),
}

#: Arms that are run first.
MAIN_ARMS = tuple(name for name in ARMS if name != "direct-4")
