"""R2 and cosine from their definitions, and the ridge that a search over all would find."""

import pytest
import torch

from fuseprompt.transfer.gram import Case, CaseSolver
from fuseprompt.transfer.quality import choose_ridge, quality
from tests.reference import fuse as reference
from tests.tensor.strategies import random_tensor
from tests.transfer.tiny import tiny_pair


def test_quality_is_measured_from_the_definition():
    primary, secondary = tiny_pair()
    case = Case(torch.tensor([[5, 6], [7, 8]]), torch.tensor([[9], [10]]), torch.ones(2), 2)
    jacobian = torch.randn(5, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = [primary.vocabulary[ids] for ids in case.primary_ids]
    guess = torch.cat([reference.forward_word(row, jacobian, 1) for row in rows])
    true = secondary.vocabulary[[9, 10]]
    r2, cosine = quality(jacobian, case, primary.vocabulary, secondary.vocabulary)
    spread = (true - true.mean(0)).square().sum()
    assert r2 == pytest.approx(float(1 - (true - guess).square().sum() / spread))
    assert cosine == pytest.approx(float(torch.cosine_similarity(true, guess).mean()))


@pytest.mark.parametrize("noise", [0.0, 0.5, 5.0])
def test_the_ridge_is_the_best_of_all(noise):
    """The stop at the first worse ridge finds the minimum; noise asks for a stronger one."""
    v_p, v_s = random_tensor(40, 6, seed=0), random_tensor(40, 2, seed=1) * noise
    v_s += v_p @ random_tensor(6, 2, seed=2)
    ids = torch.arange(40)[:, None]
    train, held_out = (
        Case(ids[rows], ids[rows], torch.ones(20), 1) for rows in (slice(20), slice(20, 40))
    )
    solver = CaseSolver(train, v_p, v_s)
    ridges = (10.0, 1.0, 0.1, 0.01, 1e-6)
    ridge, jacobian = choose_ridge(solver, held_out, ridges, v_p, v_s)
    scores = [quality(solver.solve(r)[0][..., None], held_out, v_p, v_s)[0] for r in ridges]
    assert ridge == ridges[scores.index(max(scores))]
    assert torch.equal(jacobian, solver.solve(ridge)[0])
    if noise != 0.5:  # the extremes are known beforehand, the middle is only compared
        assert (ridge == 1e-6) == (noise == 0)
