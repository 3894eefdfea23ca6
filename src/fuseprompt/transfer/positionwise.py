"""Direct transfer, one gradient for each piece of a word.

`RetokenizedTransfer` puts one vector into a slot and asks about the mean of a token's pieces. Here
the slot is as wide as the token: for every number of pieces m up to `max_pieces` the loss is
linearised once with m placeholders, and the m dot products are summed. The exact loss at the same
placeholders is part of each prediction, so that words of different m share a scale. Read first:
`fuseprompt.transfer.retokenized`.
"""

from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable
from fuseprompt.transfer.base import (
    SlotIds,
    Slots,
    TokenScorer,
    continued_pieces,
    mean_pieces,
    tokenize_last_word_slots,
    tokenize_new_word_slots,
)
from fuseprompt.transfer.linearise import CommonWords, Linear, Linearisation, SlotGradients


@final
@dataclass(frozen=True)
class PositionwiseTransfer:
    """Direct transfer with a slot as wide as the token.

    Attributes:
        linearisation: Which vectors stand in the slot, the same at each of its positions.
        gain: Factor of the predicted loss changes, as in `RetokenizedTransfer`.
        max_pieces: Widest slot; tokens of more pieces are taken for one piece, their mean.
    """

    linearisation: Linearisation = field(default_factory=CommonWords)
    gain: float = 2.6
    max_pieces: int = 4

    def __post_init__(self) -> None:
        """Check the width.

        Raises:
            ValueError: If it is below one.
        """
        if self.max_pieces < 1:
            raise ValueError(f"max_pieces must be at least 1, was: {self.max_pieces}.")

    @property
    def name(self) -> str:
        """Name in results."""
        return "positionwise"

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> TokenScorer:
        """Join the transfer to a primary and a term."""
        return _PositionwiseScorer(self, table, loss, SlotGradients(loss, self.linearisation))


@final
@dataclass(frozen=True)
class _PositionwiseScorer:
    setting: PositionwiseTransfer
    table: RetokenizationTable
    loss: EmbedLoss
    gradients: SlotGradients

    @property
    def cost(self) -> float:
        return self.gradients.meter.total

    def new_words(self, slots: Slots, words: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        ids = tokenize_new_word_slots(self.loss.tokenizer, slots)
        scores = torch.zeros(len(slots), len(words), device=self.gradients.points.device)
        known: dict[int, Linear] = {}
        for width, columns, embeds in self._by_width(self.table.pieces[words]):
            linear = self._linearise(ids, slots, width, known)
            scores[:, columns] = linear.predict_mean(embeds, gain=self.setting.gain)
        return scores

    def continuations(self, slots: Slots, tokens: Int[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        scores = torch.zeros(tokens.numel(), device=self.gradients.points.device)
        if not tokens.numel():
            return scores.reshape(tokens.shape)
        ids = tokenize_last_word_slots(self.loss.tokenizer, slots)
        slot_of = torch.arange(len(slots)).repeat_interleave(tokens.shape[1])
        pieces = continued_pieces(self.table, slots, tokens)
        known: dict[int, Linear] = {}
        for width, chosen, embeds in self._by_width(pieces):
            linear = self._linearise(ids, slots, width, known)
            scores[chosen] = linear.predict_pairs(slot_of[chosen], embeds, gain=self.setting.gain)
        return scores.reshape(tokens.shape)

    def _linearise(
        self, ids: SlotIds, slots: Slots, width: int, known: dict[int, Linear]
    ) -> Linear:
        """Return what is known of a width; words of one and of too many pieces share theirs."""
        if width not in known:
            known[width] = self.gradients.take(ids, slots.problems, width=width)
        return known[width]

    def _by_width(
        self, pieces: PaddedIds
    ) -> list[tuple[int, Int[Tensor, " w"], Float[Tensor, "w md"]]]:
        """Return slot width, rows and their embeddings side by side for each number of pieces."""
        groups = []
        # What does not fit a slot of its own stands in a slot of one, as the mean of its pieces.
        own = (pieces.lengths >= 1) & (pieces.lengths <= self.setting.max_pieces)
        widths = torch.where(own, pieces.lengths, torch.ones_like(pieces.lengths))
        for width in torch.unique(widths).tolist():
            rows = torch.nonzero(widths == width).flatten()
            if width == 1:
                embeds = mean_pieces(self.loss.vocabulary, pieces[rows])
            else:
                embeds = self.loss.vocabulary[pieces.ids[rows, :width]].float().flatten(1)
            groups.append((width, rows, embeds))
        return groups
