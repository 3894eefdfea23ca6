"""Statistics, against hand-made cases and textbook definitions."""

import pytest
import torch

from benchmarks.fidelity.statistics import rank_correlation, recall, regret


def test_rank_correlation_of_the_exact_order_is_one_and_of_its_reverse_minus_one() -> None:
    exact = torch.tensor([0.3, 0.1, 0.9, 0.5])
    order = exact.argsort()
    assert rank_correlation(order, exact) == pytest.approx(1.0)
    assert rank_correlation(order.flip(0), exact) == pytest.approx(-1.0)


def test_rank_correlation_is_the_textbook_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    exact, guess = torch.randn(2, 50, generator=generator)
    gaps = exact.argsort().argsort() - guess.argsort().argsort()
    textbook = 1 - 6 * float(gaps.double().square().sum()) / (50 * (50**2 - 1))
    assert rank_correlation(guess.argsort(), exact) == pytest.approx(textbook)


def test_rank_correlation_without_spread_is_zero() -> None:
    assert rank_correlation(torch.arange(3), torch.ones(3)) == 0.0
    assert rank_correlation(torch.arange(1), torch.ones(1)) == 0.0


def test_recall_counts_the_best() -> None:
    exact = torch.arange(100.0)
    assert recall(exact[:5], exact) == 0.5
    assert recall(exact[10:], exact) == 0.0
    assert recall(exact, exact) == 1.0
    assert recall(exact[:0], exact) == 0.0


def test_recall_of_fewer_than_ten() -> None:
    exact = torch.arange(4.0)
    assert recall(exact[:1], exact) == 0.25
    assert recall(exact[:0], exact[:0]) == 1.0


def test_ties_at_the_tenth_place_do_not_exceed_one() -> None:
    exact = torch.zeros(30)
    assert recall(exact, exact) == 1.0


def test_regret_is_zero_for_the_best_and_one_for_the_median() -> None:
    exact = torch.arange(101.0)
    assert regret(exact[:1], exact) == 0.0
    assert regret(exact[50:], exact) == 1.0
    assert regret(exact[:0], exact) == 1.0
    assert regret(torch.ones(2), torch.ones(5)) == 0.0
