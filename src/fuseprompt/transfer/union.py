"""The union of two transfers' lists: a token counts as high as the better of its two ranks.

Better than a sum where one transfer alone knows the best words, as a table does for sentiment,
whose words act alone.
"""

from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.text.retokenize import RetokenizationTable
from fuseprompt.transfer.base import Slots, TokenScorer, Transfer
from fuseprompt.transfer.retokenized import RetokenizedTransfer
from fuseprompt.transfer.word_table import WordTable


@final
@dataclass(frozen=True)
class UnionTransfer:
    """Two lists as one, on the scale of the first.

    Each new word gets the predicted loss that stands, in the first transfer, at the better of its
    two ranks.

    Attributes:
        first: Gives the scale, and the answer for continuations.
        second: The other list.
        name: Name in results.
    """

    first: Transfer = field(default_factory=RetokenizedTransfer)
    second: Transfer = field(default_factory=WordTable)
    name: str = "union"

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> TokenScorer:
        """Join both transfers to a primary and a term."""
        bound = (t.bind(primary, table, loss) for t in (self.first, self.second))
        return _UnionScorer(*bound)


@final
@dataclass(frozen=True)
class _UnionScorer:
    first: TokenScorer
    second: TokenScorer

    @property
    def cost(self) -> float:
        return self.first.cost + self.second.cost

    def new_words(self, slots: Slots, words: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        first = self.first.new_words(slots, words)
        second = self.second.new_words(slots, words).to(first.device)
        better = torch.minimum(_ranks(first), _ranks(second))
        return first.sort(dim=1).values.gather(1, better)

    def continuations(self, slots: Slots, tokens: Int[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        return self.first.continuations(slots, tokens)


def _ranks(scores: Float[Tensor, "n w"]) -> Int[Tensor, "n w"]:
    """Return the rank of each score in its row, 0 for the lowest; ties by position."""
    order = torch.argsort(scores, dim=1, stable=True)
    ranks = torch.empty_like(order)
    return ranks.scatter_(1, order, torch.arange(scores.shape[1]).expand_as(order).contiguous())
