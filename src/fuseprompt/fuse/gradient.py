"""Embeddings and gradients through the fitted maps (Eqs. 3 to 5, algorithm 1).

`map_embeddings` is the linear map merge(T(split(E))) that stands for retokenising, and
`transfer_gradient` its exact adjoint, merge(split(G) * T^T). The paper prints neither the transpose
nor its reversal of slices 2..l; without them shapes do not fit, and from three tokens on the
gradient is wrong (docs/paper-notes.md, sections 4 and 5). Read next: `fuseprompt.fuse.adapter`.
"""

from collections.abc import Iterator
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
    """Random maps for words that have none (section 4.2), seeded and of the fitted ones' size.

    Attributes:
        seed: Seed; a pair of token counts always gets the same map.
    """

    seed: int = 0

    def jacobian(self, table: JacobianTable, counts: tuple[int, int]) -> Float[Tensor, "dp ds p"]:
        """Return normal entries with the root mean square of the table's, for token counts (k, l).

        Returns:
            The map, shape (dp, ds, max(k, l)).
        """
        seed = self.seed * 1_000_003 + counts[0] * 1009 + counts[1]
        maps = list(table.jacobians.values())
        size = sum(float(m.square().mean()) for m in maps) / len(maps)
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(*table.widths, max(counts), generator=generator)
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
    where there is none their gradient is zero and counted, or goes through a random map.

    Args:
        grad: Gradient of a loss with respect to the secondary's embeddings of the text, shape
            (t, ds). Not modified.
        alignment: The text in both tokenizations, without special tokens.
        table: The fitted maps.
        fallback: Maps for words that have none; by default their gradient is zero.

    Returns:
        The gradient with respect to the primary's embeddings, shape (s, dp); dtype and device of
        `grad`.

    Raises:
        AlignmentError: If the rows are not the alignment's tokens of the secondary.
    """
    _check_rows("transfer_gradient", grad, len(alignment.secondary_spans), "secondary")
    parts = _parts_with_maps(alignment, table)
    words = split(grad, [part.num_secondary for part in parts])
    carried = [grad.new_zeros(1, table.widths[0], part.num_primary) for part in parts]
    dropped = 0
    for (num_primary, num_secondary), places, jacobian in _by_map(parts, table, fallback):
        if jacobian is None:
            dropped += len(places) * num_secondary
            continue
        stacked = pad_tubes(torch.cat([words[i] for i in places]), jacobian.shape[-1])  # (w, ds, p)
        products = t_product(stacked, t_transpose(jacobian.to(grad)))[
            ..., :num_primary
        ]  # (w, dp, k)
        for i, product in zip(places, torch.split(products, 1), strict=True):
            carried[i] = product
    return PrimaryGradient(merge(carried) if parts else grad.new_zeros(0, table.widths[0]), dropped)


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

    Args:
        embeds: Embeddings of the primary's tokens, shape (s, dp).
        alignment: The text in both tokenizations, without special tokens.
        table: The fitted maps.
        fallback: Maps for words that have none; by default they map to zero.

    Returns:
        Approximate embeddings of the secondary's tokens, shape (t, ds).

    Raises:
        AlignmentError: If the rows are not the alignment's tokens of the primary.
    """
    _check_rows("map_embeddings", embeds, len(alignment.primary_spans), "primary")
    parts = _parts_with_maps(alignment, table)
    words = split(embeds, [part.num_primary for part in parts])
    mapped = [embeds.new_zeros(1, table.widths[1], part.num_secondary) for part in parts]
    for (_, num_secondary), places, jacobian in _by_map(parts, table, fallback):
        if jacobian is None:
            continue
        stacked = pad_tubes(torch.cat([words[i] for i in places]), jacobian.shape[-1])  # (w, dp, p)
        products = t_product(stacked, jacobian.to(embeds))[..., :num_secondary]  # (w, ds, l)
        for i, product in zip(places, torch.split(products, 1), strict=True):
            mapped[i] = product
    return merge(mapped) if parts else embeds.new_zeros(0, table.widths[1])


def count_without_map(alignment: Alignment, *, table: JacobianTable) -> int:
    """Return what `transfer_gradient` reports as `num_dropped` without a fallback."""
    groups = _by_map(_parts_with_maps(alignment, table), table, None)
    return sum(counts[1] * len(places) for counts, places, jacobian in groups if jacobian is None)


def _parts_with_maps(alignment: Alignment, table: JacobianTable) -> list[Part]:
    """Cut a text into parts that have a map, as far as that can be done."""
    if not table.is_shared:
        parts = alignment.cut(table.max_tokens).parts
        return [piece for part in parts for piece in _pieces_with_map(alignment, part, table)]
    if alignment.primary_spans != alignment.secondary_spans:
        raise AlignmentError(
            f"The table is for equal tokenizers, but the text has {len(alignment.primary_spans)} "
            f"and {len(alignment.secondary_spans)} tokens in other places. Fit a table for these "
            "two models."
        )
    spans = enumerate(alignment.primary_spans)
    return [Part(span, (i, i + 1), (i, i + 1)) for i, span in spans]


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


def _by_map(
    parts: list[Part], table: JacobianTable, fallback: RandomFallback | None
) -> Iterator[tuple[tuple[int, int], list[int], Tensor | None]]:
    """Yield token counts (k, l), the places of the parts that have them, and their map."""
    groups: dict[tuple[int, int], list[int]] = {}
    for place, part in enumerate(parts):
        groups.setdefault((part.num_primary, part.num_secondary), []).append(place)
    for counts, places in sorted(groups.items()):
        jacobian = table.lookup(*counts)
        if jacobian is None and fallback is not None and min(counts):
            jacobian = fallback.jacobian(table, counts)
        yield counts, places, jacobian


def _check_rows(name: str, rows: Tensor, expected: int, side: str) -> None:
    """Refuse tensors with other rows than the alignment has tokens."""
    if rows.shape[0] != expected:
        raise AlignmentError(
            f"{name} got {rows.shape[0]} rows, but the alignment has {expected} tokens of the "
            f"{side}. Leave out rows of special tokens and padding."
        )
