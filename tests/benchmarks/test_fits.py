"""The table of what fits with what: it is whole, and its cells say what happened."""

from dataclasses import replace
from pathlib import Path

from benchmarks import fits
from fuseprompt import methods, objective, proposals
from fuseprompt.methods import RandomSearch
from fuseprompt.objective.terms import TextSimilarity
from tests import tiny

PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "fits.md"


def test_the_page_has_every_term_proposal_and_method() -> None:
    """What is added later has to be tried out, too."""
    page = PAGE.read_text(encoding="utf-8")
    first, *_ = lines = [line for line in page.splitlines() if line.startswith("| ")]
    made = {type(term).__name__ for term, _ in fits.terms().values()} | {"JointTerm", "Term"}
    assert made >= {n for n in objective.__all__ if hasattr(getattr(objective, n), "encode_target")}
    for term in fits.terms():
        assert f" {term} |" in first
    for method in methods.__all__:
        assert any(line.startswith(f"| {method} |") for line in lines), method
    known = [getattr(proposals, name) for name in proposals.__all__]
    named = {p.name for p in known if isinstance(getattr(p, "name", None), str)}
    assert len(named) > 5
    for name in named:
        assert any(f" | {name} | " in line for line in lines), name


def test_a_cell_is_a_mark_or_a_reason() -> None:
    term = TextSimilarity(tiny.sentence_encoder())
    method = RandomSearch(2, search_width=64)
    assert fits.attempt(method, term, "the river") == fits.BETTER
    assert fits.attempt(replace(method, num_tokens=1), term, 7).startswith("ProblemError: ")
    cells = ["yes", "SearchError: one", "SearchError: two", "SearchError: one"]
    notes: list[str] = []
    (*_, row) = fits.table(["a", "b", "c", "d"], [("GCG", "none", cells)], notes)
    assert row == "| GCG | none | yes | no (1) | no (2) | no (1) |"
    assert notes == ["SearchError: one", "SearchError: two"]
