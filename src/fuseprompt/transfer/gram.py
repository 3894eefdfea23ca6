"""Least squares for one case of words, straight from token ids (algorithm 2).

A word tensor holds the same few thousand token vectors over and over. Tube r of its Gram tensor is
the sum of v(x)^T v(y) over all pairs of tokens r places apart, so equal tokens are added up first
(`embedding_bag`) and one matrix product over *distinct* tokens remains: several times less work
than over words, and the word tensor never exists. The result is that of `fuseprompt.tensor.t_lstsq`
on the zero-padded word tensors (a test compares them). Cases with fewer words than dimensions are
solved in the space of words instead. Read next: `fuseprompt.transfer.fit`.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Inexact, Int
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

from fuseprompt.tensor.inverse import solve_shifted

#: Marks places of a word without a token.
NO_TOKEN = -1


@final
@dataclass(frozen=True)
class Case:
    """The words of one case as token ids.

    Attributes:
        primary_ids: Ids of each word, `NO_TOKEN` beyond its end.
        secondary_ids: The same in the secondary.
        weights: How much each word counts.
        num_tubes: Depth p that both are padded to.
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


@final
class CaseSolver:
    """Solves min ||W (A * T - B)||^2 + ridge * s * ||T||^2 for the words of a case, for any ridge.

    A and B are the word tensors of the primary and the secondary, W the square roots of the
    weights, s the mean diagonal of A^T A, as in `t_lstsq`.

    Args:
        case: The words.
        primary: Vocabulary of the primary.
        secondary: Vocabulary of the secondary, of the same type.
    """

    def __init__(
        self, case: Case, primary: Float[Tensor, "v dp"], secondary: Float[Tensor, "u ds"]
    ) -> None:
        weights = case.weights.to(primary)
        self._case = Case(case.primary_ids, case.secondary_ids, weights, case.num_tubes)
        self._primary = primary
        self._secondary = secondary

    @property
    def num_frequencies(self) -> int:
        """Fourier slices that the solution has, p // 2 + 1."""
        return self._case.num_tubes // 2 + 1

    def solve(self, ridge: float) -> list[Inexact[Tensor, "dp ds"]]:
        """Return the Fourier slices 0..p // 2 of the solution.

        Args:
            ridge: Strength of the penalty, more than 0.

        Returns:
            One matrix per frequency, for `from_frequencies`.
        """
        return [self.solve_slice(ridge, frequency) for frequency in range(self.num_frequencies)]

    def solve_slice(self, ridge: float, frequency: int) -> Inexact[Tensor, "dp ds"]:
        """Return one Fourier slice of the solution; slice 0 maps sums over a word's tokens.

        Args:
            ridge: Strength of the penalty, more than 0.
            frequency: Which slice, 0..p // 2.

        Returns:
            The matrix.
        """
        if self._few_words:
            squares, dual = self._dual
            gram, left, right = dual[frequency]
            return left.mH @ _solve(gram, right, ridge * max(squares / left.shape[1], self._tiny))
        trace, primal = self._primal
        gram, cross = primal[frequency]
        return _solve(gram, cross, ridge * max(trace / gram.shape[0], self._tiny))

    @property
    def _few_words(self) -> bool:
        return len(self._case) <= self._primary.shape[1]

    @property
    def _tiny(self) -> float:
        return torch.finfo(self._primary.dtype).tiny

    @cached_property
    def _primal(self) -> tuple[float, list[tuple[Tensor, Tensor]]]:
        """The trace of tube 0 of A^T A, then Fourier slices of A^T A and of A^T B."""
        case, num_tubes = self._case, self._case.num_tubes
        gram = [_lagged_gram(case, self._primary, lag) for lag in range(num_tubes // 2 + 1)]
        gram += [gram[num_tubes - lag].T for lag in range(len(gram), num_tubes)]
        cross = [
            _lagged_product(case, self._primary, case.secondary_ids, self._secondary, lag=lag)
            for lag in range(num_tubes)
        ]
        slices = zip(to_frequencies(gram), to_frequencies(cross), strict=True)
        return float(gram[0].trace()), list(slices)

    @cached_property
    def _dual(self) -> tuple[float, list[tuple[Tensor, Tensor, Tensor]]]:
        """The sum of squares of A, then Fourier slices of A A^T, of A and of B."""
        case, num_tubes = self._case, self._case.num_tubes
        root = case.weights.sqrt()[:, None]
        ours = [root * x for x in word_slices(case.primary_ids, self._primary, num_tubes)]
        theirs = [root * x for x in word_slices(case.secondary_ids, self._secondary, num_tubes)]
        squares = sum(float(x.square().sum()) for x in ours)
        pairs = zip(to_frequencies(ours), to_frequencies(theirs), strict=True)
        return squares, [(a @ a.mH, a, b) for a, b in pairs]


def word_slices(
    ids: Int[Tensor, "w k"], vocabulary: Float[Tensor, "v d"], num_tubes: int
) -> list[Float[Tensor, "w d"]]:
    """Return the frontal slices of the word tensor: slice t holds the t-th token of every word.

    Args:
        ids: Ids of each word, `NO_TOKEN` beyond its end.
        vocabulary: Their vectors.
        num_tubes: Depth p, at least k.

    Returns:
        p matrices; words with fewer tokens have zero rows.
    """
    padded = pad(ids, (0, num_tubes - ids.shape[1]), value=NO_TOKEN)
    return [
        torch.where((column >= 0)[:, None], vocabulary[column.clamp_min(0)], 0)
        for column in padded.unbind(1)
    ]


def to_frequencies(slices: list[Float[Tensor, "m n"]]) -> list[Inexact[Tensor, "m n"]]:
    """Transform frontal slices to Fourier slices 0..p // 2; those that are real stay real.

    Args:
        slices: The p frontal slices.

    Returns:
        Fourier slices, as `torch.fft.rfft` along the tubes gives them.
    """
    num_tubes = len(slices)
    result: list[Tensor] = []
    for frequency in range(num_tubes // 2 + 1):
        angles = [2 * math.pi * ((frequency * t) % num_tubes) / num_tubes for t in range(num_tubes)]
        real = _combine(slices, [math.cos(a) for a in angles])
        if 2 * frequency % num_tubes == 0:
            result.append(real)
        else:
            result.append(torch.complex(real, _combine(slices, [-math.sin(a) for a in angles])))
    return result


def from_frequencies(
    frequencies: list[Inexact[Tensor, "m n"]], num_tubes: int
) -> Float[Tensor, "m n l"]:
    """Undo `to_frequencies`.

    Args:
        frequencies: Fourier slices.
        num_tubes: Number of tubes p.

    Returns:
        The tensor with frontal slices last.
    """
    slices = []
    for t in range(num_tubes):
        total = torch.zeros_like(frequencies[0])
        for frequency, matrix in enumerate(frequencies):
            angle = 2 * math.pi * ((frequency * t) % num_tubes) / num_tubes
            if matrix.is_complex():  # stands for its conjugate too
                total += 2 * (math.cos(angle) * matrix.real - math.sin(angle) * matrix.imag)
            else:
                total += math.cos(angle) * matrix
        slices.append(total / num_tubes)
    return torch.stack(slices, dim=-1)


def _combine(slices: list[Tensor], factors: list[float]) -> Tensor:
    """Add up slices times factors, skipping zeros and sparing products with +-1."""
    total: Tensor | None = None
    for matrix, factor in zip(slices, factors, strict=True):
        if abs(factor) < 1e-12:
            continue
        exact = float(round(factor)) if abs(factor - round(factor)) < 1e-12 else factor
        if total is None:
            total = matrix * exact
        else:
            total.add_(matrix, alpha=exact)
    return torch.zeros_like(slices[0]) if total is None else total


def _solve(
    gram: Inexact[Tensor, "n n"], cross: Inexact[Tensor, "n k"], shift: float
) -> Inexact[Tensor, "n k"]:
    """Solve one ridge system."""
    return solve_shifted(gram[None], cross[None], gram.real.new_tensor(shift))[0]


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
