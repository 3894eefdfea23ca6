"""The paper's transfer: embeddings and gradients go through the fitted maps (Eqs. 3 to 5).

`map_embeddings` is the linear map merge(T(split(E))) that stands for retokenising;
`transfer_gradient` is its exact adjoint, merge(split(G) * T^T), with slices 2..l of the maps
reversed in the t-transpose (the paper prints neither the transpose nor the reversal).
`TProductTransfer` scores candidate tokens of a search with it. The map is fitted in
`fuseprompt.transfer.fit`. Read next: `fuseprompt.transfer.adapter`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import AlignmentError
from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.tensor.product import pad_tubes, t_product, t_transpose
from fuseprompt.text.alignment import Alignment, Part
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable
from fuseprompt.transfer.base import (
    Slots,
    TokenScorer,
    continued_words,
    tokenize_last_word_slots,
    tokenize_new_word_slots,
)
from fuseprompt.transfer.linearise import CommonWords, Linearisation, SlotGradients
from fuseprompt.transfer.table import SHARED, JacobianTable, fingerprint_models


@final
@dataclass(frozen=True)
class RandomFallback:
    """Random maps for words that have none (section 4.2), seeded and of the fitted ones' size.

    Attributes:
        seed: Seed; a pair of token counts always gets the same map.
    """

    seed: int = 0

    def jacobian(self, table: JacobianTable, part: Part) -> Float[Tensor, "dp ds p"]:
        """Return the map for a part.

        Args:
            table: Whose maps give width and size.
            part: The word.

        Returns:
            Normal entries with the root mean square of the table's entries.
        """
        k, l = part.num_primary, part.num_secondary  # noqa: E741
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + k * 1009 + l)
        maps = list(table.jacobians.values())
        size = sum(float(m.square().mean()) for m in maps) / len(maps)
        noise = torch.randn(*table.widths, max(k, l), generator=generator)
        jacobian: Tensor = noise * size**0.5
        return jacobian.to(maps[0])


@final
@dataclass(frozen=True)
class PrimaryGradient:
    """A gradient that arrived at the primary's positions.

    Attributes:
        grad: One row per token of the primary.
        num_dropped: Tokens of the secondary whose gradient had no map to go through and counts as
            zero.
    """

    grad: Float[Tensor, "s dp"]
    num_dropped: int


def transfer_gradient(
    grad: Float[Tensor, "t ds"],
    alignment: Alignment,
    *,
    table: JacobianTable,
    fallback: RandomFallback | None = None,
) -> PrimaryGradient:
    """Carry a gradient from the secondary's embeddings to the primary's.

    Implements Eq. (5) and algorithm 1; Eq. (3) where the table is for equal tokenizers. A word's
    gradient is padded to the depth p of its map, multiplied with the map's t-transpose and cropped
    to the primary's tokens. Words without a map are cut at offsets that both tokenizers share;
    where there is none their gradient is zero and counted, or random.

    Args:
        grad: Gradient of a loss with respect to the secondary's embeddings of the text. Not
            modified.
        alignment: The text in both tokenizations, without special tokens.
        table: The fitted maps.
        fallback: Maps for words that have none; by default their gradient is zero.

    Returns:
        The gradient with respect to the primary's embeddings; dtype and device of `grad`.

    Raises:
        AlignmentError: If the rows are not the alignment's tokens of the secondary.

    Note:
        The paper prints the product without transpose, which does not fit the shapes
        (docs/paper-notes.md).
    """
    _check_rows("transfer_gradient", grad, len(alignment.secondary_spans), "secondary")
    result = grad.new_zeros(len(alignment.primary_spans), table.widths[0])
    dropped = 0
    for parts, jacobian in _by_map(alignment, table, fallback):
        if jacobian is None:
            dropped += sum(part.num_secondary for part in parts)
            continue
        ours, theirs = _rows(parts, grad.device)
        words = pad_tubes(grad[theirs].mT, jacobian.shape[-1])  # (w, ds, p)
        carried = t_product(words, t_transpose(jacobian.to(grad)))
        result[ours] = carried[..., : ours.shape[1]].mT
    return PrimaryGradient(result, dropped)


def count_without_map(alignment: Alignment, *, table: JacobianTable) -> int:
    """Count the secondary's tokens whose gradient has no map to go through.

    Args:
        alignment: The text in both tokenizations.
        table: The fitted maps.

    Returns:
        What `transfer_gradient` reports as `num_dropped` without a fallback.
    """
    groups = _by_map(alignment, table, None)
    return sum(p.num_secondary for parts, jacobian in groups if jacobian is None for p in parts)


def map_embeddings(
    embeds: Float[Tensor, "s dp"],
    alignment: Alignment,
    *,
    table: JacobianTable,
    fallback: RandomFallback | None = None,
) -> Float[Tensor, "t ds"]:
    """Map the primary's embeddings of a text to the secondary's: merge(T(split(E))) of Eq. (4).

    Differentiable, with `transfer_gradient` as its backward pass; that is what the tests compare.
    The adapter's own forward pass retokenises instead, which is exact.

    Args:
        embeds: Embeddings of the primary's tokens.
        alignment: The text in both tokenizations.
        table: The fitted maps.
        fallback: Maps for words that have none; by default they map to zero.

    Returns:
        Approximate embeddings of the secondary's tokens.

    Raises:
        AlignmentError: If the rows are not the alignment's tokens of the primary.
    """
    _check_rows("map_embeddings", embeds, len(alignment.primary_spans), "primary")
    result = embeds.new_zeros(len(alignment.secondary_spans), table.widths[1])
    for parts, jacobian in _by_map(alignment, table, fallback):
        if jacobian is None:
            continue
        ours, theirs = _rows(parts, embeds.device)
        words = pad_tubes(embeds[ours].mT, jacobian.shape[-1])  # (w, dp, p)
        mapped = t_product(words, jacobian.to(embeds))[..., : theirs.shape[1]].mT
        result = result.index_put((theirs,), mapped)
    return result


@final
@dataclass(frozen=True)
class TProductTransfer:
    """The paper's transfer as a proposer: a slot's gradient, carried to the primary's embeddings.

    The predicted change of the loss for token v is <g T^T, v> over the primary's vocabulary, which
    is the same as the dot product of g with the mapped token.

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
        """
        # Hashing both vocabularies takes a fifth of a second, so it is done once for two models.
        found = table.memo.recall(
            "fingerprint", (primary, loss.model), lambda: fingerprint_models(primary, loss)
        )
        self.table.check(found)
        gradients = SlotGradients(loss, self.linearisation)
        return _TProductScorer(self, primary, table, loss, gradients)


@final
@dataclass(frozen=True)
class _TProductScorer:
    transfer: TProductTransfer
    primary: HasVocabulary
    table: RetokenizationTable
    loss: EmbedLoss
    gradients: SlotGradients

    @property
    def cost(self) -> float:
        return self.gradients.meter.total

    @cached_property
    def unknown(self) -> Float[Tensor, " ds"]:
        """Stands for words without a map: says nothing for or against them."""
        return self.loss.vocabulary.float().mean(0)

    @property
    def token_embeds(self) -> Float[Tensor, "v ds"]:
        """Mapped embedding of every primary token read as a new word, the mean over its pieces."""
        sources = (self.transfer.table, self.primary, self.loss.model)
        return self.table.memo.recall("mapped tokens", sources, self._map_tokens)

    def _map_tokens(self) -> Float[Tensor, "v ds"]:
        ids = torch.arange(len(self.table.pieces))[:, None]
        return self.map_words(
            ids, torch.ones(len(ids), dtype=torch.long), self.table.pieces.lengths
        )

    def new_words(self, slots: Slots, words: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        ids = tokenize_new_word_slots(self.loss.tokenizer, slots)
        linear = self.gradients.take(ids, slots.problems)
        return linear.predict_mean(self.token_embeds[words], gain=self.transfer.gain)

    def continuations(self, slots: Slots, tokens: Int[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        if not tokens.numel():
            return torch.zeros(tokens.shape)
        ids = tokenize_last_word_slots(self.loss.tokenizer, slots)
        linear = self.gradients.take(ids, slots.problems)
        words = continued_words(self.table, slots, tokens)
        ours = PaddedIds.from_lists(self.table.primary.encode_batch(words))
        lengths = torch.tensor([len(self.table.encode_word(word)) for word in words])
        embeds = self.map_words(ours.ids, ours.lengths, lengths)
        return linear.predict_mean(embeds.reshape(*tokens.shape, -1), gain=self.transfer.gain)

    def map_words(
        self,
        token_ids: Int[Tensor, "b k"],
        num_primary: Int[Tensor, " b"],
        num_secondary: Int[Tensor, " b"],
    ) -> Float[Tensor, "b ds"]:
        """Map words given by the primary's ids; return the mean over the secondary's tokens."""
        result = self.unknown.repeat(len(token_ids), 1)
        pairs = torch.stack([num_primary, num_secondary], 1)
        for k, l in torch.unique(pairs, dim=0).tolist():  # noqa: E741
            jacobian = self.transfer.table.jacobians.get(SHARED)
            if jacobian is None:
                jacobian = self.transfer.table.lookup(k, l) if k and l else None
            if jacobian is None:
                continue
            rows = torch.nonzero((pairs == torch.tensor([k, l])).all(1)).flatten()
            words = self.primary.vocabulary[token_ids[rows, :k]].mT.to(result)  # (w, dp, k)
            jacobian = jacobian.to(result)
            if SHARED in self.transfer.table.jacobians:
                result[rows] = words.mean(-1) @ jacobian[..., 0]
            else:
                # The mean over the first l tubes of e * T is linear in e: one matrix per token.
                result[rows] = _mean_of_product(words, jacobian, l)
        return result


def _mean_of_product(
    words: Float[Tensor, "w dp k"], jacobian: Float[Tensor, "dp ds p"], num_secondary: int
) -> Float[Tensor, "w ds"]:
    """Return the mean of the first `num_secondary` tubes of words * jacobian."""
    depth = jacobian.shape[-1]
    result = words.new_zeros(words.shape[0], jacobian.shape[1])
    for s in range(words.shape[-1]):
        slices = [(t - s) % depth for t in range(num_secondary)]
        result += words[..., s] @ jacobian[..., slices].mean(-1)
    return result


def _by_map(
    alignment: Alignment, table: JacobianTable, fallback: RandomFallback | None
) -> Iterator[tuple[list[Part], Tensor | None]]:
    """Group the parts of a text by token counts, each group with its map."""
    if table.is_shared:
        if alignment.primary_spans != alignment.secondary_spans:
            raise AlignmentError(
                "The table is for equal tokenizers, but the text has "
                f"{len(alignment.primary_spans)} and "
                f"{len(alignment.secondary_spans)} tokens in other places. Fit a table for these "
                "two models."
            )
        places = range(len(alignment.primary_spans))
        singles = [Part(alignment.primary_spans[i], (i, i + 1), (i, i + 1)) for i in places]
        if singles:
            yield singles, table.jacobians[SHARED]
        return
    groups: dict[tuple[int, int], list[Part]] = {}
    for part in alignment.cut(table.max_tokens).parts:
        for piece in _pieces_with_map(alignment, part, table):
            groups.setdefault((piece.num_primary, piece.num_secondary), []).append(piece)
    for (k, l), parts in sorted(groups.items()):  # noqa: E741
        jacobian = table.lookup(k, l) if k and l else None
        if jacobian is None and fallback is not None and k and l:
            jacobian = fallback.jacobian(table, parts[0])
        yield parts, jacobian


def _pieces_with_map(alignment: Alignment, part: Part, table: JacobianTable) -> list[Part]:
    """Cut a part whose case was too rare to be fitted into the largest pieces that have maps."""
    if table.lookup(part.num_primary, part.num_secondary) is not None:
        return [part]
    alone = Alignment(alignment.text, alignment.primary_spans, alignment.secondary_spans, (part,))
    for most in range(max(part.num_primary, part.num_secondary) - 1, 0, -1):
        pieces = alone.cut(most).parts
        if len(pieces) > 1:
            return [
                found for piece in pieces for found in _pieces_with_map(alignment, piece, table)
            ]
    return [part]


def _rows(parts: list[Part], device: torch.device) -> tuple[Int[Tensor, "w k"], Int[Tensor, "w l"]]:
    """Return the positions of tokens of equally long parts, in both models."""
    ours = torch.tensor([list(range(*part.primary)) for part in parts], device=device)
    theirs = torch.tensor([list(range(*part.secondary)) for part in parts], device=device)
    return ours, theirs


def _check_rows(name: str, rows: Tensor, expected: int, side: str) -> None:
    """Refuse tensors with other rows than the alignment has tokens.

    Raises:
        AlignmentError: If they differ.
    """
    if rows.shape[0] != expected:
        raise AlignmentError(
            f"{name} got {rows.shape[0]} rows, but the alignment has {expected} tokens of the "
            f"{side}. Leave out rows of "
            "special tokens and padding."
        )
