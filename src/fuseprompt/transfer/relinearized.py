"""Direct transfer in two passes, the second linearised at the best words of the first.

A first-order prediction is good near its point, and near the best words is where it has to be good.
Read first: `fuseprompt.transfer.retokenized`.
"""

from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.text.retokenize import RetokenizationTable
from fuseprompt.transfer.base import (
    Meter,
    SlotIds,
    Slots,
    TokenScorer,
    Transfer,
    new_word_embeds,
    tokenize_new_word_slots,
)
from fuseprompt.transfer.linearise import linearise
from fuseprompt.transfer.retokenized import RetokenizedTransfer


@final
@dataclass(frozen=True)
class RelinearizedTransfer:
    """The mean of a first pass and of a second, linearised at the first pass's best words.

    Attributes:
        first: The first pass.
        num_best: Words of the first pass at which the loss is linearised again.
        gain: As in `RetokenizedTransfer`.
    """

    first: Transfer = field(default_factory=RetokenizedTransfer)
    num_best: int = 16
    gain: float = 2.6

    def __post_init__(self) -> None:
        """Check the count."""
        if self.num_best < 1:
            raise ValueError(f"num_best must be at least 1, was: {self.num_best}.")

    @property
    def name(self) -> str:
        """Name in results."""
        return "relinearized"

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> TokenScorer:
        """Join the transfer to a primary and a term."""
        first = self.first.bind(primary, table, loss)
        return _RelinearizedScorer(first, table, loss, self.num_best, self.gain)


@final
@dataclass(frozen=True)
class _RelinearizedScorer:
    first: TokenScorer
    table: RetokenizationTable
    loss: EmbedLoss
    num_best: int
    gain: float
    meter: Meter = field(default_factory=Meter)

    @property
    def cost(self) -> float:
        return self.first.cost + self.meter.total

    def new_words(self, slots: Slots, words: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        scores = self.first.new_words(slots, words)
        embeds = new_word_embeds(self.table, self.loss)[words]
        best = torch.argsort(scores, dim=1, stable=True)[:, : self.num_best]
        ids = tokenize_new_word_slots(self.loss.tokenizer, slots)
        rows = []
        for i in range(len(slots)):
            one = torch.tensor([i])
            slot = SlotIds(ids.token_ids[one], ids.positions[one])
            linear = linearise(self.loss, slot, slots.problems[one], embeds[best[i]])
            self.meter.add(linear.cost)
            rows.append(linear.predict_mean(embeds, gain=self.gain))
        return (scores + torch.cat(rows)) / 2

    def continuations(self, slots: Slots, tokens: Int[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        return self.first.continuations(slots, tokens)
