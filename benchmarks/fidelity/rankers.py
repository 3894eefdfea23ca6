"""What the fidelity study measures: what puts candidate tokens in order.

Read next: `benchmarks.fidelity.study`.
"""

from dataclasses import dataclass
from typing import Final, Protocol, final, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from benchmarks.fidelity.contexts import Context
from benchmarks.random_maps import RandomMaps
from fuseprompt.models.base import CausalModel
from fuseprompt.objective.bound_term import BoundTerm
from fuseprompt.proposals import (
    AdditiveWordTable,
    Fuse,
    Gradient,
    Positions,
    Proposal,
    RandomNoise,
    WordTable,
)

#: Word-internal tokens that a table is asked about, the language model's best.
NUM_INTERNAL: Final = 512


@final
@dataclass(frozen=True, eq=False)
class Place:
    """All candidates of a context, one token for each distinct text.

    Attributes:
        context: The place.
        num_problems: Number of targets.
        tokens: The likeliest token of each text, shape (r,).
        log_probs: The language model's, shape (r,).
        word_initial: Which begin a word, shape (r,).
        word_internal: Which lengthen the word to the left, shape (r,).
    """

    context: Context
    num_problems: int
    tokens: Int[Tensor, " r"]
    log_probs: Float[Tensor, " r"]
    word_initial: Bool[Tensor, " r"]
    word_internal: Bool[Tensor, " r"]

    def order(self, chosen: Int[Tensor, " n"], scores: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Return positions in `chosen` by rising score; probability decides among equal ones."""
        likely = torch.argsort(self.log_probs[chosen], descending=True, stable=True)
        return likely[torch.argsort(scores[likely], stable=True)]


@final
@dataclass(frozen=True)
class Predicted:
    """What a ranker predicts for all candidates of a place.

    Attributes:
        scores: Predicted loss for each target, infinite where none was predicted, shape (t, r).
        initial_cost: Forward equivalents that the word-initial tokens of one target cost.
        internal_cost: The same for word-internal tokens.
    """

    scores: Float[Tensor, "t r"]
    initial_cost: float = 0.0
    internal_cost: float = 0.0

    def cost(self, place: Place, chosen: Int[Tensor, " n"]) -> float:
        """Return what the answer about some candidates costs."""
        cost = self.initial_cost if bool(place.word_initial[chosen].any()) else 0.0
        return cost + (self.internal_cost if bool(place.word_internal[chosen].any()) else 0.0)


@runtime_checkable
class Ranker(Protocol):
    """A way to order candidates; a test adds one that knows the truth."""

    @property
    def name(self) -> str:
        """Name in results, unique in a run."""

    def predict(self, primary: CausalModel, loss: BoundTerm, place: Place) -> Predicted:
        """Return predictions for all candidates and targets of a place."""


@final
@dataclass(frozen=True)
class LanguageModelRanker:
    """The language model's own order, whatever the target."""

    name: str = "none"

    def predict(self, primary: CausalModel, loss: BoundTerm, place: Place) -> Predicted:
        """Return equal predictions."""
        return Predicted(torch.zeros(place.num_problems, len(place.tokens)))


@final
@dataclass(frozen=True)
class ProposalRanker:
    """A proposal's predictions.

    Attributes:
        proposal: The proposal.
        name: Name in results.
        num_internal: How many word-internal tokens it is asked about, the language model's best;
            all, if `None`. The rest come last, by falling probability.
    """

    proposal: Proposal
    name: str
    num_internal: int | None = NUM_INTERNAL

    def predict(self, primary: CausalModel, loss: BoundTerm, place: Place) -> Predicted:
        """Return what the proposal predicts."""
        scorer = self.proposal.init(primary, loss.model, loss.table).bind(loss)
        scores = torch.full((place.num_problems, len(place.tokens)), float("inf"))
        initial = torch.nonzero(place.word_initial).flatten()
        internal = torch.nonzero(place.word_internal).flatten()
        likely = torch.argsort(place.log_probs[internal], descending=True, stable=True)
        internal = internal[likely[: self.num_internal]]
        costs = []
        # The first problem alone shows what one costs: a table may remember words between problems.
        for problems in (torch.arange(1), torch.arange(1, place.num_problems)):
            n = len(problems)
            positions = Positions((place.context.left,) * n, (place.context.right,) * n, problems)
            before = scorer.cost
            if n and len(initial):
                found = scorer.word_initial(positions, place.tokens[initial])
                scores[problems[:, None], initial] = found.float().cpu()
            between = scorer.cost
            if n and len(internal):
                found = scorer.word_internal(positions, place.tokens[internal].expand(n, -1))
                scores[problems[:, None], internal] = found.float().cpu()
            costs.append((between - before, scorer.cost - between))
        return Predicted(scores, *costs[0])


@final
@dataclass(frozen=True)
class RandomMapsRanker:
    """The control of the paper's maps, with another draw in each context."""

    name: str = "random maps"

    def predict(self, primary: CausalModel, loss: BoundTerm, place: Place) -> Predicted:
        """Return what random maps predict."""
        drawn = RandomMaps(seed=place.context.index)
        return ProposalRanker(drawn, self.name, None).predict(primary, loss, place)


def all_rankers() -> tuple[Ranker, ...]:
    """Return everything that is measured, in the order of the tables."""
    return (
        LanguageModelRanker(),
        ProposalRanker(RandomNoise(), "random"),
        RandomMapsRanker(),
        ProposalRanker(Fuse(), "fuse", None),
        ProposalRanker(Gradient(), "gradient-16", None),
        # A look at 512 word-internal tokens costs 512; a search looks at the 16 likeliest.
        ProposalRanker(WordTable(), "word-table"),
        ProposalRanker(WordTable(), "word-table-16", 16),
        ProposalRanker(AdditiveWordTable(), "additive", 16),
    )
