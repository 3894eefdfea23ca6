"""Selection: the best of each problem, ties by token id."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fuseprompt.search.candidates import select_best
from tests.reference import candidates as plain


def test_the_best_of_each_problem_in_order() -> None:
    losses = torch.tensor([3.0, 1.0, 2.0, 0.5, 0.1])
    problems = torch.tensor([0, 0, 0, 1, 1])
    tokens = torch.arange(5)
    assert select_best(losses, problems, tokens, 2).tolist() == [1, 2, 4, 3]


def test_ties_go_by_token_id_not_by_the_last_bit() -> None:
    losses = torch.tensor([1.0, 1.0 - 2e-7, 1.0 + 2e-7])
    tokens = torch.tensor([5, 9, 7])
    assert select_best(losses, torch.zeros(3, dtype=torch.long), tokens, 3).tolist() == [0, 2, 1]


def test_fewer_candidates_than_beams_are_all_kept() -> None:
    index = select_best(torch.tensor([2.0, 1.0]), torch.tensor([0, 0]), torch.tensor([1, 2]), 9)
    assert index.tolist() == [1, 0]


CANDIDATE = st.tuples(
    st.sampled_from([0.0, 1.0, 1.0 + 2e-6, 2.0, float("inf")]), st.integers(0, 3), st.integers(0, 5)
)


@given(st.lists(CANDIDATE, max_size=30), st.integers(1, 4))
def test_the_best_are_those_of_the_plain_rule(
    candidates: list[tuple[float, int, int]], num_best: int
) -> None:
    losses = torch.tensor([c[0] for c in candidates], dtype=torch.float32)
    problems, tokens = (torch.tensor([c[i] for c in candidates], dtype=torch.long) for i in (1, 2))
    got = select_best(losses, problems, tokens, num_best)
    want = plain.select_best(losses.tolist(), problems.tolist(), tokens.tolist(), num_best)
    assert got.tolist() == want
