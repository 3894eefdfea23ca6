"""The t-product of third-order tensors and its relatives (appendix A; Kilmer & Martin 2011).

A third-order tensor of shape (m, n, l) is an m x n matrix whose entries are *tubes* of length l;
the tubes multiply by circular convolution. House layout: frontal slices last, so a vocabulary
tensor is (words, width, tubes). Every function takes leading batch axes, any device and any
floating or complex dtype, and is differentiable.

Two tensors need equally long tubes. The paper's product for unequal ones is here too, as
`t_product_unequal`, and is *not* associative (a test shows it): pad once with `pad_tubes` instead.
This file inverts nothing. Read next: `fuseprompt.tensor.inverse`.
"""

import torch
from jaxtyping import Inexact
from torch import Tensor

from fuseprompt.errors import ShapeError

_HALVES = (torch.float16, torch.bfloat16)


def to_fourier(a: Inexact[Tensor, "*batch m n l"]) -> Inexact[Tensor, "*batch m n f"]:
    """Take the discrete Fourier transform of every tube.

    In this domain the t-product is one matrix product per frequency.

    Args:
        a: Tensor with its tubes on the last axis.

    Returns:
        Complex tensor; f = l // 2 + 1 frequencies for real input (the others are their conjugates),
        l for complex.
    """
    a = a.float() if a.dtype in _HALVES else a
    if a.numel() == 0:  # the FFT library refuses empty tensors
        num_frequencies = a.shape[-1] if a.is_complex() else a.shape[-1] // 2 + 1
        return a.new_zeros(*a.shape[:-1], num_frequencies, dtype=a.dtype.to_complex())
    result: Tensor = torch.fft.fft(a, dim=-1) if a.is_complex() else torch.fft.rfft(a, dim=-1)
    return result


def from_fourier(
    a: Inexact[Tensor, "*batch m n f"], num_tubes: int, *, dtype: torch.dtype
) -> Inexact[Tensor, "*batch m n l"]:
    """Undo `to_fourier`.

    Args:
        a: Frequencies as `to_fourier` returns them.
        num_tubes: Length l of the tubes; f does not tell it (l = 2 and l = 3 both have 2).
        dtype: Type of the tensor that was transformed.

    Returns:
        Tensor of that type with tubes of length l.
    """
    if a.numel() == 0:
        return a.new_zeros(*a.shape[:-1], num_tubes, dtype=dtype)
    inverse = torch.fft.ifft if dtype.is_complex else torch.fft.irfft
    result: Tensor = inverse(a, n=num_tubes, dim=-1)
    return result.to(dtype)


def slice_product(
    a: Inexact[Tensor, "*#batch m k l"], b: Inexact[Tensor, "*#batch k n l"]
) -> Inexact[Tensor, "... m n l"]:
    """Multiply each frontal slice of `a` with the same slice of `b`, as matrices.

    Args:
        a: Left factor.
        b: Right factor; leading axes broadcast.

    Returns:
        The l matrix products.
    """
    # matmul wants the matrix axes last; the copies are small beside the product.
    return torch.matmul(a.movedim(-1, -3), b.movedim(-1, -3)).movedim(-3, -1)


def t_product(
    a: Inexact[Tensor, "*#batch m k l"], b: Inexact[Tensor, "*#batch k n l"]
) -> Inexact[Tensor, "... m n l"]:
    """Multiply two tensors: slice i of the result is the sum of a_j b_(i-j mod l) over j.

    Appendix A of the paper. Associative, distributive, and for l = 1 the matrix product.

    Args:
        a: Left factor.
        b: Right factor with as many rows as `a` has columns; leading axes broadcast.

    Returns:
        The t-product, dtype and device of the inputs.

    Raises:
        ShapeError: If the tubes or the inner axes differ in length.
        TypeError: If the types differ.

    Cost:
        l transforms per entry and l // 2 + 1 complex matrix products for real input.

    Example:
        >>> import torch
        >>> a = torch.tensor([[[1.0, 2.0, 0.0]]])  # one tube: 1 + 2 x
        >>> b = torch.tensor([[[0.0, 1.0, 3.0]]])  # x + 3 x^2, with x^3 = 1
        >>> t_product(a, b).round().tolist()
        [[[6.0, 1.0, 5.0]]]
    """
    _check_factors("t_product", a, b)
    num_tubes = a.shape[-1]
    if a.shape[-1] != b.shape[-1]:
        raise ShapeError(
            f"t_product needs equal tube lengths, got {a.shape[-1]} and {b.shape[-1]}. "
            f"Pad both first: pad_tubes(x, {max(a.shape[-1], b.shape[-1])})."
        )
    if num_tubes == 1:
        return slice_product(a, b)
    return from_fourier(slice_product(to_fourier(a), to_fourier(b)), num_tubes, dtype=a.dtype)


def t_transpose(a: Inexact[Tensor, "*batch m n l"]) -> Inexact[Tensor, "*batch n m l"]:
    """Transpose every frontal slice (conjugating complex ones) and reverse slices 2..l.

    With the reversal, and only with it, <x * a, y> = <x, y * t_transpose(a)>: it is the adjoint.
    Leaving it out goes unnoticed for l <= 2.

    Args:
        a: Any tensor.

    Returns:
        The t-transpose, a new tensor.
    """
    turned = a.transpose(-3, -2)
    turned = turned.conj() if a.is_complex() else turned
    return torch.cat([turned[..., :1], turned[..., 1:].flip(-1)], dim=-1)


def t_identity(
    size: int,
    num_tubes: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Inexact[Tensor, "n n l"]:
    """Return the tensor that changes nothing: first slice the identity, the others zero.

    Args:
        size: Rows and columns n.
        num_tubes: Length l of the tubes.
        dtype: Type of the entries.
        device: Where to put it.

    Returns:
        The identity of the t-product.
    """
    identity = torch.zeros(size, size, num_tubes, dtype=dtype, device=device)
    identity[..., 0] = torch.eye(size, dtype=dtype, device=device)
    return identity


def pad_tubes(
    a: Inexact[Tensor, "*batch m n l"], num_tubes: int
) -> Inexact[Tensor, "*batch m n p"]:
    """Lengthen the tubes with zeros, as a word of few tokens is padded (section 3.2).

    Args:
        a: Any tensor.
        num_tubes: New length p, at least l.

    Returns:
        A new tensor with tubes of length p.

    Raises:
        ShapeError: If the tubes are longer than p: tokens are never cut off.
    """
    if a.shape[-1] > num_tubes:
        raise ShapeError(
            f"pad_tubes got tubes of length {a.shape[-1]} and num_tubes={num_tubes}, expected "
            "num_tubes to be at least "
            "the length. Leave longer words out instead of cutting them."
        )
    return torch.nn.functional.pad(a, (0, num_tubes - a.shape[-1]))


def block_unfold(a: Inexact[Tensor, "*batch m n l"]) -> Inexact[Tensor, "*batch ml n"]:
    """Stack the frontal slices on top of each other (`unfold` of Kilmer & Martin).

    Args:
        a: Any tensor.

    Returns:
        Matrix of l blocks of m rows.
    """
    return a.movedim(-1, -3).flatten(-3, -2)


def block_fold(
    matrix: Inexact[Tensor, "*batch ml n"], num_tubes: int
) -> Inexact[Tensor, "*batch m n l"]:
    """Undo `block_unfold`.

    Args:
        matrix: Matrix of stacked slices.
        num_tubes: Length l of the tubes.

    Returns:
        The tensor with frontal slices last.

    Raises:
        ShapeError: If the rows are no multiple of l.
    """
    if matrix.shape[-2] % num_tubes:
        raise ShapeError(
            f"block_fold expected a multiple of num_tubes={num_tubes} rows, got shape "
            f"{tuple(matrix.shape)}. "
            "Pass the number of tubes that the matrix was unfolded from."
        )
    shape = (*matrix.shape[:-2], num_tubes, matrix.shape[-2] // num_tubes, matrix.shape[-1])
    return matrix.reshape(shape).movedim(-3, -1)


def bcirc(a: Inexact[Tensor, "*batch m n l"]) -> Inexact[Tensor, "*batch ml nl"]:
    """Return the block-circulant matrix: block (i, j) is slice i - j mod l.

    t_product(a, b) = block_fold(bcirc(a) @ block_unfold(b)). For tests and for reading; it is l
    times larger than it needs to be.

    Args:
        a: Any tensor.

    Returns:
        Matrix of l x l blocks.
    """
    num_tubes = a.shape[-1]
    steps = torch.arange(num_tubes, device=a.device)
    blocks = a[..., (steps[:, None] - steps) % num_tubes]  # (m, n, l, l), block indices last
    return blocks.movedim((-2, -1), (-4, -2)).flatten(-2, -1).flatten(-3, -2)


def t_product_unequal(
    a: Inexact[Tensor, "m k la"], b: Inexact[Tensor, "k n lb"]
) -> Inexact[Tensor, "m n l"]:
    """Multiply tensors of unequal tube lengths as the end of appendix A proposes. Not associative.

    Slice i of the result, i < max(la, lb), is the sum of a_j b_(i-j mod lb) over the slices of `a`:
    a convolution over `b` with circular padding, which for equal lengths is the t-product. The
    paper claims that the usual laws go on to hold. Associativity fails for most unequal lengths,
    (2, 2, 4) among them, because each product wraps around at a length of its own. Nothing here
    calls it.

    Args:
        a: Left factor.
        b: Right factor with as many rows as `a` has columns.

    Returns:
        Product with tubes as long as the longer ones.

    Raises:
        ShapeError: If the inner axes differ in length.
        TypeError: If the types differ.
    """
    _check_factors("t_product_unequal", a, b)
    rows = torch.arange(max(a.shape[-1], b.shape[-1]), device=a.device)
    lags = (rows[:, None] - torch.arange(a.shape[-1], device=a.device)) % b.shape[-1]  # (l, la)
    return torch.einsum("mkj,knij->mni", a, b[..., lags])


def _check_factors(name: str, a: Tensor, b: Tensor) -> None:
    """Refuse tensors that are no third-order tensors or whose inner axes differ.

    Raises:
        ShapeError: If an axis is missing or the inner axes differ.
        TypeError: If the types differ.
    """
    if a.ndim < 3 or b.ndim < 3 or a.shape[-2] != b.shape[-3]:
        raise ShapeError(
            f"{name} needs shapes (..., m, k, l) and (..., k, n, l), got {tuple(a.shape)} and "
            f"{tuple(b.shape)}. "
            "The columns of the first must be the rows of the second; tubes are the last axis."
        )
    if a.dtype != b.dtype:
        raise TypeError(
            f"{name} needs equal types, got {a.dtype} and {b.dtype}. Convert one with .to(...)."
        )
