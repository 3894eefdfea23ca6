"""The fidelity study: a ranker that knows the truth is perfect, and a gradient is paid for."""

import json
from dataclasses import dataclass

import pytest
import torch

from benchmarks.fidelity import report
from benchmarks.fidelity.models import plan
from benchmarks.fidelity.rankers import LanguageModelRanker, Predicted, ProposalRanker
from benchmarks.fidelity.study import compare, figures, measure, pool, summarise
from fuseprompt.errors import FuseError
from fuseprompt.proposals import Gradient
from fuseprompt.text.retokenize import PaddedIds
from tests.benchmarks.fidelity.tiny_truth import tiny_models

CELLS = plan([("sentence", "append"), ("sentiment", "append")], 3)
SECONDARIES = ("offline:sentence", "offline:sentiment")


@dataclass
class Oracle:
    """Computes the exact loss of every candidate by itself, for a cost of 7."""

    name: str = "oracle"
    linearisation: str = ""

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
    direct = ProposalRanker(Gradient(1), "gradient-16", "common-1", None)
    rankers = (Oracle(), LanguageModelRanker(), direct)
    rows = measure(tiny_models(), CELLS, folder, rankers, secondaries=SECONDARIES)
    return rows, rankers, folder


def test_the_oracle_is_perfect_in_every_cell(measured) -> None:
    rows = [r for r in measured[0] if r.ranker == "oracle"]
    edits = {(r.group.objective, r.group.edit) for r in rows}
    assert edits == {
        ("similarity", "append new word"),
        ("similarity", "append continuation"),
        ("fluency + 12 similarity", "append"),
        ("sentiment", "append new word"),
        ("sentiment", "append continuation"),
        ("fluency + 2 sentiment", "append"),
    }
    for row in rows:
        assert row.figures["rho"] == pytest.approx(1.0, abs=1e-3)
        assert row.figures["recall 10@16"] == 1.0
        assert row.figures["regret 16"] == pytest.approx(0.0, abs=1e-5)
        # 7 of 64 are spent before the first evaluation.
        assert row.figures["recall 10@cost64"] == 1.0


def test_the_language_model_is_not_perfect(measured) -> None:
    rows = [r for r in measured[0] if r.ranker == "none" and r.group.edit == "append new word"]
    assert max(r.figures["recall 10@16"] for r in rows) < 1.0


def test_an_order_that_forgets_a_candidate_is_refused() -> None:
    with pytest.raises(ValueError, match="each of them once"):
        figures(torch.zeros(3, dtype=torch.long), 0.0, torch.arange(3.0))


def test_a_gradient_costs_evaluations() -> None:
    exact = torch.arange(200.0)
    order = exact.argsort()
    found = figures(order, 60.0, exact)
    assert found["recall 10@cost64"] == 0.4
    assert found["recall 10@cost128"] == 1.0
    assert found["cost_share"] == pytest.approx(124 / 200)
    assert figures(order, 65.0, exact)["regret cost64"] == 1.0


def test_pooling_keeps_contexts_apart_and_pieces_out(measured) -> None:
    pooled = pool(measured[0])
    assert {len(contexts) for contexts in pooled.values()} == {3}
    assert {g.words for g, _ in pooled} == {None}
    by_words = pool(measured[0], by="words")
    assert {g.words for g, _ in by_words} == {3, 8, 15}
    by_pieces = pool(measured[0], by="pieces")
    assert all(g.pieces is not None for g, _ in by_pieces)


def test_a_ranker_does_not_differ_from_itself(measured) -> None:
    pooled = pool(measured[0])
    contexts = next(iter(pooled.values()))
    assert compare(contexts, contexts, "rho").value == 0.0
    assert compare(contexts, {}, "rho") is None
    assert summarise(contexts)["rho"].value == pytest.approx(
        sum(f["rho"] for f in contexts.values()) / 3
    )


def test_a_second_run_asks_no_ranker(measured, monkeypatch) -> None:
    rows, rankers, folder = measured

    def fail(*_):
        raise AssertionError("measured before")

    monkeypatch.setattr("benchmarks.fidelity.study.measure_context", fail)
    again = measure(tiny_models(), CELLS, folder, rankers[1:], secondaries=SECONDARIES)
    assert sorted(map(repr, again)) == sorted(repr(r) for r in rows if r.ranker != "oracle")
    other = ProposalRanker(Gradient(2), "gradient-16", "common-1", None)
    with pytest.raises(AssertionError, match="measured before"):
        measure(tiny_models(), CELLS, folder, [other], secondaries=SECONDARIES)


def test_json_rows_have_their_keys(measured) -> None:
    rows, rankers, _ = measured
    lines = [json.loads(line) for line in report.as_json(rows, rankers)]
    assert len(lines) == 18
    for line in lines:
        assert set(line) == {
            *("primary", "secondary", "objective", "edit", "transfer", "linearisation"),
            *("default", "contexts", "rho", "recall", "regret", "cost_share"),
        }
        assert line["contexts"] == 3
        assert set(line["rho"]) == {"value", "low", "high"}
        assert {"10@16", "10@64", "10@256", "10@512"} <= set(line["recall"])
        assert {"16", "64"} <= set(line["regret"])


def test_tables_name_every_cell_and_ranker(measured) -> None:
    rows, _, _ = measured
    text = report.tables(rows)
    assert text.count("| oracle | 1.00") == 6
    assert "### offline:sentence, similarity, append new word" in text
    assert "3 words" in report.short_tables(rows, by="words")
    assert "| 1 piece |" in report.short_tables(rows, by="pieces")
    assert report.goals(rows).count("| oracle | yes |") == 14
    paired = report.paired(rows, figures=("recall 10@64",))
    assert "**+" in paired
    widths = {line.count("|") for line in paired.splitlines() if line.startswith("|")}
    assert widths == {8}


def test_one_context_has_null_bounds(measured) -> None:
    rows, rankers, _ = measured
    one = [r for r in rows if r.context == 0]
    line = json.loads(report.as_json(one, rankers)[0])
    assert line["rho"]["low"] is None
    assert "[" not in report.tables(one).split("\n")[-1]


def test_the_plot_is_a_picture(measured, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    report.plot(measured[0], tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_extra_is_named(measured, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(FuseError, match=r"pip install matplotlib"):
        report.plot(measured[0], tmp_path / "a.png")
