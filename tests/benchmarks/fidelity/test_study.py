"""The fidelity study: a ranker that knows the truth is perfect, and a gradient is paid for."""

from dataclasses import dataclass

import pytest
import torch

from benchmarks.fidelity import report
from benchmarks.fidelity.models import plan
from benchmarks.fidelity.rankers import LanguageModelRanker, Predicted, ProposalRanker
from benchmarks.fidelity.study import FIGURES, figures, measure
from benchmarks.journal import Journal
from fuseprompt.proposals import Gradient
from fuseprompt.text.retokenize import PaddedIds
from tests.benchmarks.fidelity.tiny_truth import tiny_models

CELLS = plan([("sentence", "append"), ("sentiment", "append")], 3)
SECONDARIES = ("offline:sentence", "offline:sentiment")


@dataclass
class Oracle:
    """Computes the exact loss of every candidate by itself, for a cost of 7."""

    name: str = "oracle"

    def predict(self, primary, loss, place):
        """Return the exact losses."""
        texts, context = primary.tokenizer.token_texts, place.context
        tokenizer = loss.model.tokenizer
        rows = tokenizer.encode_batch(
            [context.left + texts[t] + context.right for t in place.tokens.tolist()]
        )
        ids = PaddedIds.from_lists([tokenizer.add_special_tokens(row) for row in rows])
        with torch.no_grad():
            exact = [
                loss.loss(ids, torch.full((len(rows),), problem))
                for problem in range(place.num_problems)
            ]
        return Predicted(torch.stack(exact), 7.0, 0.0)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("truth")
    direct = ProposalRanker(Gradient(1), "gradient-16", None)
    rankers = (Oracle(), LanguageModelRanker(), direct)
    journal = Journal(folder / "journal.jsonl")
    measure(tiny_models(), CELLS, folder, rankers, journal, secondaries=SECONDARIES)
    return journal, rankers, folder


def rows_of(journal, ranker):
    rows = [row["figures"] for row in journal.rows.values() if row["ranker"] == ranker]
    return [pair for row in rows for pair in row.items()]


def test_the_oracle_is_perfect_in_every_cell(measured) -> None:
    rows = rows_of(measured[0], "oracle")
    assert [cell for cell, _ in rows] == [
        *["similarity, new word", "similarity, continuation", "fluency + 12 similarity"] * 3,
        *["sentiment, new word", "sentiment, continuation", "fluency + 3 sentiment"] * 3,
    ]
    for _, figures_ in rows:
        assert figures_["rho"] == pytest.approx(1.0, abs=1e-3)
        assert figures_["10@64"] == 1.0
        assert figures_["regret 16"] == pytest.approx(0.0, abs=1e-5)
        # 7 of 128 are spent before the first evaluation.
        assert figures_["10 at cost 128"] == 1.0


def test_the_language_model_is_not_perfect(measured) -> None:
    rows = [found for cell, found in rows_of(measured[0], "none") if "new word" in cell]
    assert max(row["rho"] for row in rows) < 0.9


def test_an_order_that_forgets_a_candidate_is_refused() -> None:
    with pytest.raises(ValueError, match="each of them once"):
        figures(torch.zeros(3, dtype=torch.long), 0.0, torch.arange(3.0))


def test_a_gradient_costs_evaluations() -> None:
    exact = torch.arange(200.0)
    order = exact.argsort()
    assert figures(order, 124.0, exact)["10 at cost 128"] == 0.4
    assert figures(order, 60.0, exact)["10 at cost 128"] == 1.0
    assert figures(order, 200.0, exact)["10 at cost 128"] == 0.0


def test_a_replaced_word_is_a_cell_of_its_own(tmp_path) -> None:
    journal = Journal(tmp_path / "a.jsonl")
    cells = plan([("sentence", "replace")], 1)
    measure(tiny_models(), cells, tmp_path, [Oracle()], journal, secondaries=SECONDARIES[:1])
    (row,) = journal.rows.values()
    assert list(row["figures"]) == ["similarity, replace"]
    assert row["figures"]["similarity, replace"]["rho"] == pytest.approx(1.0, abs=1e-3)


def test_a_second_run_asks_no_ranker(measured, monkeypatch) -> None:
    journal, rankers, folder = measured

    def fail(*_):
        raise AssertionError("measured before")

    monkeypatch.setattr("benchmarks.fidelity.study.measure_context", fail)
    again = Journal(folder / "journal.jsonl")
    measure(tiny_models(), CELLS, folder, rankers, again, secondaries=SECONDARIES)
    assert again.rows == journal.rows
    other = ProposalRanker(Gradient(2), "gradient-64", None)
    with pytest.raises(AssertionError, match="measured before"):
        measure(tiny_models(), CELLS, folder, [other], again, secondaries=SECONDARIES)


def test_tables_have_means_with_intervals_and_paired_differences(tmp_path) -> None:
    journal = Journal(tmp_path / "a.jsonl")
    for context, (fuse, random) in enumerate([(0.4, 0.1), (0.6, 0.3), (0.5, 0.2)]):
        for ranker, value in (("fuse", fuse), ("random maps", random)):
            row = {"secondary": "offline:sentence", "ranker": ranker, "context": context}
            found = {"image, new word": dict.fromkeys(FIGURES, value)}
            journal.append(f"{ranker} {context}", {**row, "figures": found})
    text = report.tables(journal)
    assert text.startswith("3 contexts.\n\n**rho**\n\n| ranker | sentence: image, new word |")
    assert text.count("| fuse | 0.50 [0.40, 0.60] |") == 4
    assert text.splitlines()[-4:] == [
        "| fuse - random maps | **+0.30 [+0.30, +0.30]** |",
        "| gradient-16 - fuse |  |",
        "| word-table-16 - gradient-16 |  |",
        "| additive - word-table-16 |  |",
    ]
