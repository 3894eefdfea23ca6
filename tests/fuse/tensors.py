"""Hypothesis strategies for tensors: shapes, seeds and rank are drawn, entries from the seed."""

import torch
from hypothesis import strategies as st
from torch import Tensor

DTYPES = st.sampled_from([torch.float32, torch.float64])
SIZES = st.integers(1, 5)
TUBES = st.integers(1, 6)


def random_tensor(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return normal entries from their own generator."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@st.composite
def defective_tensors(draw: st.DrawFn) -> Tensor:
    """Draw a tensor that may have low rank, equal rows, zero slices, or be zero."""
    m, n, num_tubes = draw(SIZES), draw(SIZES), draw(TUBES)
    seed = draw(st.integers(0, 999))
    rank = draw(st.integers(0, min(m, n)))
    left = random_tensor(m, rank, num_tubes, seed=seed)
    right = random_tensor(rank, n, num_tubes, seed=seed + 1)
    a = torch.zeros(m, n, num_tubes, dtype=torch.float64)
    for i in range(num_tubes):
        for j in range(num_tubes):
            a[..., (i + j) % num_tubes] += left[..., i] @ right[..., j]
    for zero in draw(st.sets(st.integers(0, num_tubes - 1))) if draw(st.booleans()) else ():
        a[..., zero] = 0
    if m > 1 and draw(st.booleans()):
        a[1] = a[0]
    return a
