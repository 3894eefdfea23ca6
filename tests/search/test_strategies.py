"""Strategies: the best of each problem, ties by token id."""

import pytest
import torch

from fuseprompt.search.strategies import BeamSearch, select_best


def test_the_best_of_each_problem_in_order() -> None:
    losses = torch.tensor([3.0, 1.0, 2.0, 0.5, 0.1])
    problems = torch.tensor([0, 0, 0, 1, 1])
    tokens = torch.arange(5)
    assert BeamSearch(2).select(losses, problems, tokens).tolist() == [1, 2, 4, 3]


def test_ties_go_by_token_id_not_by_the_last_bit() -> None:
    losses = torch.tensor([1.0, 1.0 - 2e-7, 1.0 + 2e-7])
    tokens = torch.tensor([5, 9, 7])
    assert select_best(losses, torch.zeros(3, dtype=torch.long), tokens, 3).tolist() == [0, 2, 1]


def test_fewer_candidates_than_beams_are_all_kept() -> None:
    index = select_best(torch.tensor([2.0, 1.0]), torch.tensor([0, 0]), torch.tensor([1, 2]), 9)
    assert index.tolist() == [1, 0]


def test_a_width_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="beam_width must be at least 1, was: 0"):
        BeamSearch(0)
