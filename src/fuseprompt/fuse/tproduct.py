"""The t-product of third-order tensors (section 3 and appendix A; Kilmer & Martin 2011).

A tensor of shape (m, n, l) is an m x n matrix whose entries are *tubes*, vectors of length l, the
*depth*; tubes multiply by circular convolution. All entries at place t of their tubes are a matrix,
the *frontal slice* t. A Fourier transform along the tubes turns the t-product into one matrix
product per frequency. That transform, `to_fourier`, is the only one of the package: products and
least squares go through it. Read next: `fuseprompt.fuse.lstsq`.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from fuseprompt.errors import ShapeError


def t_product(
    a: Float[Tensor, "*#batch m k l"], b: Float[Tensor, "*#batch k n l"]
) -> Float[Tensor, "... m n l"]:
    """Multiply two tensors: slice i of the result is the sum of a_j b_(i-j mod l) over j.

    Appendix A of the paper. Associative, distributive, and for l = 1 the matrix product. Tensors
    of unequal depth have no associative product, whatever the appendix claims: pad them first.

    Returns:
        The t-product, differentiable, dtype and device of the inputs; leading axes broadcast.

    Raises:
        ShapeError: If an axis is missing, or the depths or the inner axes differ.
        TypeError: If the types differ.

    Example:
        >>> import torch
        >>> a = torch.tensor([[[1.0, 2.0, 0.0]]])  # one tube: 1 + 2 x
        >>> b = torch.tensor([[[0.0, 1.0, 3.0]]])  # x + 3 x^2, with x^3 = 1
        >>> t_product(a, b).round().tolist()
        [[[6.0, 1.0, 5.0]]]
    """
    if a.ndim < 3 or b.ndim < 3 or a.shape[-2] != b.shape[-3]:
        raise ShapeError(
            f"t_product needs shapes (..., m, k, l) and (..., k, n, l), got {tuple(a.shape)} and "
            f"{tuple(b.shape)}. The columns of the first must be the rows of the second; tubes "
            "are the last axis."
        )
    if a.shape[-1] != b.shape[-1]:
        raise ShapeError(
            f"t_product needs equal tube lengths, got {a.shape[-1]} and {b.shape[-1]}. "
            f"Pad both first: pad_tubes(x, {max(a.shape[-1], b.shape[-1])})."
        )
    if a.dtype != b.dtype:
        raise TypeError(
            f"t_product needs equal types, got {a.dtype} and {b.dtype}. Convert one with .to(...)."
        )
    halves = (torch.float16, torch.bfloat16)
    left, right = (x.float() if x.dtype in halves else x for x in (a, b))
    pairs = zip(to_fourier(left.unbind(-1)), to_fourier(right.unbind(-1)), strict=True)
    return from_fourier([x @ y for x, y in pairs], a.shape[-1]).to(a.dtype)


def t_transpose(a: Float[Tensor, "*batch m n l"]) -> Float[Tensor, "*batch n m l"]:
    """Transpose every slice and reverse slices 2..l: the adjoint, <x * a, y> = <x, y * a^T>."""
    # Without the reversal this does not hold, which goes unnoticed for l <= 2.
    turned = a.transpose(-3, -2)
    return torch.cat([turned[..., :1], turned[..., 1:].flip(-1)], dim=-1)


def pad_tubes(a: Float[Tensor, "*batch m n l"], depth: int) -> Float[Tensor, "*batch m n p"]:
    """Lengthen the tubes with zeros, as section 3.2 pads a word of few tokens; never cut them."""
    if a.shape[-1] > depth:
        raise ShapeError(
            f"pad_tubes got tubes of length {a.shape[-1]} and depth={depth}, expected the depth to "
            "be at least the length. Leave longer words out instead of cutting them."
        )
    return torch.nn.functional.pad(a, (0, depth - a.shape[-1]))


def to_fourier(slices: Sequence[Float[Tensor, "*batch m n"]]) -> list[Inexact[Tensor, "..."]]:
    """Transform frontal slices to Fourier slices; those that are real stay real.

    Tubes are as short as words (four places at most, usually), so the sums are written out: they
    skip the zeros and ones of short transforms, and need no copy with the tubes last.

    Returns:
        Fourier slices 0..l // 2, as `torch.fft.rfft` along the tubes gives them; the others are
        their conjugates.
    """
    depth = len(slices)
    result: list[Tensor] = []
    for frequency in range(depth // 2 + 1):
        angles = [_angle(frequency, place, depth) for place in range(depth)]
        real = _combine(slices, [math.cos(a) for a in angles])
        if 2 * frequency % depth == 0:
            result.append(real)
        else:
            result.append(torch.complex(real, _combine(slices, [-math.sin(a) for a in angles])))
    return result


def from_fourier(
    frequencies: Sequence[Inexact[Tensor, "*batch m n"]], depth: int
) -> Float[Tensor, "*batch m n l"]:
    """Undo `to_fourier`, and stack the slices; the depth is given, since 2 and 3 look alike."""
    slices = []
    for place in range(depth):
        total = torch.zeros_like(frequencies[0])
        for frequency, matrix in enumerate(frequencies):
            angle = _angle(frequency, place, depth)
            if matrix.is_complex():  # stands for its conjugate too
                total += 2 * (math.cos(angle) * matrix.real - math.sin(angle) * matrix.imag)
            else:
                total += math.cos(angle) * matrix
        slices.append(total / depth)
    return torch.stack(slices, dim=-1)


def _angle(frequency: int, place: int, depth: int) -> float:
    """Return the angle of one term of a Fourier sum."""
    return 2 * math.pi * ((frequency * place) % depth) / depth


def _combine(slices: Sequence[Tensor], factors: list[float]) -> Tensor:
    """Add up slices times factors; those that are whole but for rounding are taken as whole."""
    total: Tensor | None = None
    for matrix, factor in zip(slices, factors, strict=True):
        whole = float(round(factor))
        exact = whole if abs(factor - whole) < 1e-12 else factor
        if exact:
            total = matrix * exact if total is None else total.add_(matrix, alpha=exact)
    return torch.zeros_like(slices[0]) if total is None else total
