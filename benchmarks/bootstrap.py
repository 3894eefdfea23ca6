"""The interval of every table here: a bootstrap over problems, pictures or contexts."""

from collections.abc import Sequence

from scipy import stats


def interval(values: Sequence[float], *, draws: int = 5000) -> tuple[float, float]:
    """Return the 2.5 % and 97.5 % bootstrap quantiles of a mean.

    The seed is the same for every quantity, so that pairs stay pairs.
    """
    if len(values) < 2:
        return values[0], values[0]
    found = stats.bootstrap(
        (values,), lambda x, axis: x.mean(axis), n_resamples=draws, method="percentile", rng=0
    ).confidence_interval
    return float(found.low), float(found.high)
