"""Least squares against dense problems, loops and the Moore-Penrose inverse of the paper."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from fuseprompt.errors import ShapeError
from fuseprompt.fuse.lstsq import NO_TOKEN, Case, LeastSquares, word_slices
from fuseprompt.fuse.tproduct import t_product, t_transpose
from tests.fuse.tensors import defective_tensors, random_tensor
from tests.reference import fuse as reference
from tests.reference.t_pinv import t_pinv
from tests.reference.t_product import bcirc

DEPTHS = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2))


def random_case(
    words: int, k: int, m: int, depth: int, seed: int, *, ragged: bool
) -> tuple[Case, list[list[int]], list[list[int]]]:
    """Draw words over few tokens, so that tokens repeat."""
    generator = torch.Generator().manual_seed(seed)

    def draw(most: int, tokens: int) -> list[list[int]]:
        low = 1 if ragged else most
        lengths = torch.randint(low, most + 1, (words,), generator=generator).tolist()
        return [torch.randint(tokens, (n,), generator=generator).tolist() for n in lengths]

    def pad(rows: list[list[int]]) -> torch.Tensor:
        return torch.tensor([row + [NO_TOKEN] * (depth - len(row)) for row in rows])

    ours, theirs = draw(k, 7), draw(m, 11)
    weights = torch.rand(words, generator=generator, dtype=torch.float64) + 0.1
    none = torch.zeros(0, 1)  # each test has vocabularies of its own
    return Case(pad(ours), pad(theirs), weights, none, none), ours, theirs


def solve(case: Case, v_p: torch.Tensor, v_s: torch.Tensor, ridge: float, portion: int = 99):
    """Return the solution for words that come in portions."""
    solver = LeastSquares()
    case = replace(case, primary=v_p, secondary=v_s)
    for start in range(0, len(case), portion):
        solver.update(case[start : start + portion])
    return solver.solve(ridge)


@given(
    words=st.integers(1, 30),
    depths=DEPTHS,
    seed=st.integers(0, 999),
    ragged=st.booleans(),
    portion=st.sampled_from([1, 2, 5, 99]),
    ridge=st.sampled_from([1.0, 0.01, 1e-4]),
)
def test_solution_is_that_of_the_dense_problem(words, depths, seed, ragged, portion, ridge):
    """Both ways to solve are drawn: up to 3 words lie in the space of words, more in that of A."""
    depth = max(depths[:2]) + depths[2]
    case, ours, theirs = random_case(words, *depths[:2], depth, seed, ragged=ragged)
    v_p, v_s = random_tensor(7, 3, seed=seed), random_tensor(11, 2, seed=seed + 1)
    a = reference.word_tensor(ours, v_p, depth)
    b = reference.word_tensor(theirs, v_s, depth)
    solved = solve(case, v_p, v_s, ridge, portion)
    assert_close(solved, reference.ridge_map(a, b, case.weights, ridge), rtol=1e-6, atol=1e-6)


def test_comparison_notices_a_wrong_lag():
    """Swapping two tubes of the answer must not pass as equal."""
    case, ours, theirs = random_case(20, 3, 3, 3, 0, ragged=False)
    v_p, v_s = random_tensor(7, 3, seed=0), random_tensor(11, 2, seed=1)
    a, b = reference.word_tensor(ours, v_p, 3), reference.word_tensor(theirs, v_s, 3)
    solved = solve(case, v_p, v_s, 0.01)
    with pytest.raises(AssertionError, match="not close"):
        assert_close(solved[..., [0, 2, 1]], reference.ridge_map(a, b, case.weights, 0.01))


@given(words=st.integers(1, 12), depths=DEPTHS, seed=st.integers(0, 999), low=st.booleans())
def test_without_ridge_it_is_the_inverse_of_the_paper(words, depths, seed, low):
    """T = V_i^+ * V_j, also where words or vectors depend on each other."""
    depth = max(depths[:2]) + depths[2]
    case, ours, theirs = random_case(words, *depths[:2], depth, seed, ragged=True)
    v_p, v_s = random_tensor(7, 3, seed=seed), random_tensor(11, 2, seed=seed + 1)
    v_p = v_p[:, [0, 1, 1]] if low else v_p
    root = case.weights.sqrt()[:, None, None]
    a = root * reference.word_tensor(ours, v_p, depth)
    b = root * reference.word_tensor(theirs, v_s, depth)
    # Gram matrices square the singular values, so compare at the square root of the rank tolerance.
    expected = t_product(t_pinv(a, rtol=1e-7), b)
    scale = max(1.0, float(expected.abs().max()) ** 2)
    assert_close(solve(case, v_p, v_s, 0.0), expected, rtol=1e-5, atol=1e-5 * scale)


def test_frequencies_that_are_zero_stay_zero():
    """Words of one token over and over have one frequency; rounding in others is not inverted."""
    ids = torch.tensor([[0], [1], [2], [3], [4]]).expand(5, 5)
    theirs = torch.arange(25).reshape(5, 5)
    v_p, v_s = random_tensor(5, 3, seed=0) * 1.1, random_tensor(25, 2, seed=1)
    case = Case(ids, theirs, torch.ones(5, dtype=torch.float64), v_p, v_s)
    a = reference.word_tensor(ids.tolist(), v_p, 5)
    b = reference.word_tensor(theirs.tolist(), v_s, 5)
    expected = t_product(t_pinv(a), b)
    assert_close(solve(case, v_p, v_s, 0.0), expected, rtol=1e-6, atol=1e-8)


def test_fewer_words_than_columns_are_met_exactly():
    case, ours, theirs = random_case(2, 2, 2, 2, 0, ragged=False)
    v_p, v_s = random_tensor(7, 5, seed=0).float(), random_tensor(11, 4, seed=1).float()
    a, b = reference.word_tensor(ours, v_p, 2), reference.word_tensor(theirs, v_s, 2)
    for ridge in (0.0, 1e-5):
        assert_close(t_product(a, solve(case, v_p, v_s, ridge)), b, rtol=1e-2, atol=1e-2)


def test_many_words_are_kept_as_sums_only():
    case = random_case(20, 2, 2, 2, 0, ragged=True)[0]
    v_p, v_s = random_tensor(7, 3, seed=0), random_tensor(11, 2, seed=1)
    case = replace(case, primary=v_p, secondary=v_s)
    solver = LeastSquares()
    solver.update(case[:3])
    assert len(solver._held) == 1
    solver.update(case[3:])
    assert not solver._held
    before = solver.solve(0.1)
    solver.update(case[:2])  # a solution does not stay when words are added
    assert not torch.equal(solver.solve(0.1), before)


def test_word_slices_are_the_word_tensor():
    case, ours, _ = random_case(9, 3, 2, 4, 0, ragged=True)
    vocabulary = random_tensor(7, 3, seed=0)
    slices = word_slices(case.primary_ids, vocabulary)
    assert torch.equal(torch.stack(slices, -1), reference.word_tensor(ours, vocabulary, 4))


def test_errors_say_what_to_do():
    with pytest.raises(ShapeError, match="got no words"):
        LeastSquares().solve(0.1)
    case = random_case(4, 2, 2, 2, 0, ragged=False)[0]
    solver = LeastSquares()
    case = replace(case, primary=torch.ones(7, 3), secondary=torch.ones(11, 2))
    solver.update(case)
    with pytest.raises(ShapeError, match=r"got widths and depth \(4, 2, 2\), expected \(3, 2, 2\)"):
        solver.update(replace(case, primary=torch.ones(7, 4)))
    with pytest.raises(ValueError, match=r"at least 0, got -"):
        solver.solve(-1.0)


# The inverse that the other tests compare with.


def penrose_errors(a: torch.Tensor, x: torch.Tensor) -> list[float]:
    """Return how far `x` is from fulfilling each of the four conditions for `a`."""
    ax, xa = t_product(a, x), t_product(x, a)
    return [
        float((t_product(ax, a) - a).abs().max()),
        float((t_product(xa, x) - x).abs().max()),
        float((t_transpose(ax) - ax).abs().max()),
        float((t_transpose(xa) - xa).abs().max()),
    ]


@given(a=defective_tensors())
def test_penrose_conditions_for_any_rank(a):
    x = t_pinv(a, rtol=1e-9)
    scale = max(1.0, float(x.abs().max()), float(a.abs().max()))
    assert max(penrose_errors(a, x)) < 1e-9 * scale**3
    expected = torch.linalg.pinv(bcirc(a), rtol=1e-9)
    assert_close(bcirc(x), expected, rtol=1e-7, atol=1e-7 * max(1.0, float(expected.abs().max())))


def test_penrose_errors_notices_a_wrong_inverse():
    """Inverting in the smaller ring, as the published code does, breaks A * X * A = A."""
    a = random_tensor(3, 2, 4, seed=0)
    assert max(penrose_errors(a, t_pinv(a) * 1.01)) > 1e-3
    a[..., 2] = 0
    wrong = torch.zeros(2, 3, 4, dtype=a.dtype)
    wrong[..., [0, 1, 3]] = t_pinv(a[..., [0, 1, 3]])
    assert penrose_errors(a, wrong)[0] > 0.1
    assert max(penrose_errors(a, t_pinv(a))) < 1e-10
