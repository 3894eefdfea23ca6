"""Rank correlation, recall, regret, and bootstrap intervals over contexts.

Targets of one context share its texts and are not independent, so an interval draws contexts, never
single targets. Pure functions; no model is known here.
"""

from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

_DRAWS: Final = 2000

#: Fewer clusters than this say nothing about their spread.
_FEWEST: Final = 3


@final
@dataclass(frozen=True)
class Estimate:
    """A mean over contexts with its 95 % interval.

    Attributes:
        value: The mean.
        low: 2.5 % quantile of the bootstrap; NaN with fewer than three contexts.
        high: 97.5 % quantile.
    """

    value: float
    low: float
    high: float


def rank_correlation(order: Int[Tensor, " n"], exact: Float[Tensor, " n"]) -> float:
    """Return Spearman's rho between an order, best first, and exact losses; 0 for n < 2.

    Args:
        order: Positions of all n items, best first.
        exact: Exact loss of each item.

    Returns:
        1 if the order is that of the losses, -1 if it is the reverse; equal losses share a rank.
    """
    if len(order) < 2:
        return 0.0
    place = torch.empty(len(order), dtype=torch.float64)
    place[order] = torch.arange(len(order), dtype=torch.float64)
    ranks = shared_ranks(exact)
    if float(ranks.std()) == 0.0:
        return 0.0
    return float(torch.corrcoef(torch.stack([place, ranks]))[0, 1])


def shared_ranks(values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the rank of each value from 0, equal values sharing their mean rank."""
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    ranks: Tensor = (ends - (counts.double() + 1) / 2)[inverse]
    return ranks


def recall(found: Float[Tensor, " k"], exact: Float[Tensor, " n"], *, top: int = 10) -> float:
    """Return the share of the `top` lowest exact losses among those found.

    Args:
        found: Exact losses of the items found.
        exact: Exact losses of all items.
        top: How many best items count; all, if there are fewer.

    Returns:
        A share between 0 and 1; of items equal to the last of the best, any counts.
    """
    top = min(top, len(exact))
    if not top:
        return 1.0
    bar = exact.kthvalue(top).values
    return min(int((found <= bar).sum()), top) / top


def regret(found: Float[Tensor, " k"], exact: Float[Tensor, " n"]) -> float:
    """Return (best found - best) / (median - best): 0 is the best item, 1 a middling one.

    Args:
        found: Exact losses of the items found; with none, the regret is 1.
        exact: Exact losses of all items.

    Returns:
        The regret; 0 if all losses are equal.
    """
    if not len(found):
        return 1.0
    best = exact.min()
    spread = float(exact.median() - best)
    return float(found.min() - best) / spread if spread > 0 else 0.0


def estimate(values: Float[Tensor, " c"], *, seed: int = 0) -> Estimate:
    """Return the mean of one value per context, with the interval of a bootstrap over contexts.

    Args:
        values: One value per context.
        seed: Seed of the draws; the same for every quantity, so that pairs stay pairs.

    Returns:
        Mean and interval.
    """
    values = values.double()
    if len(values) < _FEWEST:
        return Estimate(float(values.mean()), float("nan"), float("nan"))
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randint(0, len(values), (_DRAWS, len(values)), generator=generator)
    low, high = values[draws].mean(1).quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    return Estimate(float(values.mean()), low, high)
