"""The FUSE adapter as a module: the primary's embeddings in, the secondary's out (figure 2).

Forward, the text of the primary's ids is tokenised again and embedded by the secondary, which is
exact. Backward, the gradient goes through `transfer_gradient`. So any optimiser of the primary's
embeddings gets a gradient from a model with another tokenizer. Ids are given, never recovered from
embeddings. This is the last of the seven files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fuseprompt.errors import ShapeError
from fuseprompt.fuse.alignment import Alignment, TokenEmbeddings, align
from fuseprompt.fuse.gradient import RandomFallback, count_without_map, transfer_gradient
from fuseprompt.fuse.table import JacobianTable, fingerprint_models


@final
@dataclass(frozen=True)
class AdapterOutput:
    """Texts as the secondary sees them.

    Attributes:
        embeds: The secondary's embeddings, zero beyond a text's end. Their gradient goes back.
        token_ids: The secondary's ids, with special tokens if the adapter adds them.
        alignments: Both tokenizations of each text, without special tokens.
        num_dropped: For each text, how many of the secondary's tokens have no map back: their
            gradient is zero, or random with a fallback.
    """

    embeds: Float[Tensor, "b t ds"]
    token_ids: tuple[tuple[int, ...], ...]
    alignments: tuple[Alignment, ...]
    num_dropped: tuple[int, ...]


@final
class FuseAdapter(nn.Module):
    """The map T_i:j of Eq. (2): retokenised forward, transposed t-product back (Eq. 5).

    Refuses a table that was fitted for other models. With `add_special_tokens` the secondary's own
    stand around each text, without a gradient. Words without a map get a zero gradient, or one
    through the `fallback`.
    """

    def __init__(
        self,
        primary: TokenEmbeddings,
        secondary: TokenEmbeddings,
        *,
        table: JacobianTable,
        add_special_tokens: bool = False,
        fallback: RandomFallback | None = None,
    ) -> None:
        super().__init__()
        table.check(fingerprint_models(primary, secondary))
        self.primary = primary
        self.secondary = secondary
        self.table = table.to(secondary.vocabulary.device)
        self.fallback = fallback
        self.before = secondary.tokenizer.prefix_ids if add_special_tokens else ()
        self.after = secondary.tokenizer.suffix_ids if add_special_tokens else ()

    def forward(
        self,
        embeds: Float[Tensor, "b s dp"],
        token_ids: Sequence[Sequence[int]] | Int[Tensor, "b s"],
    ) -> AdapterOutput:
        """Embed texts, given as ids without special tokens; `embeds` only get the gradient."""
        rows = token_ids.tolist() if isinstance(token_ids, Tensor) else list(map(list, token_ids))
        longest = max(map(len, rows), default=0)
        if embeds.shape[0] != len(rows) or embeds.shape[1] < longest:
            raise ShapeError(
                f"FuseAdapter got embeds of shape {tuple(embeds.shape)} for {len(rows)} texts of "
                f"up to {longest} tokens. Pass one embedding per id."
            )
        theirs, alignments = [], []
        for row in rows:
            text, primary_spans = self.primary.tokenizer.decode_with_spans(row)
            ids, secondary_spans = self.secondary.tokenizer.encode_with_offsets(text)
            theirs.append((*self.before, *ids, *self.after))
            alignments.append(align(text, primary_spans, secondary_spans))
        vectors = [self.secondary.vocabulary.detach()[list(ids)] for ids in theirs]
        values = nn.utils.rnn.pad_sequence(vectors, batch_first=True)
        if embeds.requires_grad:
            apply: Any = _Retokenise.apply
            values = apply(embeds, values, self, alignments)
        dropped = tuple(count_without_map(a, table=self.table) for a in alignments)
        return AdapterOutput(values, tuple(theirs), tuple(alignments), dropped)


class _Retokenise(torch.autograd.Function):
    """Hands the retokenised embeddings on, and their gradient back."""

    @staticmethod
    def forward(
        ctx: Any,
        embeds: Float[Tensor, "b s dp"],
        values: Float[Tensor, "b t ds"],
        adapter: FuseAdapter,
        alignments: list[Alignment],
    ) -> Float[Tensor, "b t ds"]:
        ctx.adapter, ctx.alignments = adapter, alignments
        ctx.shape, ctx.like = embeds.shape, embeds.new_empty(0)  # dtype and device
        return values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        adapter: FuseAdapter = ctx.adapter
        result = grads[0].new_zeros(ctx.shape)
        start = len(adapter.before)
        for row, alignment in enumerate(ctx.alignments):
            grad = grads[0][row, start : start + len(alignment.secondary_spans)]
            carried = transfer_gradient(
                grad, alignment, table=adapter.table, fallback=adapter.fallback
            )
            result[row, : len(carried)] = carried
        return result.to(ctx.like), None, None, None
