"""Least squares between word tensors: min ||A * T - B||^2, one small system per frequency.

Algorithm 2 maps the words of a case by T = V_i^+ * V_j, with the Moore-Penrose inverse of Jin et
al. (2017). That is the least-squares solution, and no inverse is needed: per Fourier slice, T
solves (A^T A) T = A^T B. The sums A^T A and A^T B are added up from token ids, so no word tensor is
built: tube r of the Gram tensor is the sum of v(x)^T v(y) over all pairs of tokens r places apart,
and since words share a few thousand tokens, equal ones are added up first (`embedding_bag`). A case
with fewer words than dimensions is solved in the space of words. Read next:
`fuseprompt.fuse.alignment`.
"""

from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float, Inexact, Int
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

from fuseprompt.errors import ShapeError
from fuseprompt.fuse.tproduct import from_fourier, to_fourier

#: Marks places of a word without a token.
NO_TOKEN: Final = -1


@final
@dataclass(frozen=True)
class Case:
    """Words as token ids.

    Attributes:
        primary_ids: Ids of each word in the primary, `NO_TOKEN` beyond its end, shape (w, k).
        secondary_ids: The same in the secondary, shape (w, l).
        weights: How much each word counts, shape (w,).
        num_tubes: Depth p that both word tensors are padded to, at least k and l.
    """

    primary_ids: Int[Tensor, "w k"]
    secondary_ids: Int[Tensor, "w l"]
    weights: Float[Tensor, " w"]
    num_tubes: int

    def __len__(self) -> int:
        """Return the number of words."""
        return int(self.primary_ids.shape[0])

    def __getitem__(self, rows: slice) -> "Case":
        """Return some of the words."""
        return Case(
            self.primary_ids[rows], self.secondary_ids[rows], self.weights[rows], self.num_tubes
        )


def word_slices(
    ids: Int[Tensor, "w k"], vocabulary: Float[Tensor, "v d"], num_tubes: int
) -> list[Float[Tensor, "w d"]]:
    """Return the frontal slices of a word tensor (figure 1): slice t holds every word's t-th token.

    Returns:
        p matrices (w, d); zero rows for words with fewer tokens (`NO_TOKEN` in `ids`).
    """
    padded = pad(ids, (0, num_tubes - ids.shape[1]), value=NO_TOKEN)
    return [
        torch.where((column >= 0)[:, None], vocabulary[column.clamp_min(0)], 0)
        for column in padded.unbind(1)
    ]


@final
class LeastSquares:
    """Solves min ||W (A * T - B)||^2 + ridge * s * ||T||^2 for words that come in portions.

    A and B are the word tensors of the primary and of the secondary, W the square roots of the
    weights, and s the mean diagonal of A^T A, so that a ridge means the same for any width and
    number of words. As the ridge goes to 0, T goes to A^+ * B (algorithm 2). Nothing is kept that
    grows with the number of words once they are more than A has columns.
    """

    def __init__(self) -> None:
        self._held: list[tuple[Case, Tensor, Tensor]] = []
        self._gram: list[Tensor] = []  # tubes 0..p // 2 of A^T A; the others are their transposes
        self._cross: list[Tensor] = []  # tubes of A^T B
        self._shape: tuple[int, int, int] | None = None
        self._systems: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self._scale = 0.0

    def update(
        self, case: Case, primary: Float[Tensor, "v dp"], secondary: Float[Tensor, "u ds"]
    ) -> None:
        """Add some words.

        Args:
            case: The words.
            primary: Vocabulary of the primary, shape (v, dp).
            secondary: Vocabulary of the secondary, shape (u, ds), of the same type.

        Raises:
            ShapeError: If widths or depth differ from those of earlier words.
        """
        shape = (primary.shape[1], secondary.shape[1], case.num_tubes)
        if self._shape not in (None, shape):
            raise ShapeError(
                f"LeastSquares.update got widths and depth {shape}, expected {self._shape} as "
                "before. Use one LeastSquares per case."
            )
        self._shape, self._systems = shape, []
        weights = case.weights.to(primary)
        case = Case(case.primary_ids, case.secondary_ids, weights, case.num_tubes)
        self._held.append((case, primary, secondary))
        if self._gram or sum(len(words) for words, _, _ in self._held) > primary.shape[1]:
            for held in self._held:
                self._add(*held)
            self._held = []

    def solve(self, ridge: float) -> Float[Tensor, "dp ds p"]:
        """Return the solution T.

        Args:
            ridge: Strength of the penalty. With 0 the solution of least norm is returned, with
                eigenvalues of A^T A below dp * epsilon of the largest taken as zero.

        Returns:
            The map, shape (dp, ds, p).

        Raises:
            ShapeError: If no words were added.
            ValueError: If the ridge is negative.
        """
        slices = [self.solve_slice(ridge, 0)]
        slices += [self.solve_slice(ridge, f) for f in range(1, len(self._systems))]
        assert self._shape is not None
        return from_fourier(slices, self._shape[2])

    def solve_slice(self, ridge: float, frequency: int) -> Inexact[Tensor, "dp ds"]:
        """Return Fourier slice 0..p // 2 of `solve`, (dp, ds); slice 0 maps sums over tokens."""
        if ridge < 0:
            raise ValueError(f"A ridge must be at least 0, got {ridge}.")
        if self._shape is None:
            raise ShapeError("LeastSquares got no words, expected some. Call update first.")
        if not self._systems:
            self._systems = self._by_word() if self._held else self._by_dimension()
        gram, right, words = self._systems[frequency]
        if ridge:
            shift = ridge * max(self._scale, torch.finfo(gram.real.dtype).tiny)
            eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
            solved = torch.cholesky_solve(right, torch.linalg.cholesky(gram + shift * eye))
        else:
            solved = self._least_norm(gram, right)
        return solved if words is None else words.mH @ solved

    def _add(self, case: Case, primary: Tensor, secondary: Tensor) -> None:
        """Add words to the sums."""
        depth = case.num_tubes
        gram = [_lagged_gram(case, primary, lag) for lag in range(depth // 2 + 1)]
        cross = [
            _lagged_product(case, primary, case.secondary_ids, secondary, lag=lag)
            for lag in range(depth)
        ]
        if not self._gram:
            self._gram, self._cross = gram, cross
            return
        for sums, fresh in ((self._gram, gram), (self._cross, cross)):
            for total, matrix in zip(sums, fresh, strict=True):
                total += matrix

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
        for case, primary, secondary in self._held:
            root, depth = case.weights.sqrt()[:, None], case.num_tubes
            ours.append([root * x for x in word_slices(case.primary_ids, primary, depth)])
            theirs.append([root * x for x in word_slices(case.secondary_ids, secondary, depth)])
        left, right = ([torch.cat(x) for x in zip(*side, strict=True)] for side in (ours, theirs))
        self._scale = sum(float(x.square().sum()) for x in left) / left[0].shape[1]
        pairs = zip(to_fourier(left), to_fourier(right), strict=True)
        return [(a @ a.mH, b, a) for a, b in pairs]

    def _least_norm(self, gram: Tensor, right: Tensor) -> Tensor:
        """Solve one system without ridge; what is zero in all systems together counts as zero."""
        largest = max(float(torch.linalg.eigvalsh(system[0])[-1]) for system in self._systems)
        values, vectors = torch.linalg.eigh(gram)
        kept = values > len(gram) * torch.finfo(values.dtype).eps * largest
        inverse = torch.where(kept, 1 / torch.where(kept, values, 1), 0)
        solved: Tensor = vectors @ (inverse[:, None] * (vectors.mH @ right))
        return solved


def _lagged_gram(case: Case, vocabulary: Float[Tensor, "v d"], lag: int) -> Float[Tensor, "d d"]:
    """Return tube `lag` of A^T A."""
    if lag and 2 * lag == case.num_tubes:  # half of the pairs are the other half turned round
        half = _lagged_product(case, vocabulary, case.primary_ids, vocabulary, lag=lag, wrap=False)
        return half + half.T
    return _lagged_product(case, vocabulary, case.primary_ids, vocabulary, lag=lag)


def _lagged_product(
    case: Case,
    left: Float[Tensor, "v dp"],
    right_ids: Int[Tensor, "w l"],
    right: Float[Tensor, "u d"],
    *,
    lag: int,
    wrap: bool = True,
) -> Float[Tensor, "dp d"]:
    """Sum weight * v(x)^T v(y) over all places x, with y `lag` places further around."""
    left_ids, depth = case.primary_ids, case.num_tubes
    around = [(s, s + lag) for s in range(left_ids.shape[1])]
    if wrap:
        around = [(s, t % depth) for s, t in around]
    places = [(s, t) for s, t in around if t < right_ids.shape[1]]
    if not places:
        return left.new_zeros(left.shape[1], right.shape[1])
    x = torch.cat([left_ids[:, s] for s, _ in places])
    y = torch.cat([right_ids[:, t] for _, t in places])
    weights = case.weights.repeat(len(places))
    both = (x >= 0) & (y >= 0)
    x, y, weights = x[both], y[both], weights[both]
    if not len(x):
        return left.new_zeros(left.shape[1], right.shape[1])
    if len(torch.unique(x)) < len(torch.unique(y)):
        tokens, sums = _sum_by_token(x, y, right, weights)
        return left[tokens].T @ sums
    tokens, sums = _sum_by_token(y, x, left, weights)
    return sums.T @ right[tokens]


def _sum_by_token(
    keys: Int[Tensor, " n"],
    values: Int[Tensor, " n"],
    vocabulary: Float[Tensor, "v d"],
    weights: Float[Tensor, " n"],
) -> tuple[Int[Tensor, " t"], Float[Tensor, "t d"]]:
    """Add up the weighted vectors of `values` by key; return the distinct keys and their sums."""
    order = torch.argsort(keys, stable=True)
    tokens, counts = torch.unique_consecutive(keys[order], return_counts=True)
    offsets = torch.cumsum(counts, 0) - counts
    # A bag adds its rows one after the other, so two fits agree in every bit.
    sums = embedding_bag(
        values[order], vocabulary, offsets, mode="sum", per_sample_weights=weights[order]
    )
    return tokens, sums
