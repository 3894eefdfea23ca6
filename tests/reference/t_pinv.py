"""The Moore-Penrose inverse under the t-product, by its definition. Imports nothing of ours."""

import torch
from torch import Tensor


def t_pinv(a: Tensor, *, rtol: float | None = None) -> Tensor:
    """Invert every Fourier slice (Jin et al. 2017), with one tolerance for all slices.

    It is the tensor whose block-circulant matrix is the pseudo-inverse of that of `a`. Singular
    values count as zero when they are at most rtol times the largest one *of all slices*.
    """
    if rtol is None:
        rtol = max(a.shape[:2]) * a.shape[2] * torch.finfo(a.dtype).eps
    slices = torch.fft.fft(a, dim=2).permute(2, 0, 1)  # (l, m, n)
    atol = rtol * torch.linalg.svdvals(slices.detach()).max()
    inverse = torch.linalg.pinv(slices, atol=atol, rtol=0.0)
    return torch.fft.ifft(inverse.permute(1, 2, 0), dim=2).real.to(a.dtype)
