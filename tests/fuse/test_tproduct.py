"""The laws of the t-product, and the controls that must fail."""

from inspect import unwrap

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from fuseprompt.errors import ShapeError
from fuseprompt.fuse.tproduct import (
    from_fourier,
    pad_tubes,
    t_product,
    t_transpose,
    to_fourier,
)
from tests.fuse.tensors import DTYPES, SIZES, TUBES, random_tensor
from tests.reference import t_product as reference
from tests.reference.t_product import bcirc, t_identity, unequal_product

SEEDS = st.integers(0, 999)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    """Compare with a tolerance for sums of a few dozen normal products."""
    single = a.dtype == torch.float32
    assert_close(a, b, rtol=1e-4 if single else 1e-9, atol=1e-4 if single else 1e-9)


def test_close_refuses_a_wrong_result():
    with pytest.raises(AssertionError, match="not close"):
        close(torch.ones(2), torch.ones(2) + 1e-3)


def test_hand_derived_product():
    """Rows (1, 2) times columns, tubes of three: derived with x^3 = 1 by hand.

    (1 + 2x)(3 + x^2) + (x)(1 + x + x^2) = 3 + x^2 + 6x + 2x^3 + x + x^2 + x^3 = 6 + 7x + 2x^2
    """
    a = torch.tensor([[[1.0, 2.0, 0.0], [0.0, 1.0, 0.0]]])
    b = torch.tensor([[[3.0, 0.0, 1.0]], [[1.0, 1.0, 1.0]]])
    assert_close(t_product(a, b), torch.tensor([[[6.0, 7.0, 2.0]]]))


@given(m=SIZES, k=SIZES, n=SIZES, tubes=TUBES, seed=SEEDS, dtype=DTYPES)
def test_product_equals_loops_and_block_circulant_matrix(m, k, n, tubes, seed, dtype):
    a = random_tensor(m, k, tubes, seed=seed, dtype=dtype)
    b = random_tensor(k, n, tubes, seed=seed + 1, dtype=dtype)
    close(t_product(a, b), reference.t_product(a, b))
    close(bcirc(t_product(a, b)), bcirc(a) @ bcirc(b))


@given(m=SIZES, k=SIZES, n=SIZES, p=SIZES, tubes=TUBES, seed=SEEDS, dtype=DTYPES)
def test_associative(m, k, n, p, tubes, seed, dtype):
    a = random_tensor(m, k, tubes, seed=seed, dtype=dtype)
    b = random_tensor(k, n, tubes, seed=seed + 1, dtype=dtype)
    c = random_tensor(n, p, tubes, seed=seed + 2, dtype=dtype)
    close(t_product(t_product(a, b), c), t_product(a, t_product(b, c)))


@given(m=SIZES, k=SIZES, n=SIZES, tubes=TUBES, seed=SEEDS, dtype=DTYPES)
def test_distributive(m, k, n, tubes, seed, dtype):
    a = random_tensor(m, k, tubes, seed=seed, dtype=dtype)
    b, c = (random_tensor(k, n, tubes, seed=seed + i, dtype=dtype) for i in (1, 2))
    close(t_product(a, b + c), t_product(a, b) + t_product(a, c))
    d = random_tensor(m, k, tubes, seed=seed + 3, dtype=dtype)
    close(t_product(a + d, b), t_product(a, b) + t_product(d, b))


@given(m=SIZES, n=SIZES, tubes=TUBES, seed=SEEDS, dtype=DTYPES)
def test_identity(m, n, tubes, seed, dtype):
    a = random_tensor(m, n, tubes, seed=seed, dtype=dtype)
    close(t_product(t_identity(m, tubes, dtype=dtype), a), a)
    close(t_product(a, t_identity(n, tubes, dtype=dtype)), a)


@given(m=SIZES, k=SIZES, n=SIZES, tubes=TUBES, seed=SEEDS, dtype=DTYPES)
def test_transpose_of_a_product(m, k, n, tubes, seed, dtype):
    a = random_tensor(m, k, tubes, seed=seed, dtype=dtype)
    b = random_tensor(k, n, tubes, seed=seed + 1, dtype=dtype)
    close(t_transpose(t_product(a, b)), t_product(t_transpose(b), t_transpose(a)))
    close(t_transpose(t_transpose(a)), a)
    close(bcirc(t_transpose(a)), bcirc(a).T)
    close(t_transpose(a), reference.t_transpose(a))


@given(w=SIZES, m=SIZES, n=SIZES, tubes=TUBES, seed=SEEDS)
def test_transpose_is_the_adjoint(w, m, n, tubes, seed):
    a = random_tensor(m, n, tubes, seed=seed)
    x = random_tensor(w, m, tubes, seed=seed + 1)
    y = random_tensor(w, n, tubes, seed=seed + 2)
    close((t_product(x, a) * y).sum(), (x * t_product(y, t_transpose(a))).sum())


@pytest.mark.parametrize("tubes", [3, 4, 5])
def test_transpose_without_slice_reversal_is_no_adjoint(tubes):
    a, x, y = (random_tensor(3, 3, tubes, seed=i) for i in range(3))
    wrong = t_product(y, a.transpose(0, 1))
    assert abs(float((t_product(x, a) * y).sum() - (x * wrong).sum())) > 0.1


@given(m=SIZES, k=SIZES, n=SIZES, seed=SEEDS, dtype=DTYPES)
def test_one_tube_is_matrix_algebra(m, k, n, seed, dtype):
    a = random_tensor(m, k, 1, seed=seed, dtype=dtype)
    b = random_tensor(k, n, 1, seed=seed + 1, dtype=dtype)
    close(t_product(a, b)[..., 0], a[..., 0] @ b[..., 0])
    close(t_transpose(a)[..., 0], a[..., 0].T)


def test_batched_over_leading_axes_with_broadcasting():
    a = random_tensor(2, 3, 4, 2, 3, seed=0)
    b = random_tensor(3, 2, 5, 3, seed=1)
    product = t_product(a, b)
    assert product.shape == (2, 3, 4, 5, 3)
    close(product[1, 2], t_product(a[1, 2], b[2]))
    close(t_transpose(a)[1, 2], t_transpose(a[1, 2]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_goes_through_single(dtype):
    a = random_tensor(3, 2, 3, seed=0, dtype=torch.float32).to(dtype)
    b = random_tensor(2, 2, 3, seed=1, dtype=torch.float32).to(dtype)
    product = t_product(a, b)
    assert product.dtype == dtype
    assert_close(product.float(), t_product(a.float(), b.float()), rtol=2e-2, atol=2e-2)


def test_gradcheck():
    a = random_tensor(2, 2, 3, seed=0).requires_grad_()
    b = random_tensor(2, 2, 3, seed=1).requires_grad_()
    torch.autograd.gradcheck(t_product, (a, b))
    torch.autograd.gradcheck(t_transpose, (a,))
    torch.autograd.gradcheck(lambda x: pad_tubes(x, 5), (a,))


def test_inputs_are_not_changed():
    a, b = random_tensor(2, 2, 3, seed=0), random_tensor(2, 2, 3, seed=1)
    before = (a.clone(), b.clone())
    t_product(a, b)
    t_transpose(a).add_(1)
    pad_tubes(a, 3).add_(1)
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])


def test_padding_to_one_depth_keeps_associativity():
    a, b, c = (pad_tubes(random_tensor(2, 2, t, seed=t), 4) for t in (2, 3, 4))
    close(t_product(t_product(a, b), c), t_product(a, t_product(b, c)))


@pytest.mark.parametrize("depths", [(2, 2, 4), (4, 3, 2), (5, 6, 5), (3, 4, 3), (2, 3, 2)])
def test_unequal_product_is_not_associative(depths):
    a, b, c = (random_tensor(3, 3, t, seed=i) for i, t in enumerate(depths))
    left = unequal_product(unequal_product(a, b), c)
    right = unequal_product(a, unequal_product(b, c))
    assert float((left - right).norm() / right.norm()) > 0.05


@pytest.mark.parametrize("depths", [(2, 4, 4), (2, 4, 2), (3, 3, 3), (1, 2, 4)])
def test_unequal_product_is_associative_where_no_product_wraps_too_early(depths):
    a, b, c = (random_tensor(3, 3, t, seed=i) for i, t in enumerate(depths))
    close(unequal_product(unequal_product(a, b), c), unequal_product(a, unequal_product(b, c)))


@given(tubes=st.integers(1, 7), seed=st.integers(0, 99))
def test_frequencies_are_those_of_the_fft(tubes, seed):
    a = random_tensor(3, 2, tubes, seed=seed)
    slices = to_fourier(a.unbind(-1))
    expected = torch.fft.rfft(a, dim=-1)
    assert len(slices) == expected.shape[-1]
    for i, matrix in enumerate(slices):
        assert_close(matrix.to(expected.dtype), expected[..., i])
        assert matrix.is_complex() == (0 < 2 * i < tubes)
    assert_close(from_fourier(slices, tubes), a)


def test_errors_say_what_to_do():
    a = torch.zeros(2, 3, 2)
    with pytest.raises(ShapeError, match=r"got 2 and 4\. Pad both first: pad_tubes\(x, 4\)"):
        unwrap(t_product)(a, torch.zeros(3, 2, 4))
    with pytest.raises(ShapeError, match=r"got \(2, 3, 2\) and \(2, 3, 2\)"):
        unwrap(t_product)(a, a)
    with pytest.raises(TypeError, match="equal types"):
        unwrap(t_product)(a, torch.zeros(3, 2, 2, dtype=torch.float64))
    with pytest.raises(ShapeError, match="instead of cutting"):
        unwrap(pad_tubes)(a, 1)
