"""The arms of the search budget: who proposes, when a step may cost so much for each active text.

An arm is a function from a budget in forward equivalents to the setting of a search, so a new one
is one line of `ARMS`. Gradient and exact evaluations are paid from the same budget: an arm with g
linearisation points has 3 g less to evaluate. The splits were set beforehand and not tuned.

This file runs no search. Read next: `meter.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.random_maps import RandomMaps
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.models.base import EmbedLoss, HasVocabulary, TextModel
from fuseprompt.proposals.additive import AdditiveWordTable
from fuseprompt.proposals.base import Positions, Proposal, ProposalState, Scorer
from fuseprompt.proposals.fuse import Fuse
from fuseprompt.proposals.gradient import GRADIENT_COST, Gradient
from fuseprompt.proposals.language_model import LanguageModelOnly, RandomNoise
from fuseprompt.proposals.word_table import WordTable
from fuseprompt.text.retokenize import RetokenizationTable

#: Exact evaluations that every arm keeps, whatever its gradient would like to spend.
_FEWEST = 4
#: Linearisation points of a gradient, where the budget pays for them.
_POINTS = 16

#: The arms that the others are compared with.
LM, TABLE = "none", "word-table"


@dataclass(frozen=True)
class WordsOnly:
    """A proposal asked about word-initial tokens only; lengthening a word changes nothing, it says.

    Word-internal tokens are then ranked among each other by the language model alone, and against
    word-initial ones as if they were words of average loss. That costs nothing, for every arm
    alike.

    Attributes:
        proposal: Asked about word-initial tokens.
    """

    proposal: Proposal

    @property
    def name(self) -> str:
        """Name of the proposal."""
        return self.proposal.name

    def init(
        self, primary: HasVocabulary, secondary: TextModel, table: RetokenizationTable
    ) -> ProposalState:
        """Return what the proposal keeps for two models."""
        return _WordsOnlyState(self.proposal.init(primary, secondary, table))


@dataclass(frozen=True)
class _WordsOnlyState:
    state: ProposalState

    def bind(self, loss: EmbedLoss) -> Scorer:
        return _WordsOnlyScorer(self.state.bind(loss))


@dataclass(frozen=True)
class _WordsOnlyScorer:
    scorer: Scorer
    _means: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    @property
    def cost(self) -> float:
        return self.scorer.cost

    def word_initial(self, positions: Positions, tokens: Tensor) -> Tensor:
        predicted = self.scorer.word_initial(positions, tokens)
        self._means.update(zip(_places(positions), predicted.mean(1), strict=True))
        return predicted

    def word_internal(self, positions: Positions, tokens: Tensor) -> Tensor:
        means = torch.stack([self._means[place] for place in _places(positions)])
        return means[:, None].expand(tokens.shape).clone()


def _places(positions: Positions) -> list[tuple[str, int]]:
    return list(zip(positions.left, positions.problems.tolist(), strict=True))


def most_points(budget: int) -> int:
    """Return how many linearisation points a budget pays, `_FEWEST` evaluations left over."""
    return max(1, min(_POINTS, int((budget - _FEWEST) // GRADIENT_COST)))


def with_gradient(make: Callable[[int], Proposal], budget: int) -> AutoDAN:
    """Return the search of a proposal with a gradient, paid from the budget."""
    points = most_points(budget)
    width = budget - int(GRADIENT_COST) * points
    return AutoDAN(proposal=WordsOnly(make(points)), search_width=width)


def _alone(budget: int) -> AutoDAN:
    return AutoDAN(proposal=LanguageModelOnly(), search_width=budget, num_word_internal=budget)


#: Every arm, by the names of `--proposal`.
ARMS: Mapping[str, Callable[[int], AutoDAN]] = {
    LM: _alone,
    "random": lambda budget: AutoDAN(proposal=RandomNoise(), search_width=budget),
    TABLE: lambda budget: AutoDAN(proposal=WordsOnly(WordTable()), search_width=budget),
    "additive": lambda budget: AutoDAN(
        proposal=WordsOnly(AdditiveWordTable()), search_width=budget
    ),
    "gradient": lambda budget: with_gradient(Gradient, budget),
    "fuse": lambda budget: with_gradient(lambda points: Fuse(num_words=points), budget),
    "random maps": lambda budget: with_gradient(RandomMaps, budget),
}
