"""The paper's transfer as a proposer: a gradient goes through the fitted maps to the primary.

The gradient where a token may go is carried to the primary's embeddings by `transfer_gradient`
(Eq. 5), once for each pair of token counts that candidates have; the predicted change of the loss
is the dot product with a candidate's embeddings. The maps are made by `fuseprompt.fuse.fit`. Read
next: `fuseprompt.transfer.controls`.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.fuse.alignment import Alignment
from fuseprompt.fuse.gradient import transfer_gradient
from fuseprompt.fuse.table import JacobianTable, fingerprint_models
from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable
from fuseprompt.transfer.base import (
    Slots,
    TokenScorer,
    continued_words,
    tokenize_last_word_slots,
    tokenize_new_word_slots,
)
from fuseprompt.transfer.linearise import CommonWords, Linear, Linearisation, SlotGradients


@final
@dataclass(frozen=True)
class TProductTransfer:
    """Scores a word v by <g * T^T, v>: the slot's gradient g, carried to the primary, times v.

    Attributes:
        table: The fitted maps.
        linearisation: Where the loss is linearised.
        gain: Factor of the predicted changes, as in `RetokenizedTransfer`.
    """

    table: JacobianTable
    linearisation: Linearisation = field(default_factory=CommonWords)
    gain: float = 2.6

    @property
    def name(self) -> str:
        """Name in results."""
        return "tproduct"

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> TokenScorer:
        """Join the transfer to a primary and a term.

        Args:
            primary: The model whose tokens are chosen.
            table: From the primary's tokens to the term's.
            loss: The term with its targets.

        Returns:
            The scorer.

        Raises:
            FingerprintError: If the maps were fitted for other models.
        """
        # Hashing both vocabularies takes a fifth of a second, so it is done once for two models.
        found = table.memo.recall(
            "fingerprint", (primary, loss.model), lambda: fingerprint_models(primary, loss)
        )
        self.table.check(found)
        maps = self.table.to(loss.vocabulary.device)
        gradients = SlotGradients(loss, self.linearisation)
        return _TProductScorer(maps, self.gain, primary, table, loss, gradients)


@final
@dataclass(frozen=True)
class _TProductScorer:
    maps: JacobianTable
    gain: float
    primary: HasVocabulary
    table: RetokenizationTable
    loss: EmbedLoss
    gradients: SlotGradients

    @property
    def cost(self) -> float:
        return self.gradients.meter.total

    @cached_property
    def mean_token(self) -> Float[Tensor, " ds"]:
        """Says nothing for or against a word."""
        return self.loss.vocabulary.float().mean(0)

    def new_words(self, slots: Slots, words: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        ids = tokenize_new_word_slots(self.loss.tokenizer, slots)
        linear = self.gradients.take(ids, slots.problems)
        lengths = self.table.pieces.lengths[words]
        dots = self._without_map(linear, len(words))
        pairs = [(1, num_secondary) for num_secondary in torch.unique(lengths).tolist()]
        for (_, num_secondary), grad in self._carry(linear, pairs):
            here = torch.nonzero(lengths == num_secondary).flatten()
            vectors = self.primary.vocabulary[words[here]].to(grad)
            dots[:, here] = grad[:, 0] @ vectors.T
        return self._predict(linear, dots)

    def continuations(self, slots: Slots, tokens: Int[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        if not tokens.numel():
            return torch.zeros(tokens.shape)
        last = tokenize_last_word_slots(self.loss.tokenizer, slots)
        linear = self.gradients.take(last, slots.problems)
        words = continued_words(self.table, slots, tokens)
        ids = PaddedIds.from_lists(self.table.primary.encode_batch(words))
        lengths = torch.tensor([len(self.table.encode_word(word)) for word in words])
        counts = torch.stack([ids.lengths, lengths], 1)  # (n c, 2)
        dots = self._without_map(linear, tokens.shape[1]).flatten()
        pairs = [(ours, theirs) for ours, theirs in torch.unique(counts, dim=0).tolist()]
        for pair, grad in self._carry(linear, pairs):
            here = torch.nonzero((counts == torch.tensor(pair)).all(1)).flatten()
            vectors = self.primary.vocabulary[ids.ids[here, : pair[0]]].to(grad)  # (r, k, dp)
            dots[here] = (grad[here // tokens.shape[1]] * vectors).sum((1, 2))
        return self._predict(linear, dots.reshape(tokens.shape))

    def _carry(
        self, linear: Linear, pairs: list[tuple[int, int]]
    ) -> list[tuple[tuple[int, int], Float[Tensor, "n k dp"]]]:
        """Return the gradient at the primary's tokens of a word, for counts that have a map.

        A slot holds the mean of a word's pieces, so each of l pieces has an l-th of its gradient.
        """
        shared = self.maps.is_shared
        known = [pair for pair in pairs if shared or self.maps.lookup(*pair) is not None]
        if not known:
            return []
        grad = linear.grads.mean(1)  # (n, ds)
        n = len(grad)
        counts = [(k, k) for k, _ in known] if shared else known
        rows = torch.cat([(grad / pieces).repeat_interleave(pieces, 0) for _, pieces in counts])
        words = Alignment.of_counts([pair for pair in counts for _ in range(n)])
        carried = transfer_gradient(rows, words, table=self.maps).grad
        parts = torch.split(carried, [n * k for k, _ in known])
        return [(pair, x.reshape(n, pair[0], -1)) for pair, x in zip(known, parts, strict=True)]

    def _without_map(self, linear: Linear, width: int) -> Float[Tensor, "n w"]:
        """Return the dot products of words without a map, as if each were the mean token."""
        return (linear.grads.mean(1) @ self.mean_token)[:, None].repeat(1, width)

    def _predict(self, linear: Linear, dots: Float[Tensor, "n w"]) -> Float[Tensor, "n w"]:
        """Return the mean of the predictions from all points, as `Linear.predict_mean` does."""
        offset = (linear.grads * linear.points).sum(-1).mean(-1)
        return linear.losses.mean(-1)[:, None] + self.gain * (dots - offset[:, None])
