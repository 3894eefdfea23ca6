"""Embeddings and gradients through the fitted maps (Eqs. 3 to 5, algorithm 1).

`map_embeddings` is the linear map merge(split(E) * T) that stands for retokenising, and
`transfer_gradient` its exact adjoint, merge(split(G) * T^T). The paper prints neither the transpose
nor its reversal of slices 2..l; without them shapes do not fit, and from three tokens on the
gradient is wrong (docs/paper-notes.md, sections 4 and 5). Both take a map for each word by its
token counts, and pad a word to the depth of its map. Read next: `fuseprompt.fuse.adapter`.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from fuseprompt.errors import AlignmentError
from fuseprompt.fuse.alignment import Alignment, Part, merge, split
from fuseprompt.fuse.table import JacobianTable
from fuseprompt.fuse.tproduct import pad_tubes, t_product, t_transpose


@final
@dataclass(frozen=True)
class RandomFallback:
    """Random maps for words that have none (section 4.2): one for each seed and token counts."""

    seed: int = 0

    def jacobian(self, table: JacobianTable, counts: tuple[int, int]) -> Float[Tensor, "dp ds p"]:
        """Return normal entries with the root mean square of the table's, of depth max(k, l)."""
        seed = self.seed * 1_000_003 + counts[0] * 1009 + counts[1]
        maps = list(table.jacobians.values())
        size = sum(float(m.square().mean()) for m in maps) / len(maps)
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(*table.widths, max(counts), generator=generator)
        jacobian: Tensor = noise * size**0.5
        return jacobian.to(maps[0])


def transfer_gradient(
    grad: Float[Tensor, "t ds"],
    alignment: Alignment,
    *,
    table: JacobianTable,
    fallback: RandomFallback | None = None,
) -> Float[Tensor, "s dp"]:
    """Carry a gradient from the secondary's embeddings of a text to the primary's.

    Implements Eq. (5) and algorithm 1; Eq. (3) where the table is for equal tokenizers. A word's
    gradient is multiplied with the t-transpose of its map, and cropped to the primary's tokens.
    Words without a map are cut at offsets that both tokenizers share; where there is none their
    gradient is zero (`count_without_map` counts them), or goes through the random `fallback`.
    Special tokens have no rows, in the gradient or in the alignment.

    Returns:
        The gradient, one row per token of the primary, with dtype and device of `grad`.
    """
    return _through_maps(grad, alignment, table, fallback, backward=True)


def map_embeddings(
    embeds: Float[Tensor, "s dp"],
    alignment: Alignment,
    *,
    table: JacobianTable,
    fallback: RandomFallback | None = None,
) -> Float[Tensor, "t ds"]:
    """Map the primary's embeddings of a text to the secondary's: merge(T(split(E))) of Eq. (4).

    Differentiable, with `transfer_gradient` as its backward pass. The adapter's own forward pass
    retokenises instead, which is exact; this map is what its backward pass pretends that it was.
    Nothing else calls it: it is here to be read, and to test the adjoint with.

    Returns:
        Approximate embeddings, one row per token of the secondary; zero where there is no map.
    """
    return _through_maps(embeds, alignment, table, fallback, backward=False)


def count_without_map(alignment: Alignment, *, table: JacobianTable) -> int:
    """Return how many of the secondary's tokens are in words that the table has no map for."""
    parts = _parts_with_maps(alignment, table)
    return sum(part.counts[1] for part in parts if table.lookup(*part.counts) is None)


def _through_maps(
    rows: Tensor,
    alignment: Alignment,
    table: JacobianTable,
    fallback: RandomFallback | None,
    *,
    backward: bool,
) -> Tensor:
    """Split, multiply with the maps or (backward) with their t-transposes, crop and merge."""
    given, wanted = (1, 0) if backward else (0, 1)  # the primary is 0, the secondary 1
    expected = len((alignment.primary_spans, alignment.secondary_spans)[given])
    if len(rows) != expected:
        raise AlignmentError(
            f"Got {len(rows)} rows, but the alignment has {expected} tokens of the "
            f"{('primary', 'secondary')[given]}. Leave out rows of special tokens and padding."
        )
    parts = _parts_with_maps(alignment, table)
    words = split(rows, [part.counts[given] for part in parts])
    width = table.widths[wanted]
    products = [rows.new_zeros(1, width, part.counts[wanted]) for part in parts]
    for counts in sorted({part.counts for part in parts}):
        members = [i for i, part in enumerate(parts) if part.counts == counts]
        jacobian = table.lookup(*counts)
        if jacobian is None and fallback is not None and min(counts):
            jacobian = fallback.jacobian(table, counts)
        if jacobian is None:
            continue
        factor = t_transpose(jacobian.to(rows)) if backward else jacobian.to(rows)
        # All words with the same counts at once, as the rows of one tensor.
        stacked = pad_tubes(torch.cat([words[i] for i in members]), factor.shape[-1])
        cropped = t_product(stacked, factor)[..., : counts[wanted]]
        for i, product in zip(members, torch.split(cropped, 1), strict=True):
            products[i] = product
    return merge(products) if parts else rows.new_zeros(0, width)


def _parts_with_maps(alignment: Alignment, table: JacobianTable) -> tuple[Part, ...]:
    """Cut words that are too long or too rare for a map, if possible into parts that have one."""
    if table.is_shared and alignment.primary_spans == alignment.secondary_spans:
        spans = enumerate(alignment.primary_spans)
        return tuple(Part(span, (i, i + 1), (i, i + 1)) for i, span in spans)
    # Ids that are not what their own text is read as: equal tokenizers cut it in other places.
    return alignment.cut(lambda *counts: table.lookup(*counts) is not None).parts
