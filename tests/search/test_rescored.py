"""Rough scores: bfloat16 may change which candidates live on, and no loss that is reported."""

from dataclasses import replace

import pytest
import torch

from fuseprompt.search.autodan import AutoDAN
from fuseprompt.search.batch import Beams
from fuseprompt.search.engine import minimize
from fuseprompt.search.exact import exact_losses, rescored
from fuseprompt.search.proposers import LanguageModelProposer, Step
from tests.search.fixtures import method, objective, problems


def first_step(width: int = 8) -> tuple:
    search = AutoDAN(steps=3, proposer=LanguageModelProposer(width))
    state = search.step(search.init(objective().bind(problems())))
    log_probs = state.bound.prefixes.next_log_probs(state.beams.token_ids)
    step = Step(state.beams, log_probs, None, 1)
    return state.bound, state.beams, state.proposer.propose(step)


def test_rough_losses_are_near_and_not_exact() -> None:
    bound, beams, candidates = first_step()
    exact, _, share = exact_losses(bound, beams, candidates)
    bound = objective().bind(problems())  # Nothing that was kept in fp32 may help.
    rough, _, same_share = exact_losses(bound, beams, candidates, rough=True)
    assert share == same_share
    assert not torch.equal(exact, rough)
    torch.testing.assert_close(rough, exact, rtol=0.02, atol=0.05)


@pytest.mark.parametrize("num_best", [1, 3, 1000])
def test_the_best_of_each_problem_get_their_exact_losses(num_best: int) -> None:
    bound, beams, candidates = first_step()
    exact, _, _ = exact_losses(bound, beams, candidates)
    mended = rescored(bound, beams, candidates, exact, num_best)
    kept = torch.isfinite(mended)
    torch.testing.assert_close(mended[kept], exact[kept], rtol=1e-5, atol=1e-5)
    owners = beams.problems[candidates.rows]
    for problem in owners.unique():
        mine = owners == problem
        assert int(kept[mine].sum()) == min(num_best, int(mine.sum()))
        if not kept[mine].all():
            assert exact[mine & kept].max() <= exact[mine & ~kept].min() + 2e-5


def test_losses_along_the_way_are_exact() -> None:
    search = replace(method(), rescored=6)
    state = search.init(objective().bind(problems()))
    for _ in range(3):
        state = search.step(state)
        beams: Beams = state.beams
        exact = state.bound.evaluate(
            beams.texts,
            beams.problems.tolist(),
            fluency=(beams.nll_sum / beams.num_chosen).tolist(),
        )
        torch.testing.assert_close(
            beams.losses, torch.tensor([e.loss for e in exact]), rtol=1e-5, atol=1e-5
        )


def test_with_all_rescored_the_search_is_the_same() -> None:
    plain = minimize(objective(), method(), problems())
    again = minimize(objective(), replace(method(), rescored=100_000), problems())
    assert [r.text for r in again] == [r.text for r in plain]
    assert [r.loss for r in again] == pytest.approx([r.loss for r in plain], abs=1e-5)


def test_the_number_is_checked() -> None:
    with pytest.raises(ValueError, match="rescored must be at least 1, or None, was: 0"):
        AutoDAN(rescored=0)
