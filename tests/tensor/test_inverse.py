"""Penrose's conditions for any rank, and least squares in chunks."""

from inspect import unwrap

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from fuseprompt.errors import ShapeError
from fuseprompt.tensor import GramSum, bcirc, t_lstsq, t_pinv, t_product, t_transpose
from tests.tensor.strategies import defective_tensors, random_tensor


def penrose_errors(a: torch.Tensor, x: torch.Tensor) -> list[float]:
    """Return how far `x` is from fulfilling each of the four conditions for `a`."""
    ax, xa = t_product(a, x), t_product(x, a)
    return [
        float((t_product(ax, a) - a).abs().max()),
        float((t_product(xa, x) - x).abs().max()),
        float((t_transpose(ax) - ax).abs().max()),
        float((t_transpose(xa) - xa).abs().max()),
    ]


def test_penrose_errors_notices_a_wrong_inverse():
    a = random_tensor(3, 2, 3, seed=0)
    assert max(penrose_errors(a, t_pinv(a) * 1.01)) > 1e-3


def test_dropping_zero_slices_is_no_pseudo_inverse():
    """Inverting in the smaller ring, as the published code does, breaks A * X * A = A."""
    a = random_tensor(3, 2, 4, seed=0)
    a[..., 2] = 0
    kept = t_pinv(a[..., [0, 1, 3]])
    wrong = torch.zeros(2, 3, 4, dtype=a.dtype)
    wrong[..., [0, 1, 3]] = kept
    assert penrose_errors(a, wrong)[0] > 0.1
    assert max(penrose_errors(a, t_pinv(a))) < 1e-10


@given(data=st.data(), dtype=st.sampled_from([torch.float64, torch.complex128]))
def test_penrose_conditions_for_any_rank(data, dtype):
    a = data.draw(defective_tensors(dtype))
    x = t_pinv(a, rtol=1e-9)
    scale = max(1.0, float(x.abs().max()), float(a.abs().max()))
    assert max(penrose_errors(a, x)) < 1e-9 * scale**3


@given(data=st.data())
def test_pinv_is_that_of_the_block_circulant_matrix(data):
    a = data.draw(defective_tensors(torch.float64))
    x = t_pinv(a, rtol=1e-9)
    expected = torch.linalg.pinv(bcirc(a), rtol=1e-9)
    assert_close(bcirc(x), expected, rtol=1e-7, atol=1e-7 * max(1.0, float(expected.abs().max())))


def test_pinv_in_single_precision():
    a = random_tensor(6, 3, 4, seed=0, dtype=torch.float32)
    x = t_pinv(a)
    assert x.dtype == torch.float32
    assert max(penrose_errors(a, x)) < 1e-5
    low = t_product(a[:, :2], random_tensor(2, 5, 4, seed=1, dtype=torch.float32))
    assert max(penrose_errors(low, t_pinv(low))) < 1e-4  # rank 2 of 5 is found in float32


def test_pinv_with_one_tube_batches_and_zeros():
    a = random_tensor(4, 3, seed=0)
    assert_close(t_pinv(a[..., None])[..., 0], torch.linalg.pinv(a))
    batch = random_tensor(2, 4, 3, 3, seed=1)
    batch[0] *= 1e-6  # each member of a batch has a tolerance of its own
    assert_close(t_pinv(batch)[0], t_pinv(batch[0]))
    assert_close(t_pinv(batch)[1], t_pinv(batch[1]))
    assert torch.equal(t_pinv(torch.zeros(2, 3, 4)), torch.zeros(3, 2, 4))


def test_gradcheck():
    a = random_tensor(3, 2, 3, seed=0).requires_grad_()
    b = random_tensor(3, 2, 3, seed=1).requires_grad_()
    torch.autograd.gradcheck(t_pinv, (a,))
    torch.autograd.gradcheck(lambda x, y: t_lstsq([(x, y)], ridge=0.1), (a, b))
    torch.autograd.gradcheck(lambda x, y: t_lstsq([(x[:1], y[:1]), (x[1:], y[1:])]), (a, b))


@given(data=st.data(), cut=st.integers(0, 5))
def test_lstsq_without_ridge_is_the_pseudo_inverse_product(data, cut):
    a = data.draw(defective_tensors(torch.float64))
    b = random_tensor(a.shape[0], 3, a.shape[2], seed=7)
    solved = t_lstsq([(a[:cut], b[:cut]), (a[cut:], b[cut:])])
    # Gram matrices square the singular values, so compare at the square root of the rank tolerance.
    expected = t_product(t_pinv(a, rtol=1e-7), b)
    assert_close(
        solved, expected, rtol=1e-5, atol=1e-5 * max(1.0, float(expected.abs().max()) ** 2)
    )


@given(tubes=st.integers(1, 5), ridge=st.sampled_from([1e-4, 1e-2, 1.0]), seed=st.integers(0, 99))
def test_ridge_is_that_of_the_block_circulant_problem(tubes, ridge, seed):
    a, b = random_tensor(7, 3, tubes, seed=seed), random_tensor(7, 2, tubes, seed=seed + 1)
    gram = bcirc(t_product(t_transpose(a), a))
    shift = ridge * gram.diagonal().mean()
    expected = torch.linalg.solve(
        gram + shift * torch.eye(len(gram), dtype=gram.dtype), bcirc(t_product(t_transpose(a), b))
    )
    assert_close(bcirc(t_lstsq([(a, b)], ridge=ridge)), expected, rtol=1e-8, atol=1e-8)


def test_chunks_and_batches_do_not_matter():
    a, b = random_tensor(2, 40, 3, 4, seed=0), random_tensor(2, 40, 2, 4, seed=1)
    whole = t_lstsq([(a, b)], ridge=0.01)
    chunks = [(a[:, i : i + 7], b[:, i : i + 7]) for i in range(0, 40, 7)]
    assert_close(t_lstsq(iter(chunks), ridge=0.01), whole)
    assert_close(whole[1], t_lstsq([(a[1], b[1])], ridge=0.01))


def test_fewer_rows_than_columns_works_with_and_without_ridge():
    a = random_tensor(2, 5, 3, seed=0, dtype=torch.float32)
    b = random_tensor(2, 4, 3, seed=1, dtype=torch.float32)
    for ridge in (0.0, 1e-5):
        assert_close(t_product(a, t_lstsq([(a, b)], ridge=ridge)), b, rtol=1e-2, atol=1e-2)


def test_frequencies_that_are_zero_stay_zero():
    """Tubes that are constant have one frequency; rounding in the others must not be inverted."""
    a = random_tensor(4, 3, 1, seed=0).expand(4, 3, 5).contiguous() * 1.1
    b = random_tensor(4, 2, 5, seed=1)
    assert_close(t_lstsq([(a, b)]), t_product(t_pinv(a), b), rtol=1e-6, atol=1e-8)


def test_errors_say_what_to_do():
    with pytest.raises(ShapeError, match="got no rows"):
        t_lstsq([])
    with pytest.raises(ShapeError, match=r"got \(2, 3, 2\) and \(3, 3, 2\)"):
        unwrap(GramSum.update)(GramSum(), torch.zeros(2, 3, 2), torch.zeros(3, 3, 2))
    sums = GramSum()
    sums.update(torch.ones(2, 3, 2), torch.ones(2, 3, 2))
    with pytest.raises(ShapeError, match="differ from those of earlier updates"):
        unwrap(GramSum.update)(sums, torch.zeros(2, 3, 3), torch.zeros(2, 3, 3))
    with pytest.raises(ValueError, match=r"at least 0, got -"):
        sums.solve(-1.0)
