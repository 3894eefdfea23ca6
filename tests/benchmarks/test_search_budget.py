"""The search budget: what is counted, what is remembered, what the report says."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks.journal import Journal
from benchmarks.search_budget import __main__ as command
from benchmarks.search_budget import problems
from benchmarks.search_budget.__main__ import JOURNAL, plan, run, search
from benchmarks.search_budget.arms import ARMS, LM, WordsOnly, most_points
from benchmarks.search_budget.meter import Meter, RememberingLM
from benchmarks.search_budget.problems import Item
from benchmarks.search_budget.report import differences, read, table
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.objective.objective import BoundObjective, Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency, ImageText
from fuseprompt.proposals import Gradient, Positions
from fuseprompt.tasks.caption import objective_of
from fuseprompt.tasks.models import CaptionModels
from fuseprompt.tasks.settings import CaptionSettings
from tests.tiny import classifier, clip, gpt2


def bound(writer: Any = None) -> BoundObjective:
    terms = [Fluency(gpt2() if writer is None else writer), ImageText(clip(), weight=5.0)]
    image = Image.new("RGB", (32, 32), "red")
    return Objective(terms).bind([Problem("red", {"image": image}, "An image of")])


def direct(points: int, width: int) -> AutoDAN:
    return AutoDAN(proposal=Gradient(points), search_width=width)


def alone(width: int) -> AutoDAN:
    return ARMS[LM](width)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder where the tables and maps of tiny models are kept between the arms."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_finds_the_same_with_what_others_scored(
    arm: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(cache))
    scores: Any = {}
    search(bound(), alone(16), steps=3, scores=scores)
    known = len(scores)
    with_scores = search(bound(), ARMS[arm](16), steps=3, scores=scores)
    assert known > 0
    assert with_scores == search(bound(), ARMS[arm](16), steps=3)
    # One text is open at first, then two; an anchor costs a pass for each of them.
    anchor = 1 if arm == "additive" else 0
    assert with_scores["cost"][0] <= 16 + anchor
    assert with_scores["cost"][-1] <= (16 + anchor) * 5


def test_what_was_scored_is_not_computed_again() -> None:
    scores: Any = {}
    search(bound(), alone(4), steps=1, scores=scores)
    changed = search(bound(), alone(4), steps=1, scores=dict.fromkeys(scores, 7.0))
    assert changed["open"] > search(bound(), alone(4), steps=1)["open"]


def test_cost_is_three_for_a_gradient_and_one_for_a_score() -> None:
    (plain,) = search(bound(), alone(8), steps=1)["cost"]
    assert 0 < plain <= 8
    (both,) = search(bound(), direct(2, 8), steps=1)["cost"]
    # Two points of a new word, two of a last word; and at most eight scores.
    assert 2 * 2 * 3 < both <= 2 * 2 * 3 + 8


def test_a_text_asked_for_twice_is_paid_once() -> None:
    meter = Meter()
    meter.count_scores([(1,), (2,), (1,)])
    meter.count_scores([(2,)])
    with meter.paused():
        meter.count_scores([(3,)])
        meter.count_rows(9, with_gradient=True)
    assert (meter.cost, meter.scored) == (2.0, 2)
    meter.count_rows(9, with_gradient=True)
    assert meter.cost == 29.0


def test_a_writer_with_memory_writes_the_same() -> None:
    writer = RememberingLM(gpt2())
    plain = search(bound(), alone(8), steps=3)
    for _ in range(2):
        again = search(bound(writer), alone(8), steps=3)
        assert (again["text"], again["cost"]) == (plain["text"], plain["cost"])
        # A search without a memory of its own computes only new tokens: equal to rounding.
        assert again["open"] == pytest.approx(plain["open"], abs=1e-3)


def test_a_gradient_leaves_something_to_score() -> None:
    assert [most_points(budget) for budget in (4, 16, 64, 256)] == [1, 4, 16, 16]
    assert [ARMS["gradient"](budget).search_width for budget in (16, 64, 256)] == [4, 16, 208]


def test_words_only_predicts_the_mean_for_word_internal_tokens() -> None:
    one = bound().terms[0]
    scorer = WordsOnly(Gradient(2)).init(gpt2(), one.model, one.table).bind(one)
    positions = Positions.append(("An image of a", "An image of the"), torch.tensor([0, 0]))
    words = torch.nonzero(one.table.word_initial).flatten()
    predicted = scorer.word_initial(positions, words)
    spent = scorer.cost
    lengthened = scorer.word_internal(positions, torch.zeros(2, 3, dtype=torch.long))
    torch.testing.assert_close(lengthened, predicted.mean(1)[:, None].expand(2, 3))
    assert scorer.cost == spent == 2 * 2 * 3


def test_a_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "_writer", gpt2)
    monkeypatch.setattr(problems, "_model", lambda _: classifier())
    problems.objective.cache_clear()
    monkeypatch.setattr(command, "ARMS", {name: ARMS[name] for name in (LM, "random")})
    monkeypatch.setattr(command, "STEPS", 2)
    item, journal = Item("a", "sentiment", "positive", "the dog"), Journal(tmp_path / "a.jsonl")
    run(item, tmp_path, journal)
    assert list(journal.rows) == [key for *_, key in plan(item)]
    assert list(journal.rows)[-1] == "none|256|a"
    monkeypatch.setattr(command, "search", None)
    run(item, tmp_path, Journal(tmp_path / "a.jsonl"))
    problems.objective.cache_clear()


def test_tones_are_those_of_captions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "_writer", gpt2)
    monkeypatch.setattr(problems, "_model", lambda _: classifier())
    problems.objective.cache_clear()
    of_captions = objective_of(
        CaptionSettings(sentiment="positive"), CaptionModels(gpt2(), clip(), classifier())
    )
    (term,) = problems.objective("sentiment").terms
    assert term == of_captions.terms[-1]
    item = Item("sentiment/0", "sentiment", "positive", "A dog")
    one = problems.problem(item, Path())
    assert (dict(one.targets), one.prefix) == ({"sentiment": "positive"}, "A dog")
    problems.objective.cache_clear()


def test_the_report_pairs_problems(tmp_path: Path) -> None:
    """Two problems; none halves its loss from 64 to 256, the table lies between."""
    journal = Journal(tmp_path / "journal.jsonl")
    losses = {("none", 64): 4.0, ("none", 256): 2.0, ("word-table", 64): 3.0, ("fuse", 64): 3.5}
    for (arm, budget), loss in losses.items():
        for problem, extra in (("a", 0.0), ("b", 1.0)):
            row = {"arm": arm, "budget": budget, "problem": problem, "kind": "image"}
            row |= {"loss": loss + extra * (2 if arm == "fuse" else 1), "open": [loss] * 8}
            journal.append(f"{arm} {budget} {problem}", row | {"cost": [budget * 15.0] * 8})
    assert differences(
        read(journal), ("word-table", 64), ("none", 64), lambda outcome: outcome.loss
    ) == [-1.0, -1.0]
    lines = table(journal).splitlines()
    cells = "3.50 | **-1.00** [-1.00, -1.00] |  | **+1.00** [+1.00, +1.00]"
    assert f"| 64 | word-table | 2 | {cells} | **-1.00** [-1.00, -1.00] |  | 64 |" in lines
    assert any(line.startswith("| 64 | fuse | 2 | 4.50 | +0.00 [-0.50, +0.50]") for line in lines)


def test_the_page_is_made_of_the_journal() -> None:
    page = JOURNAL.with_name("search-budget.md").read_text("utf-8")
    assert page.endswith(table(Journal(JOURNAL)))
    rows = Journal(JOURNAL).rows.values()
    assert len(rows) == len({row["problem"] for row in rows}) * (2 * len(ARMS) + 1)
