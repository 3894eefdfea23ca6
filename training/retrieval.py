"""Ranks of the right caption, their summary, and a bootstrap interval of a difference.

This file reads nothing and prints nothing. Read next: `evaluate_image_head.py`.
"""

import torch
from torch import Tensor


def ranks(images: Tensor, captions: Tensor, right: Tensor) -> Tensor:
    """Rank each picture's caption among all.

    Args:
        images: Unit vectors, shape (n, d).
        captions: Unit vectors, shape (m, d).
        right: Row of each picture's caption, shape (n,).

    Returns:
        Ranks from 1, shape (n,); ties count against the picture.
    """
    scores = images @ captions.T
    own = scores.gather(1, right[:, None])
    return (scores >= own).sum(dim=1)


def summarise(found: Tensor) -> dict[str, float]:
    """Give R@1, R@5 and the median rank.

    Args:
        found: Ranks from 1, shape (n,).

    Returns:
        Three numbers by name.
    """
    return {
        "r1": round(float((found == 1).float().mean()), 3),
        "r5": round(float((found <= 5).float().mean()), 3),
        "median_rank": float(found.float().median()),
    }


def paired_interval(
    better: Tensor, worse: Tensor, pictures: Tensor, *, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap the mean of a paired difference, over pictures.

    Args:
        better: One number a question, shape (n,).
        worse: The other arm's, same order.
        pictures: The picture of each question, shape (n,); one that is asked several times is drawn
            as one.
        draws: Number of resamplings.
        seed: Of the resampling.

    Returns:
        The 2.5 % and 97.5 % quantiles.
    """
    _, own = pictures.unique(return_inverse=True)
    num = int(own.max()) + 1
    total = torch.zeros(num).index_add_(0, own, better.float() - worse.float())
    count = torch.zeros(num).index_add_(0, own, torch.ones(len(own)))
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, num, (draws, num), generator=generator)
    means = total[rows].sum(dim=1) / count[rows].sum(dim=1)
    low, high = means.quantile(torch.tensor([0.025, 0.975])).tolist()
    return round(low, 3), round(high, 3)
