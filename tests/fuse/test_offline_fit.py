"""The fit on real vocabularies: how much the maps know, and that they carry information back."""

import pytest
import torch

from fuseprompt.fuse.alignment import default_words
from fuseprompt.fuse.fit import FitSettings, fit_adapter
from fuseprompt.fuse.table import JacobianTable
from fuseprompt.models.hub import load

pytestmark = pytest.mark.offline


@pytest.fixture(scope="module")
def models():
    """Return SmolLM2 and MiniLM."""
    return load("offline:lm", local_only=True), load("offline:sentence", local_only=True)


@pytest.fixture(scope="module")
def table(models) -> JacobianTable:
    """Fit to a sixth of the words, to be quick."""
    return fit_adapter(*models, words=default_words()[::6])


def test_maps_know_a_good_part_of_the_secondary(table):
    """With all words R2 is .39 and .25 for one and two tokens (benchmarks/results/adapter.md)."""
    assert table.reports[1, 1].r2 > 0.25
    assert table.reports[2, 2].r2 > 0.12
    assert table.reports[1, 1].cosine > 0.5


def test_two_fits_are_bit_identical(models, table):
    other = fit_adapter(*models, words=default_words()[::6][::-1])
    assert other.fingerprint == table.fingerprint
    assert all(torch.equal(other.jacobians[key], j) for key, j in table.jacobians.items())


def test_uncut_words_by_the_papers_cases(models):
    settings = FitSettings(by_pairs=False)
    table = fit_adapter(*models, words=default_words()[::6], settings=settings)
    r2 = [table.reports[0, n].r2 for n in (1, 2, 3)]
    assert r2[0] > 0.2
    assert r2[0] > r2[1] > r2[2] > 0
