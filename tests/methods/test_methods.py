"""What holds for every method: it finds what is there, and its text alone decides the loss."""

from typing import Any

import pytest

from fuseprompt.methods import GCG, LocalSearch, RandomSearch
from fuseprompt.proposals.gradient import Gradient
from fuseprompt.search.minimize import minimize
from tests.methods.planted import PLANTED, objective, problem

#: Every method by edits, so that it finds a text that differs from the start in two words.
EDITING: dict[str, Any] = {
    "local": LocalSearch(steps=6, proposal=Gradient(4), search_width=512, num_exact=64),
    "gcg": GCG(steps=12, proposal=Gradient(4), top_k=32, search_width=192),
    "random": RandomSearch(steps=30, search_width=256),
}


@pytest.mark.parametrize("name", EDITING)
def test_a_planted_text_is_found(name: str) -> None:
    (result,) = minimize(objective(), EDITING[name], problem())
    assert result.text == PLANTED
    assert result.loss == pytest.approx(0.0, abs=1e-6)
