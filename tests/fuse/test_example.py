"""The example in a hundred lines computes what the package computes."""

import runpy
from pathlib import Path

import pytest
import torch
from torch.nn.functional import pad
from torch.testing import assert_close

from fuseprompt.fuse import (
    Alignment,
    Case,
    CaseReport,
    JacobianTable,
    LeastSquares,
    map_embeddings,
    t_product,
    t_transpose,
    transfer_gradient,
)
from fuseprompt.fuse.lstsq import NO_TOKEN

EXAMPLE = Path(__file__).parents[2] / "examples" / "fuse_in_100_lines.py"


@pytest.fixture
def example(capsys):
    """Run the example; return its names and what it printed."""
    state, dtype = torch.get_rng_state(), torch.get_default_dtype()
    try:
        names = runpy.run_path(str(EXAMPLE))
    finally:
        torch.set_rng_state(state)
        torch.set_default_dtype(dtype)
        torch.set_printoptions(profile="default")
    return names, capsys.readouterr().out


def test_it_has_at_most_a_hundred_lines_and_needs_torch_alone():
    text = EXAMPLE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    assert [line for line in text.splitlines() if "import " in line] == ["import torch"]


def test_its_numbers_are_those_of_the_package(example):
    names, printed = example
    ids, theirs = (
        torch.tensor([[ids[t] for t in word[side].split()] for word in names["WORDS"].values()])
        for side, ids in enumerate((names["I"], names["J"]))
    )
    places = (0, names["DEPTH"] - 2)
    ids, theirs = (pad(side, places, value=NO_TOKEN) for side in (ids, theirs))
    words = Case(ids, theirs, torch.ones(len(ids)).double(), names["V_i"], names["V_j"])
    solver = LeastSquares()
    solver.update(words)
    fitted = solver.solve(0.0)
    assert_close(names["T"], fitted)
    assert_close(names["t_product"](names["word_i"], fitted), t_product(names["word_i"], fitted))
    assert_close(names["t_transpose"](fitted), t_transpose(fitted))
    report = CaseReport(4, 0, 0.0, 1.0, 1.0, 0.0)
    table = JacobianTable({(2, 2): names["T"]}, {(2, 2): report}, 2, {}, {}, {})
    text = Alignment.of_counts([(2, 2)] * len(ids))
    merge = names["merge"]
    grad = transfer_gradient(merge(names["G"]), text, table=table)
    assert_close(grad, merge(names["carried"]))
    mapped = map_embeddings(merge(names["word_i"]), text, table=table)
    assert_close(mapped, merge(t_product(names["word_i"], names["T"])))
    assert "Eq. 4: words translated by T miss those of j by 0.0" in printed
    assert "Eq. 5: differs from autograd by 0.0" in printed
    assert float((names["unreversed"] - names["exact"]).abs().max()) > 0.1
    assert float(names["after"]) < float(names["before"])
