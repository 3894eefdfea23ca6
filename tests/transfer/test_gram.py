"""The case solver against dense least squares and loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from fuseprompt.tensor import t_lstsq
from fuseprompt.transfer.gram import (
    NO_TOKEN,
    Case,
    CaseSolver,
    from_frequencies,
    to_frequencies,
    word_slices,
)
from tests.reference import fuse as reference
from tests.tensor.strategies import random_tensor


def random_case(
    words: int, k: int, m: int, depth: int, seed: int, *, ragged: bool
) -> tuple[Case, list[list[int]], list[list[int]]]:
    """Draw words over few tokens, so that tokens repeat."""
    generator = torch.Generator().manual_seed(seed)

    def draw(most: int, tokens: int) -> list[list[int]]:
        low = 1 if ragged else most
        lengths = torch.randint(low, most + 1, (words,), generator=generator).tolist()
        return [torch.randint(tokens, (n,), generator=generator).tolist() for n in lengths]

    def pad(rows: list[list[int]], most: int) -> torch.Tensor:
        return torch.tensor([row + [NO_TOKEN] * (most - len(row)) for row in rows])

    ours, theirs = draw(k, 7), draw(m, 11)
    weights = torch.rand(words, generator=generator, dtype=torch.float64) + 0.1
    return Case(pad(ours, k), pad(theirs, m), weights, depth), ours, theirs


@given(
    words=st.integers(1, 30),
    k=st.integers(1, 4),
    l=st.integers(1, 4),
    deeper=st.integers(0, 2),
    seed=st.integers(0, 999),
    ragged=st.booleans(),
)
def test_solution_is_that_of_the_dense_problem(words, k, l, deeper, seed, ragged):  # noqa: E741
    """Both ways to solve are drawn: up to 3 words lie in the space of words, more in that of A."""
    depth = max(k, l) + deeper
    case, ours, theirs = random_case(words, k, l, depth, seed, ragged=ragged)
    v_p, v_s = random_tensor(7, 3, seed=seed), random_tensor(11, 2, seed=seed + 1)
    a = reference.word_tensor(ours, v_p, depth)
    b = reference.word_tensor(theirs, v_s, depth)
    solved = from_frequencies(CaseSolver(case, v_p, v_s).solve(0.01), depth)
    assert_close(solved, reference.ridge_map(a, b, case.weights, 0.01), rtol=1e-7, atol=1e-7)
    root = case.weights.sqrt()[:, None, None]
    assert_close(solved, t_lstsq([(root * a, root * b)], ridge=0.01), rtol=1e-7, atol=1e-7)


def test_comparison_notices_a_wrong_lag():
    """Swapping two tubes of the answer must not pass as equal."""
    case, ours, theirs = random_case(20, 3, 3, 3, 0, ragged=False)
    v_p, v_s = random_tensor(7, 3, seed=0), random_tensor(11, 2, seed=1)
    a, b = reference.word_tensor(ours, v_p, 3), reference.word_tensor(theirs, v_s, 3)
    solved = from_frequencies(CaseSolver(case, v_p, v_s).solve(0.01), 3)
    with pytest.raises(AssertionError, match="not close"):
        assert_close(solved[..., [0, 2, 1]], reference.ridge_map(a, b, case.weights, 0.01))


@given(tubes=st.integers(1, 7), seed=st.integers(0, 99))
def test_frequencies_are_those_of_the_fft(tubes, seed):
    a = random_tensor(3, 2, tubes, seed=seed)
    slices = to_frequencies(list(a.unbind(-1)))
    expected = torch.fft.rfft(a, dim=-1)
    for i, matrix in enumerate(slices):
        assert_close(matrix.to(expected.dtype), expected[..., i])
        assert matrix.is_complex() == (0 < 2 * i < tubes)
    assert_close(from_frequencies(slices, tubes), a)


def test_word_slices_are_the_word_tensor():
    case, ours, _ = random_case(9, 3, 2, 4, 0, ragged=True)
    vocabulary = random_tensor(7, 3, seed=0)
    slices = word_slices(case.primary_ids, vocabulary, 4)
    assert torch.equal(torch.stack(slices, -1), reference.word_tensor(ours, vocabulary, 4))
