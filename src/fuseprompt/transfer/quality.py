"""How good a map is on words that it was not fitted to, and the ridge that makes it so.

Nothing is fitted here. Read next: `fuseprompt.transfer.fit`.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fuseprompt.transfer.gram import (
    Case,
    CaseSolver,
    from_frequencies,
    to_frequencies,
    word_slices,
)


def quality(
    jacobian: Float[Tensor, "dp ds p"],
    case: Case,
    primary: Float[Tensor, "v dp"],
    secondary: Float[Tensor, "u ds"],
) -> tuple[float, float]:
    """Measure a map on words: R2 and mean cosine over the tokens of the secondary.

    Args:
        jacobian: The map.
        case: The words.
        primary: Vocabulary of the primary.
        secondary: Vocabulary of the secondary.

    Returns:
        1 - squared error / variance around the mean of each place, and the mean cosine.
    """
    left = to_frequencies(word_slices(case.primary_ids, primary, case.num_tubes))
    slices = to_frequencies(list(jacobian.unbind(-1)))
    mapped = from_frequencies([a @ m for a, m in zip(left, slices, strict=True)], case.num_tubes)
    error, variance, cosines, count = 0.0, 0.0, 0.0, 0
    for place, ids in enumerate(case.secondary_ids.unbind(1)):
        there = ids >= 0
        true, guess = secondary[ids[there]], mapped[there][..., place]
        error += float((true - guess).square().sum())
        variance += float((true - true.mean(0)).square().sum())
        cosines += float(torch.cosine_similarity(true, guess, dim=1).sum())
        count += len(true)
    return 1 - error / max(variance, 1e-30), cosines / max(count, 1)


def choose_ridge(
    solver: CaseSolver,
    case: Case,
    ridges: tuple[float, ...],
    primary: Float[Tensor, "v dp"],
    secondary: Float[Tensor, "u ds"],
) -> tuple[float, Float[Tensor, "dp ds"]]:
    """Return the ridge that maps held-out words best, and slice 0 of its solution.

    Words are judged by the sums over their tokens: that is frequency 0, the cheapest to solve for.

    Args:
        solver: The problem of the other words of the case.
        case: The held-out words.
        ridges: Strengths to choose from, largest first.
        primary: Vocabulary of the primary.
        secondary: Vocabulary of the secondary.

    Returns:
        The strength, and the map of sums.
    """
    ours = torch.stack(word_slices(case.primary_ids, primary, case.num_tubes)).sum(0)
    theirs = torch.stack(word_slices(case.secondary_ids, secondary, case.num_tubes)).sum(0)
    best: tuple[float, float, Tensor] | None = None
    for ridge in ridges:
        candidate = solver.solve_slice(ridge, 0)
        error = float((theirs - ours @ candidate).square().sum())
        if best is not None and error > best[0]:
            break  # weaker penalties overfit even more
        best = (error, ridge, candidate)
    assert best is not None
    return best[1], best[2]
