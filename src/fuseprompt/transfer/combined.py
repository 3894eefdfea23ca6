"""Two transfers as one: the gradient knows the context, the word table knows the word.

Each alone ranks candidates worse than their sum (docs/decisions.md): rank correlation 0.59 and 0.58
against 0.69 over 21 contexts of the offline image-text model.
"""

from dataclasses import dataclass, field
from typing import Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.text.retokenize import RetokenizationTable
from fuseprompt.transfer.base import Slots, TokenScorer, Transfer
from fuseprompt.transfer.retokenized import RetokenizedTransfer
from fuseprompt.transfer.word_table import WordTable

#: Spread of the true loss over words in units of the gradient's spread, times the correlation of
#: the sum, halved for its two summands; measured 1.5-2.0 in 21 contexts.
_SPREAD: Final = 0.7


@final
@dataclass(frozen=True)
class SumTransfer:
    """The sum of two transfers' z-scores, put on the scale of the first.

    Attributes:
        first: Gives mean and spread in each context; a gradient.
        second: Adds its ranking; a word table.
        name: Name in results.
    """

    first: Transfer = field(default_factory=RetokenizedTransfer)
    second: Transfer = field(default_factory=WordTable)
    name: str = "best"

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> TokenScorer:
        """Join both transfers to a primary and a term."""
        return _SumScorer(
            self.first.bind(primary, table, loss), self.second.bind(primary, table, loss)
        )


@final
@dataclass(frozen=True)
class _SumScorer:
    first: TokenScorer
    second: TokenScorer

    @property
    def cost(self) -> float:
        return self.first.cost + self.second.cost

    def new_words(self, slots: Slots, words: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        first = self.first.new_words(slots, words)
        second = self.second.new_words(slots, words).to(first.device)
        return first.mean(1, keepdim=True) + _SPREAD * first.std(1, correction=0, keepdim=True) * (
            _z(first) + _z(second)
        )

    def continuations(self, slots: Slots, tokens: Int[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        # A z-score over a handful of continuations means nothing; the gradient's own scale does.
        return self.first.continuations(slots, tokens)


def _z(scores: Float[Tensor, "n w"]) -> Float[Tensor, "n w"]:
    """Standardise each row; a constant row becomes zero."""
    spread = scores.std(1, correction=0, keepdim=True)  # a word alone has spread 0, not NaN
    return torch.where(
        spread > 0,
        (scores - scores.mean(1, keepdim=True)) / spread.clamp_min(1e-12),
        torch.zeros_like(scores),
    )
