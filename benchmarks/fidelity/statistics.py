"""Rank correlation, recall and regret of an order."""

from jaxtyping import Float, Int
from scipy import stats
from torch import Tensor


def rank_correlation(order: Int[Tensor, " n"], exact: Float[Tensor, " n"]) -> float:
    """Return Spearman's rho between an order, best first, and exact losses; 0 without spread."""
    if len(order) < 2 or float(exact.max()) == float(exact.min()):
        return 0.0
    return float(stats.spearmanr(order.argsort().numpy(), exact.numpy()).statistic)


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

    Nothing found is a regret of 1; equal losses have none.
    """
    if not len(found):
        return 1.0
    best = exact.min()
    spread = float(exact.median() - best)
    return float(found.min() - best) / spread if spread > 0 else 0.0
