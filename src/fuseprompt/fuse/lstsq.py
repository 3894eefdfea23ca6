"""Least squares between word tensors: min ||A * T - B||^2, one small system per frequency.

The tensor of w words (figure 1) has shape (w, d, p): one row per word, and slice t holds the
embeddings of every word's t-th token. With A those of model i and B those of model j, algorithm 2
maps A to B by T = V_i^+ * V_j. That is the least-squares solution, and no inverse is needed: per
Fourier slice, T solves (A^T A) T = A^T B. These sums are added up from token ids, so no word tensor
is built: slice r of A^T A is the sum of v(x)^T v(y) over all pairs of tokens x, y of a word that
are r places apart, and since words share a few thousand tokens, equal ones are added up first.
Read next: `fuseprompt.fuse.alignment`.
"""

from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float, Inexact, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

from fuseprompt.errors import ShapeError
from fuseprompt.fuse.tproduct import from_fourier, to_fourier

#: Marks places of a word without a token.
NO_TOKEN: Final = -1


@final
@dataclass(frozen=True, eq=False)
class Case:
    """Words with the same token counts, as ids that `NO_TOKEN` pads to the depth p.

    The weights say how much each word counts. Both vocabularies have the same type.
    """

    primary_ids: Int[Tensor, "w p"]
    secondary_ids: Int[Tensor, "w p"]
    weights: Float[Tensor, " w"]
    primary: Float[Tensor, "v dp"]
    secondary: Float[Tensor, "u ds"]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (dp, ds, p) of a map between the word tensors."""
        return self.primary.shape[1], self.secondary.shape[1], self.primary_ids.shape[1]

    def __len__(self) -> int:
        """Return the number of words."""
        return len(self.primary_ids)

    def __getitem__(self, rows: slice) -> "Case":
        """Return some of the words."""
        ids = (self.primary_ids[rows], self.secondary_ids[rows])
        return Case(*ids, self.weights[rows], self.primary, self.secondary)


def word_slices(
    ids: Int[Tensor, "w p"], vocabulary: Float[Tensor, "v d"]
) -> list[Float[Tensor, "w d"]]:
    """Return the p frontal slices of a word tensor (figure 1), zero where a word has no token."""
    return [
        torch.where((column >= 0)[:, None], vocabulary[column.clamp_min(0)], 0)
        for column in ids.unbind(1)
    ]


@final
class LeastSquares:
    """Solves min ||W (A * T - B)||^2 + ridge * s * ||T||^2 for words that come in portions.

    A and B are the word tensors of the primary and of the secondary, W the square roots of the
    weights, and s the mean diagonal of A^T A, so that a ridge means the same for any width and
    number of words. As the ridge goes to 0, T goes to A^+ * B (algorithm 2). Words are kept until
    they are more than A has columns, from then on as sums only.
    """

    def __init__(self) -> None:
        self._shape = (0, 0, 0)  # of T; there are no words yet
        self._held: list[Case] = []
        self._gram: list[Tensor] = []  # slices 0..p // 2 of A^T A; the others are their transposes
        self._cross: list[Tensor] = []  # slices of A^T B
        # Per frequency M and R of M X = R. T is X, or C^H X where the last entry C is not None.
        self._systems: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self._scale = 0.0

    def update(self, case: Case) -> None:
        """Add words, of the same widths and depth as all before."""
        if any(self._shape) and self._shape != case.shape:
            raise ShapeError(
                f"LeastSquares.update got widths and depth {case.shape}, expected {self._shape} as "
                "before. Use one LeastSquares per case."
            )
        self._shape, self._systems = case.shape, []
        self._held.append(case)
        if self._gram or sum(map(len, self._held)) > self._shape[0]:
            for held in self._held:
                self._add(held)
            self._held = []

    def solve(self, ridge: float) -> Float[Tensor, "dp ds p"]:
        """Return the solution T; without ridge, the one of least norm."""
        depth = self._shape[2]
        return from_fourier([self.solve_slice(ridge, f) for f in range(depth // 2 + 1)], depth)

    def solve_slice(self, ridge: float, frequency: int) -> Inexact[Tensor, "dp ds"]:
        """Return Fourier slice 0..p // 2 of `solve`; slice 0 maps sums over a word's tokens."""
        if ridge < 0:
            raise ValueError(f"A ridge must be at least 0, got {ridge}.")
        if not any(self._shape):
            raise ShapeError("LeastSquares got no words, expected some. Call update first.")
        if not self._systems:
            self._systems = self._by_word() if self._held else self._by_dimension()
        matrix, right, columns = self._systems[frequency]
        if ridge:
            shift = ridge * max(self._scale, torch.finfo(matrix.real.dtype).tiny)
            eye = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
            solved = torch.cholesky_solve(right, torch.linalg.cholesky(matrix + shift * eye))
        else:
            # What is small next to the largest of all frequencies is rounding, not rank.
            largest = max(float(torch.linalg.eigvalsh(m)[-1]) for m, _, _ in self._systems)
            values, vectors = torch.linalg.eigh(matrix)
            kept = values > len(matrix) * torch.finfo(values.dtype).eps * largest
            inverse = torch.where(kept, 1 / torch.where(kept, values, 1), 0)
            solved = vectors @ (inverse[:, None] * (vectors.mH @ right))
        return solved if columns is None else columns.mH @ solved

    def _add(self, case: Case) -> None:
        """Add words to the sums."""
        depth = self._shape[2]
        gram = [_lagged_product(case, lag, gram=True) for lag in range(depth // 2 + 1)]
        cross = [_lagged_product(case, lag, gram=False) for lag in range(depth)]
        if not self._gram:
            self._gram, self._cross = gram, cross
            return
        for total, fresh in zip(self._gram + self._cross, gram + cross, strict=True):
            total += fresh

    def _by_dimension(self) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        """Return the systems (A^T A) T = A^T B, one per frequency."""
        depth = len(self._cross)
        gram = [*self._gram, *(self._gram[depth - r].T for r in range(len(self._gram), depth))]
        self._scale = float(gram[0].trace()) / len(gram[0])
        slices = zip(to_fourier(gram), to_fourier(self._cross), strict=True)
        return [(left, right, None) for left, right in slices]

    def _by_word(self) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        """Return the systems (A A^T) X = B with T = A^T X, smaller where words are few."""
        ours, theirs = [], []
        for case in self._held:
            root = case.weights.to(case.primary).sqrt()[:, None]
            ours.append([root * x for x in word_slices(case.primary_ids, case.primary)])
            theirs.append([root * x for x in word_slices(case.secondary_ids, case.secondary)])
        left, right = ([torch.cat(x) for x in zip(*side, strict=True)] for side in (ours, theirs))
        self._scale = sum(float(x.square().sum()) for x in left) / left[0].shape[1]
        pairs = zip(to_fourier(left), to_fourier(right), strict=True)
        return [(a @ a.mH, b, a) for a, b in pairs]


def _lagged_product(case: Case, lag: int, *, gram: bool) -> Float[Tensor, "dp d"]:
    """Add up weight * v(x)^T v(y), y `lag` places after x: slice `lag` of A^T B, or of A^T A."""
    left_ids, left = case.primary_ids, case.primary
    right_ids, right = (left_ids, left) if gram else (case.secondary_ids, case.secondary)
    depth = left_ids.shape[1]
    mirrored = gram and 0 < 2 * lag == depth  # half of the pairs are the other half turned round
    places = lag if mirrored else depth
    x = left_ids.T[:places].flatten()
    y = right_ids.roll(-lag, 1).T[:places].flatten()
    both = (x != NO_TOKEN) & (y != NO_TOKEN)
    x, y, weights = x[both], y[both], case.weights.to(left).repeat(places)[both]
    # Add up the partners of each distinct token first, on the side that has fewer of them. A bag
    # adds its rows one after the other, so two fits agree in every bit.
    by_left = len(torch.unique(x)) < len(torch.unique(y))
    keys, values, summed = (x, y, right) if by_left else (y, x, left)
    order = torch.argsort(keys, stable=True)
    tokens, counts = torch.unique_consecutive(keys[order], return_counts=True)
    bags = torch.cumsum(counts, 0) - counts
    sums = embedding_bag(values[order], summed, bags, mode="sum", per_sample_weights=weights[order])
    product = left[tokens].T @ sums if by_left else sums.T @ right[tokens]
    return product + product.T if mirrored else product
