"""Two transfers as one: the gradient knows the context, the word table knows the word.

`SumTransfer` adds their scores: each alone ranks candidates worse (docs/decisions.md), with a rank
correlation of 0.59 and 0.58 against 0.69 over 21 contexts of the offline image-text model.
`BlendTransfer` averages predicted losses, where both are losses of this text, and so has an answer
for a handful of continuations, too. `UnionTransfer` takes the better of two ranks: better than a
sum where one transfer alone knows the best words, as a table does for sentiment, whose words act
alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.text.retokenize import RetokenizationTable
from fuseprompt.transfer.base import Slots, TokenScorer, Transfer
from fuseprompt.transfer.frame_table import FrameTable
from fuseprompt.transfer.retokenized import RetokenizedTransfer
from fuseprompt.transfer.word_table import WordTable

#: Spread of the true loss over words in units of the gradient's spread, times the correlation of
#: the sum, halved for its two summands; measured 1.5-2.0 in 21 contexts.
_SPREAD: Final = 0.7

#: Gain of the frame table in a blend (docs/decisions.md).
BLEND_GAIN: Final = 1.35


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
    name: str = "sum"

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> TokenScorer:
        """Join both transfers to a primary and a term."""
        first = self.first.bind(primary, table, loss)
        return _PairScorer(first, self.second.bind(primary, table, loss), _add_standardised)


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
        first = self.first.bind(primary, table, loss)
        return _PairScorer(first, self.second.bind(primary, table, loss), _take_better_rank)


@final
@dataclass(frozen=True)
class BlendTransfer:
    """The weighted mean of two transfers' predicted losses, of new words and of continuations.

    Attributes:
        first: Knows the text around the token; a gradient.
        second: Knows the token; a table that covers continuations.
        share: Weight of the second, between 0 and 1. It and the table's gain are those of a
            regression on both, about .83 of the table and .4 of the gradient for new words, .8 and
            .6 for continuations (docs/decisions.md).
        name: Name in results.
    """

    first: Transfer = field(default_factory=RetokenizedTransfer)
    second: Transfer = field(default_factory=lambda: FrameTable(gain=BLEND_GAIN))
    share: float = 0.6
    name: str = "blend"

    def __post_init__(self) -> None:
        """Check the share.

        Raises:
            ValueError: If it is not between 0 and 1.
        """
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must be between 0 and 1, was: {self.share}.")

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> TokenScorer:
        """Join both transfers to a primary and a term."""
        first = self.first.bind(primary, table, loss)
        second = self.second.bind(primary, table, loss)

        def blend(ours: Float[Tensor, "n w"], theirs: Float[Tensor, "n w"]) -> Float[Tensor, "n w"]:
            return torch.lerp(ours, theirs, self.share)

        return _PairScorer(first, second, blend, blend)


@final
@dataclass(frozen=True)
class _PairScorer:
    """Merges what two scorers say; without a rule for them, continuations are the first one's."""

    first: TokenScorer
    second: TokenScorer
    merge: Callable[[Tensor, Tensor], Tensor]
    merge_continuations: Callable[[Tensor, Tensor], Tensor] | None = None

    @property
    def cost(self) -> float:
        return self.first.cost + self.second.cost

    def new_words(self, slots: Slots, words: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        first = self.first.new_words(slots, words)
        return self.merge(first, self.second.new_words(slots, words).to(first.device))

    def continuations(self, slots: Slots, tokens: Int[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        first = self.first.continuations(slots, tokens)
        if self.merge_continuations is None:
            # A z-score or a rank among a handful of continuations means nothing; the gradient's
            # own scale does.
            return first
        second = self.second.continuations(slots, tokens).to(first.device)
        return self.merge_continuations(first, second)


def _add_standardised(
    first: Float[Tensor, "n w"], second: Float[Tensor, "n w"]
) -> Float[Tensor, "n w"]:
    """Return the sum of the z-scores with the first's mean and a part of its spread."""
    spread = _SPREAD * first.std(1, correction=0, keepdim=True)
    return first.mean(1, keepdim=True) + spread * (_z(first) + _z(second))


def _take_better_rank(
    first: Float[Tensor, "n w"], second: Float[Tensor, "n w"]
) -> Float[Tensor, "n w"]:
    """Return what stands in the first list at the better of two ranks."""
    better = torch.minimum(_ranks(first), _ranks(second))
    return first.sort(dim=1).values.gather(1, better)


def _z(scores: Float[Tensor, "n w"]) -> Float[Tensor, "n w"]:
    """Standardise each row; a constant row becomes zero."""
    spread = scores.std(1, correction=0, keepdim=True)  # a word alone has spread 0, not NaN
    return torch.where(
        spread > 0,
        (scores - scores.mean(1, keepdim=True)) / spread.clamp_min(1e-12),
        torch.zeros_like(scores),
    )


def _ranks(scores: Float[Tensor, "n w"]) -> Int[Tensor, "n w"]:
    """Return the rank of each score in its row, 0 for the lowest; ties by position."""
    order = torch.argsort(scores, dim=1, stable=True)
    ranks = torch.empty_like(order)
    places = torch.arange(scores.shape[1], device=scores.device)
    return ranks.scatter_(1, order, places.expand_as(order).contiguous())
