"""What the fidelity benchmark judges: something that puts candidate tokens in order.

A `Ranker` is a setting; `bind` joins it to the models and the targets of one context, as a
`Transfer`'s does. It may ask for exact losses on the way; every one counts as an evaluation, in the
order in which it was asked for. Which ones are judged stands in `benchmarks.fidelity.arms`, to
be read next.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, final, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from benchmarks.fidelity.contexts import Context
from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.text.retokenize import RetokenizationTable
from fuseprompt.transfer import (
    Slots,
    TokenScorer,
    Transfer,
)

#: Continuations that a transfer without gradient looks at, the language model's best.
NUM_CONTINUATIONS: Final = 512

#: Exact losses of candidates of a question, by position; each call is a round.
Ask = Callable[[Int[Tensor, " k"]], Float[Tensor, " k"]]


@final
@dataclass(frozen=True, eq=False)
class Place:
    """All candidates of a context, one token for each distinct text.

    Attributes:
        context: The place.
        num_problems: Targets.
        tokens: The likeliest token of each text, shape (r,).
        log_probs: The language model's, shape (r,).
        is_new: Which begin a word, shape (r,).
        continues: Which lengthen the word to the left, shape (r,).
    """

    context: Context
    num_problems: int
    tokens: Int[Tensor, " r"]
    log_probs: Float[Tensor, " r"]
    is_new: Bool[Tensor, " r"]
    continues: Bool[Tensor, " r"]


@final
@dataclass(frozen=True, eq=False)
class Question:
    """Which of some candidates have the lowest `prior + weight * loss`?

    Attributes:
        place: All candidates of the context.
        problem: Which target.
        chosen: The candidates asked about, as rows of the place, shape (n,).
        prior: What is known of each before any secondary is asked, shape (n,).
        weight: Factor of the term's loss.
    """

    place: Place
    problem: int
    chosen: Int[Tensor, " n"]
    prior: Float[Tensor, " n"]
    weight: float


@final
@dataclass(frozen=True, eq=False)
class Ranking:
    """An answer.

    Attributes:
        order: Positions in `Question.chosen`, best first, all of them, shape (n,).
        cost: Forward equivalents spent, exact losses that were asked for not counted.
    """

    order: Int[Tensor, " n"]
    cost: float


@runtime_checkable
class BoundRanker(Protocol):
    """A ranker with the targets of a context."""

    def order(self, question: Question, ask: Ask) -> Ranking:
        """Return the order in which to evaluate, after what was asked for on the way.

        Args:
            question: The candidates.
            ask: Gives exact losses of candidates by position in `question.chosen`.
        """
        ...


@runtime_checkable
class Ranker(Protocol):
    """A way to order candidates."""

    @property
    def name(self) -> str:
        """Name in results, unique in a run."""
        ...

    @property
    def linearisation(self) -> str:
        """Where the loss is linearised, "" for nowhere."""
        ...

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> BoundRanker:
        """Join the ranker to a primary and a term with the targets of one context."""
        ...


@final
@dataclass(frozen=True)
class LanguageModelRanker:
    """The language model's own order, whatever the target."""

    name: str = "none"
    linearisation: str = ""

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> BoundRanker:
        """Return itself: it needs no target."""
        return self

    def order(self, question: Question, ask: Ask) -> Ranking:
        """Return the candidates by falling probability."""
        likely = question.place.log_probs[question.chosen]
        return Ranking(torch.argsort(likely, descending=True, stable=True), 0.0)


@final
@dataclass(frozen=True)
class TransferRanker:
    """A transfer's predictions, none of them corrected by exact losses.

    Attributes:
        transfer: The transfer.
        name: Name in results.
        linearisation: Where it linearises.
        num_continuations: How many continuations it is asked about, the language model's best; all,
            if `None`. The rest come last, by falling probability.
    """

    transfer: Transfer
    name: str
    linearisation: str = ""
    num_continuations: int | None = NUM_CONTINUATIONS

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> BoundRanker:
        """Join the transfer to a primary and a term."""
        return TransferRanking(self.transfer.bind(primary, table, loss), self.num_continuations)


@final
@dataclass(frozen=True)
class Predicted:
    """What a transfer says of all candidates of a place.

    Attributes:
        scores: Predicted loss for each target, infinite where it was not asked, shape (t, r).
        new_cost: Forward equivalents that one target's new words cost.
        continuation_cost: The same for what lengthens the last word.
    """

    scores: Float[Tensor, "t r"]
    new_cost: float
    continuation_cost: float

    def cost(self, place: Place, chosen: Int[Tensor, " n"]) -> float:
        """Return what the answer about some candidates costs."""
        cost = self.new_cost if bool(place.is_new[chosen].any()) else 0.0
        return cost + (self.continuation_cost if bool(place.continues[chosen].any()) else 0.0)


@final
@dataclass(eq=False)
class TransferRanking:
    """A bound `TransferRanker`; predictions of the latest place are kept."""

    scorer: TokenScorer
    num_continuations: int | None
    _known: dict[Place, Predicted] = field(default_factory=dict)

    def order(self, question: Question, ask: Ask) -> Ranking:
        """Return the candidates by prediction; nothing is asked for."""
        place, chosen = question.place, question.chosen
        known = self.predict(place)
        scores = question.prior + question.weight * known.scores[question.problem, chosen]
        # By probability first: it decides among equals and what the transfer does not predict.
        likely = torch.argsort(place.log_probs[chosen], descending=True, stable=True)
        order = likely[torch.argsort(scores[likely], stable=True)]
        return Ranking(order, known.cost(place, chosen))

    def predict(self, place: Place) -> Predicted:
        """Return the transfer's predictions for all targets of a place."""
        if place not in self._known:
            self._known = {place: self._predict(place)}
        return self._known[place]

    def _predict(self, place: Place) -> Predicted:
        # One problem alone says what one costs: a table may remember words between problems.
        parts = [torch.arange(1), torch.arange(1, place.num_problems)]
        scores = torch.full((place.num_problems, len(place.tokens)), float("inf"))
        new = torch.nonzero(place.is_new).flatten()
        lengthening = torch.nonzero(place.continues).flatten()
        if self.num_continuations is not None:
            likely = torch.argsort(place.log_probs[lengthening], descending=True, stable=True)
            lengthening = lengthening[likely[: self.num_continuations]]
        costs = []
        for problems in parts:
            if not len(problems):
                continue
            n = len(problems)
            slots = Slots((place.context.left,) * n, (place.context.right,) * n, problems)
            before = self.scorer.cost
            if len(new):
                found = self.scorer.new_words(slots, place.tokens[new])
                scores[problems[:, None], new] = found.float().cpu()
            between = self.scorer.cost
            if len(lengthening):
                tokens = place.tokens[lengthening].expand(n, -1)
                found = self.scorer.continuations(slots, tokens)
                scores[problems[:, None], lengthening] = found.float().cpu()
            costs.append((between - before, self.scorer.cost - between))
        return Predicted(scores, *costs[0])
