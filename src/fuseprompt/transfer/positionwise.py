"""Direct transfer, one gradient for each piece of a word.

`RetokenizedTransfer` puts one vector into a slot and asks about the mean of a token's pieces. Here
the slot is as wide as the token: for every number of pieces m up to `max_pieces` the loss is
linearised once with m placeholders, and the m dot products are summed. The exact loss at the same
placeholders is part of each prediction, so that words of different m share a scale. Read first:
`fuseprompt.transfer.retokenized`.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable, last_word
from fuseprompt.transfer.base import (
    GRADIENT_COST,
    Meter,
    SlotIds,
    Slots,
    TokenScorer,
    tokenize_last_word_slots,
    tokenize_new_word_slots,
)
from fuseprompt.transfer.linearise import CommonWords, Linearisation


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
        return _PositionwiseScorer(self, table, loss)


@final
@dataclass(frozen=True)
class _PositionwiseScorer:
    setting: PositionwiseTransfer
    table: RetokenizationTable
    loss: EmbedLoss
    meter: Meter = field(default_factory=Meter)

    @property
    def cost(self) -> float:
        return self.meter.total

    @cached_property
    def points(self) -> Float[Tensor, "k d"]:
        return self.setting.linearisation.points(self.loss)

    def new_words(self, slots: Slots, words: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        ids = tokenize_new_word_slots(self.loss.tokenizer, slots)
        pieces = self.table.pieces[words]
        scores = torch.zeros(len(slots), len(words), device=self.points.device)
        for width, columns, embeds in self._by_width(pieces):
            constant, grads = self._linearise(ids, slots.problems, width)
            dots = torch.einsum("nmd,wmd->nw", grads, embeds)
            scores[:, columns] = constant[:, None] + self.setting.gain * dots
        return scores

    def continuations(self, slots: Slots, tokens: Int[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        scores = torch.zeros(tokens.numel(), device=self.points.device)
        if not tokens.numel():
            return scores.reshape(tokens.shape)
        ids = tokenize_last_word_slots(self.loss.tokenizer, slots)
        texts = self.table.primary.token_texts
        rows = [
            self.table.encode_word(last_word(left) + texts[t])
            for left, row in zip(slots.left, tokens.tolist(), strict=True)
            for t in row
        ]
        slot_of = torch.arange(len(slots)).repeat_interleave(tokens.shape[1])
        for width, chosen, embeds in self._by_width(PaddedIds.from_lists(rows)):
            constant, grads = self._linearise(ids, slots.problems, width)
            at = slot_of[chosen]
            dots = (grads[at] * embeds).sum((1, 2))
            scores[chosen] = constant[at] + self.setting.gain * dots
        return scores.reshape(tokens.shape)

    def _by_width(
        self, pieces: PaddedIds
    ) -> list[tuple[int, Int[Tensor, " w"], Float[Tensor, "w m d"]]]:
        """Return slot width, rows and their embeddings for each number of pieces."""
        groups = []
        for count in torch.unique(pieces.lengths).tolist():
            rows = torch.nonzero(pieces.lengths == count).flatten()
            embeds = self.loss.vocabulary[pieces.ids[rows, :count]].float()
            if not 1 <= count <= self.setting.max_pieces:
                embeds = embeds.sum(1, keepdim=True) / max(count, 1)
            groups.append((embeds.shape[1], rows, embeds))
        return groups

    def _linearise(
        self, ids: SlotIds, problems: Int[Tensor, " n"], width: int
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, "n m d"]]:
        """Return what does not depend on the candidate, and the mean gradient at each position."""
        wide = widen(ids, width)
        n, k = len(problems), self.points.shape[0]
        rows = torch.arange(n).repeat_interleave(k)
        token_ids = wide.token_ids[rows]
        points = self.points.repeat(n, 1)[:, None].expand(-1, width, -1)
        inserted = points.clone().requires_grad_(True)  # (n k, m, d)
        at = wide.positions[rows][:, None] + torch.arange(width)
        with torch.enable_grad():
            context = self.loss.vocabulary[token_ids.ids].detach().float()
            embeds = context.index_put((torch.arange(n * k)[:, None], at), inserted)
            losses = self.loss.loss(token_ids, problems[rows], embeds=embeds)
            (grads,) = torch.autograd.grad(losses.sum(), inserted)
        self.meter.add(GRADIENT_COST * n * k)
        offset = (grads * points).sum((1, 2)).reshape(n, k).mean(1)
        constant = losses.detach().reshape(n, k).mean(1) - self.setting.gain * offset
        return constant, grads.reshape(n, k, width, -1).mean(1)


def widen(slots: SlotIds, width: int) -> SlotIds:
    """Return slots with `width` stand-ins side by side in place of one.

    Args:
        slots: Slots with one stand-in each.
        width: Positions of the wider slot.

    Returns:
        The wider slots; positions are where they begin.
    """
    rows = [
        row[:at] + [row[at]] * width + row[at + 1 :]
        for row, at in zip(slots.token_ids.to_lists(), slots.positions.tolist(), strict=True)
    ]
    return SlotIds(PaddedIds.from_lists(rows), slots.positions)
