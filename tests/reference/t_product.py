"""The t-product and its relatives by loops, from the definitions. Imports nothing of ours."""

import torch
from torch import Tensor


def t_product(a: Tensor, b: Tensor) -> Tensor:
    """Add up a_j b_(i-j mod l), slice by slice."""
    num_tubes = a.shape[2]
    out = torch.zeros(a.shape[0], b.shape[1], num_tubes, dtype=a.dtype)
    for i in range(num_tubes):
        for j in range(num_tubes):
            out[:, :, i] += a[:, :, j] @ b[:, :, (i - j) % num_tubes]
    return out


def t_transpose(a: Tensor) -> Tensor:
    """Transpose each slice; slice i goes to -i mod l."""
    num_tubes = a.shape[2]
    out = torch.zeros(a.shape[1], a.shape[0], num_tubes, dtype=a.dtype)
    for i in range(num_tubes):
        out[:, :, -i % num_tubes] = a[:, :, i].T
    return out


def t_identity(size: int, depth: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the tensor that changes nothing: identity first, then zero slices."""
    out = torch.zeros(size, size, depth, dtype=dtype)
    out[..., 0] = torch.eye(size)
    return out


def bcirc(a: Tensor) -> Tensor:
    """Write slice (i - j mod l) into block (i, j)."""
    m, n, num_tubes = a.shape
    out = torch.zeros(m * num_tubes, n * num_tubes, dtype=a.dtype)
    for i in range(num_tubes):
        for j in range(num_tubes):
            out[i * m : (i + 1) * m, j * n : (j + 1) * n] = a[:, :, (i - j) % num_tubes]
    return out


def unequal_product(a: Tensor, b: Tensor) -> Tensor:
    """Convolve the slices of `a` over `b`, read around its circle, as appendix A ends."""
    length = max(a.shape[2], b.shape[2])
    out = torch.zeros(a.shape[0], b.shape[1], length, dtype=a.dtype)
    for i in range(length):
        for j in range(a.shape[2]):
            out[:, :, i] += a[:, :, j] @ b[:, :, (i - j) % b.shape[2]]
    return out
