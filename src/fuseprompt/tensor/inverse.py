"""The pseudo-inverse and least squares of the t-product (section 3.2 and algorithm 2 of the paper).

The paper maps word tensors by V_i^+ * V_j with the Moore-Penrose inverse of Jin et al. (2017). That
is the solution of the least squares problem min ||V_i * T - V_j||, and `t_lstsq` solves it
directly: the Gram tensors V_i^T * V_i and V_i^T * V_j are sums over words, so they are added up
chunk by chunk in the Fourier domain, where one small system per frequency remains. `t_pinv` exists
for the laws and for small tensors. This file knows no words or tokenizers. Read next:
`fuseprompt.text.words`, then `fuseprompt.transfer.fit`.
"""

from collections.abc import Iterable
from typing import final

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from fuseprompt.errors import ShapeError
from fuseprompt.tensor.product import from_fourier, to_fourier


def t_pinv(
    a: Inexact[Tensor, "*batch m n l"], *, rtol: float | None = None
) -> Inexact[Tensor, "*batch n m l"]:
    """Return the Moore-Penrose inverse under the t-product.

    It is the tensor whose block-circulant matrix is the pseudo-inverse of the block-circulant
    matrix of `a`, and the only one that fulfils the four Penrose conditions. Singular values of the
    Fourier slices count as zero when they are at most rtol times the largest one *of all slices*,
    as they would in the block-circulant matrix.

    Args:
        a: Any tensor, of any rank; zero slices are welcome.
        rtol: Relative tolerance; by default max(m, n) * l times the machine epsilon.

    Returns:
        The inverse. Differentiable where the rank is locally constant.
    """
    if rtol is None:
        rtol = max(a.shape[-3:-1]) * a.shape[-1] * torch.finfo(a.dtype).eps
    slices = to_fourier(a).movedim(-1, -3)  # (*batch, f, m, n)
    largest = torch.linalg.svdvals(slices.detach()).amax(dim=(-2, -1))  # over slices, (*batch)
    atol = (rtol * largest).unsqueeze(-1).expand(slices.shape[:-2])
    inverse = torch.linalg.pinv(slices, atol=atol, rtol=torch.zeros_like(atol))
    return from_fourier(inverse.movedim(-3, -1), a.shape[-1], dtype=a.dtype)


def t_lstsq(
    chunks: Iterable[tuple[Float[Tensor, "*batch _ n l"], Float[Tensor, "*batch _ k l"]]],
    *,
    ridge: float = 0.0,
) -> Float[Tensor, "*batch n k l"]:
    """Minimise ||A * T - B||^2 + ridge * s * ||T||^2 over T, the rows of A and B coming in chunks.

    One chunk is held at a time, and nothing is kept that grows with the number of rows. The scale s
    is the mean of the diagonal of A^T A over rows and tubes, so a ridge means the same for any
    width and number of words.

    Args:
        chunks: Pairs of row blocks of A and B with equal tubes; the sizes of blocks do not matter.
        ridge: Strength of the penalty. With 0 the solution of least norm is returned, as A^+ * B
            would be, with eigenvalues of the Gram matrix below n * epsilon of the largest taken as
            zero.

    Returns:
        The solution T. Differentiable; with ridge 0 only where the Gram matrices have distinct
        eigenvalues.

    Raises:
        ShapeError: If there is no chunk, or shapes differ.

    Note:
        Gram matrices square the condition number: in float32 and without ridge about three digits
        remain.

    Example:
        >>> import torch
        >>> a = torch.eye(2).unsqueeze(-1)
        >>> t_lstsq([(a[:1], 3 * a[:1]), (a[1:], 5 * a[1:])]).squeeze(-1).round().tolist()
        [[3.0, 0.0], [0.0, 5.0]]
    """
    sums = GramSum()
    for a, b in chunks:
        sums.update(a, b)
    return sums.solve(ridge)


@final
class GramSum:
    """The running sums A^T * A and A^T * B of a least squares problem, in the Fourier domain.

    Empty at first; the first `update` fixes widths, tubes, type and device.
    """

    def __init__(self) -> None:
        self._gram: Tensor | None = None
        self._cross: Tensor | None = None
        self._num_tubes = 0

    def update(self, a: Float[Tensor, "*batch w n l"], b: Float[Tensor, "*batch w k l"]) -> None:
        """Add some rows.

        Args:
            a: Rows of the left factor.
            b: The same rows of the right-hand side.

        Raises:
            ShapeError: If rows or tubes differ between the two or from earlier updates.
        """
        if a.ndim < 3 or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-1]:
            raise ShapeError(
                "GramSum.update needs shapes (..., w, n, l) and (..., w, k, l), got "
                f"{tuple(a.shape)} and "
                f"{tuple(b.shape)}. Give both the same rows, and the same tubes with pad_tubes."
            )
        left = to_fourier(a).movedim(-1, -3)  # (*batch, f, w, n)
        right = to_fourier(b).movedim(-1, -3)
        gram, cross = left.mH @ left, left.mH @ right
        if self._gram is None or self._cross is None:
            self._gram, self._cross, self._num_tubes = gram, cross, a.shape[-1]
            return
        if (gram.shape, cross.shape, a.shape[-1]) != (
            self._gram.shape, self._cross.shape, self._num_tubes
        ):  # fmt: skip
            raise ShapeError(
                f"GramSum.update got widths and tubes {tuple(a.shape[-2:])} and "
                f"{tuple(b.shape[-2:])}, which differ "
                "from those of earlier updates. Use one GramSum per case."
            )
        self._gram = self._gram + gram  # not in place: autograd may need the old sum
        self._cross = self._cross + cross

    def solve(self, ridge: float = 0.0) -> Float[Tensor, "*batch n k l"]:
        """Return the minimiser, as `t_lstsq` describes it.

        Args:
            ridge: Strength of the penalty, relative to the mean of the diagonal.

        Returns:
            The solution.

        Raises:
            ShapeError: If nothing was added yet.
        """
        if self._gram is None or self._cross is None:
            raise ShapeError(
                "Least squares got no rows, expected at least one chunk. Call update first."
            )
        shift = ridge * mean_diagonal(self._gram, num_tubes=self._num_tubes)
        solved = solve_shifted(self._gram, self._cross, shift)
        return from_fourier(solved.movedim(-3, -1), self._num_tubes, dtype=solved.real.dtype)


def solve_shifted(
    gram: Inexact[Tensor, "*batch f n n"],
    cross: Inexact[Tensor, "*batch f n k"],
    shift: Float[Tensor, "*batch"],
) -> Inexact[Tensor, "*batch f n k"]:
    """Solve (G + shift * I) T = C for Hermitian matrices G that are positive semi-definite.

    Args:
        gram: Matrices G, one per frequency.
        cross: Right-hand sides C.
        shift: One number per problem, at least 0. If all are 0, the solutions of least norm are
            returned, with eigenvalues below n * epsilon of the problem's largest taken as zero.

    Returns:
        The solutions.

    Raises:
        ValueError: If a shift is negative.
    """
    if bool((shift < 0).any()):
        raise ValueError(f"A ridge must be at least 0, got {float(shift.min())}.")
    if not bool(shift.any()):
        values, vectors = torch.linalg.eigh(gram)
        eps = gram.shape[-1] * torch.finfo(values.dtype).eps
        kept = values > eps * values.amax(dim=(-2, -1), keepdim=True)
        inverse = torch.where(kept, 1 / torch.where(kept, values, 1), 0).unsqueeze(-1)
        least: Tensor = vectors @ (inverse * (vectors.mH @ cross))
        return least
    eye = torch.eye(gram.shape[-1], device=gram.device, dtype=gram.dtype)
    factor: Tensor = torch.linalg.cholesky(gram + shift[..., None, None, None] * eye)
    return torch.cholesky_solve(cross, factor)


def mean_diagonal(
    gram: Inexact[Tensor, "*batch f n n"], *, num_tubes: int
) -> Float[Tensor, "*batch"]:
    """Return the mean diagonal of tube 0 of a Gram tensor: the scale that a ridge is relative to.

    Args:
        gram: Fourier slices, frequencies first.
        num_tubes: Length l of the tubes.

    Returns:
        One number per problem.
    """
    # Frequencies but the first (and for even l the last) also stand for their conjugate; tube 0 is
    # the mean over all l of them.
    counts = torch.full((gram.shape[-3],), 2.0, device=gram.device, dtype=gram.real.dtype)
    counts[0] = 1.0
    if num_tubes % 2 == 0:
        counts[-1] = 1.0
    diagonal = gram.diagonal(dim1=-2, dim2=-1).real.mean(dim=-1)
    return (diagonal * counts).sum(dim=-1) / num_tubes
