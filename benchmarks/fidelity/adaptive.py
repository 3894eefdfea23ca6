"""A ranker that asks in rounds: a surrogate corrects a transfer by the exact losses so far.

Rounds of 16 up to 64 exact losses, then doubling up to 256, so that what is found within any budget
does not depend on a larger one. Read next: `benchmarks.fidelity.arms`.
"""

from dataclasses import dataclass, field
from typing import Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from benchmarks.fidelity.rankers import (
    NUM_CONTINUATIONS,
    Ask,
    BoundRanker,
    Question,
    Ranking,
    TransferRanker,
    TransferRanking,
)
from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.text.retokenize import RetokenizationTable
from fuseprompt.transfer import FrameTable, Transfer, WordTable
from fuseprompt.transfer.surrogate import CONSIDERED, Surrogate, word_directions

#: Exact losses asked for in each round.
ROUNDS: Final = (16, 16, 16, 16, 64, 128)


@final
@dataclass(frozen=True)
class SurrogateRanker:
    """A transfer corrected by exact losses between rounds, where the table knows the token.

    Attributes:
        transfer: Predicts every candidate before the first round.
        name: Name in results.
        linearisation: Where the transfer linearises.
        num_continuations: As in `TransferRanker`.
        surrogate: What a loss says of other words.
        words: The table whose vectors say which tokens are alike; a word table knows no
            continuations, so that these are not corrected.
    """

    transfer: Transfer
    name: str
    linearisation: str = ""
    num_continuations: int | None = NUM_CONTINUATIONS
    surrogate: Surrogate = field(default_factory=Surrogate)
    words: WordTable | FrameTable = field(default_factory=WordTable)

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> BoundRanker:
        """Join the transfer to a primary and a term."""
        first = TransferRanker(
            self.transfer, self.name, self.linearisation, self.num_continuations
        ).bind(primary, table, loss)
        assert isinstance(first, TransferRanking)
        vectors, row_of = self.words.vectors(table, loss)
        directions = word_directions(vectors.float().cpu())
        return _SurrogateRanking(first, self.surrogate, directions, row_of.cpu())


@final
@dataclass(frozen=True, eq=False)
class _SurrogateRanking:
    first: TransferRanking
    surrogate: Surrogate
    directions: Float[Tensor, "w o"]
    row_of: Int[Tensor, " v"]

    def order(self, question: Question, ask: Ask) -> Ranking:
        place, chosen = question.place, question.chosen
        before = self.first.predict(place)
        predicted = before.scores[question.problem, chosen]
        rows = self.row_of[place.tokens[chosen]]
        known = torch.nonzero(rows >= 0).flatten()
        likely = torch.argsort(place.log_probs[chosen], descending=True, stable=True)
        first = question.prior + question.weight * predicted
        few = torch.sort(known[torch.argsort(first[known], stable=True)[:CONSIDERED]]).values
        asked = torch.zeros(0, dtype=torch.long)
        losses = torch.zeros(0)
        corrected = predicted
        closed = torch.zeros(len(chosen), dtype=torch.bool)
        closed[known] = True
        closed[few] = False
        for count in ROUNDS:
            total = question.prior + question.weight * corrected
            total[closed] = float("inf")
            best = likely[torch.argsort(total[likely], stable=True)][:count]
            best = best[~closed[best]]
            if not len(best):
                break
            closed[best] = True
            asked, losses = torch.cat([asked, best]), torch.cat([losses, ask(best)])
            corrected = self._correct(predicted, few, rows, asked, losses)
        corrected = self._correct(predicted, known, rows, asked, losses)
        corrected[asked] = losses
        total = question.prior + question.weight * corrected
        order = likely[torch.argsort(total[likely], stable=True)]
        return Ranking(order, before.cost(place, chosen))

    def _correct(
        self,
        predicted: Float[Tensor, " n"],
        words: Int[Tensor, " w"],
        rows: Int[Tensor, " n"],
        asked: Int[Tensor, " k"],
        losses: Float[Tensor, " k"],
    ) -> Float[Tensor, " n"]:
        """Return predictions, those of some words (ascending positions) corrected."""
        inside = torch.isin(asked, words)
        corrected = predicted.clone()
        corrected[words] = self.surrogate.correct(
            predicted[words],
            self.directions[rows[words]],
            torch.searchsorted(words, asked[inside]),
            losses[inside],
        )
        return corrected
