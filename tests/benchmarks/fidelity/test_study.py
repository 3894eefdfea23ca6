"""The fidelity benchmark: a ranker that knows the truth is perfect, one that asks pays for it."""

import json
from dataclasses import dataclass

import pytest
import torch

from benchmarks.fidelity import report
from benchmarks.fidelity.contexts import Context
from benchmarks.fidelity.models import plan
from benchmarks.fidelity.rankers import (
    LanguageModelRanker,
    Place,
    Question,
    Ranking,
    TransferRanker,
)
from benchmarks.fidelity.study import compare, figures, judge, measure, pool, summarise
from fuseprompt.errors import FuseError
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.transfer import CommonWords, RetokenizedTransfer
from tests.benchmarks.fidelity.tiny_truth import tiny_models

CELLS = plan([("sentence", "append"), ("sentiment", "append")], 3)
SECONDARIES = ("offline:sentence", "offline:sentiment")


@dataclass
class Oracle:
    """Computes the exact loss of every candidate by itself and asks for nothing."""

    name: str = "oracle"
    linearisation: str = ""

    def bind(self, primary, table, loss):
        """Keep the models."""
        self.primary, self.loss = primary, loss
        return self

    def order(self, question, ask):
        """Return the true order."""
        texts = self.primary.tokenizer.token_texts
        context = question.place.context
        tokenizer = self.loss.model.tokenizer
        rows = tokenizer.encode_batch(
            [
                context.left + texts[t] + context.right
                for t in question.place.tokens[question.chosen].tolist()
            ]
        )
        ids = PaddedIds.from_lists([tokenizer.frame(row) for row in rows])
        problems = torch.full((len(rows),), question.problem)
        with torch.no_grad():
            exact = self.loss.loss(ids, problems)
        return Ranking((question.prior + question.weight * exact).argsort(), 7.0)


@dataclass
class Asker:
    """Asks in rounds of 4, each around the best so far, and knows nothing else."""

    name: str = "asker"
    linearisation: str = ""

    def bind(self, primary, table, loss):
        """Return itself."""
        return self

    def order(self, question, ask):
        """Ask about the last candidates first."""
        n = len(question.chosen)
        ask(torch.arange(n - 1, n - 5, -1))
        ask(torch.tensor([n - 5, n - 1]))
        return Ranking(torch.arange(n), 0.0)


def made_up_question(n: int) -> Question:
    """Return a question about n candidates, all new words, of which nothing is known."""
    new = torch.ones(n, dtype=torch.bool)
    context = Context(0, "append", "a", "")
    place = Place(context, 1, torch.arange(n), torch.zeros(n), new, ~new)
    return Question(place, 0, torch.arange(n), torch.zeros(n), 1.0)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("truth")
    direct = TransferRanker(RetokenizedTransfer(CommonWords(1)), "direct-16", "common-1", None)
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


def test_what_is_asked_for_counts_in_order_and_once() -> None:
    exact = torch.arange(20.0)
    question = made_up_question(20)
    sequence, order, cost = judge(Asker(), question, exact)
    assert sequence.tolist() == [19, 18, 17, 16, 15, *range(15)]
    assert order.tolist() == list(range(20))
    assert cost == 0.0
    found = figures(sequence, order, cost, exact, num_eligible=20)
    assert found["rho"] == pytest.approx(1.0)
    assert found["recall 10@16"] == 1.0
    assert found["regret 16"] == 0.0


def test_an_order_that_forgets_a_candidate_is_refused() -> None:
    class Forgetful:
        def order(self, question, ask):
            return Ranking(torch.zeros(3, dtype=torch.long), 0.0)

    question = made_up_question(3)
    with pytest.raises(ValueError, match="each of them once"):
        judge(Forgetful(), question, torch.arange(3.0))


def test_a_gradient_costs_evaluations() -> None:
    exact = torch.arange(200.0)
    order = exact.argsort()
    found = figures(order, order, 60.0, exact, num_eligible=200)
    assert found["recall 10@cost64"] == 0.4
    assert found["recall 10@cost128"] == 1.0
    assert found["cost_share"] == pytest.approx(124 / 200)
    assert figures(order, order, 65.0, exact, num_eligible=200)["regret cost64"] == 1.0


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
    other = TransferRanker(RetokenizedTransfer(CommonWords(2)), "direct-16", "common-1", None)
    with pytest.raises(AssertionError, match="measured before"):
        measure(tiny_models(), CELLS, folder, [other], secondaries=SECONDARIES)


def test_json_rows_are_those_of_the_contracts(measured) -> None:
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
