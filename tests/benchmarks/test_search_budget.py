"""The search budget: what is counted, what is kept on disk, what the report says."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks.journal import Journal
from benchmarks.search_budget import problems
from benchmarks.search_budget import report as budget_report
from benchmarks.search_budget.__main__ import plan, search
from benchmarks.search_budget.arms import ARMS, LM, WordsOnly, most_points
from benchmarks.search_budget.meter import KnownScores, Meter, RememberingLM, metered
from benchmarks.search_budget.problems import SHIPPED, Item
from benchmarks.search_budget.report import (
    BEGIN,
    END,
    SHIPPED_BEGIN,
    SHIPPED_END,
    crossing,
    differences,
    equal_budget,
    read,
    shared_problems,
    well_covered,
    write,
    write_shipped,
)
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.objective.objective import BoundObjective, Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency, ImageText
from fuseprompt.proposals import Gradient, Positions
from fuseprompt.tasks.caption import objective_of
from fuseprompt.tasks.models import CaptionModels
from fuseprompt.tasks.settings import CaptionSettings
from tests.tiny import classifier, clip, gpt2

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def bound(writer: Any = None) -> BoundObjective:
    terms = [Fluency(gpt2() if writer is None else writer), ImageText(clip(), weight=5.0)]
    image = Image.new("RGB", (32, 32), "red")
    return Objective(terms).bind([Problem("red", {"image": image}, "An image of")])


def direct(points: int, width: int) -> AutoDAN:
    return AutoDAN(proposal=Gradient(points), search_width=width)


def alone(width: int) -> AutoDAN:
    return ARMS[LM](width)


def without_seconds(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "seconds"}


def test_scores_on_disk_change_nothing(tmp_path) -> None:
    arm = direct(2, 8)
    plain = search(bound(), arm, steps=3)
    first = search(bound(), arm, steps=3, scores=tmp_path)
    assert list(tmp_path.glob("*.scores"))
    again = search(bound(), arm, steps=3, scores=tmp_path)
    assert without_seconds(plain) == without_seconds(first) == without_seconds(again)


def test_a_score_on_disk_is_used(tmp_path) -> None:
    search(bound(), alone(4), steps=1, scores=tmp_path)
    (file,) = tmp_path.glob("*.scores")
    known = KnownScores(file)
    known.add(dict.fromkeys(known._scores, 7.0))
    changed = search(bound(), alone(4), steps=1, scores=tmp_path)
    assert changed["term"] == pytest.approx([7.0])


def test_other_targets_have_scores_of_their_own(tmp_path) -> None:
    terms = [Fluency(gpt2()), ImageText(clip())]
    names = set()
    for colour in ("red", "blue", "red"):
        problem = Problem(colour, {"image": Image.new("RGB", (32, 32), colour)}, "An image of")
        one = metered(Objective(terms).bind([problem]), Meter(0.0), tmp_path)
        names.add(one.terms[0].known._path.name)  # type: ignore[attr-defined]
    assert len(names) == 2


def test_a_record_cut_off_is_taken_away(tmp_path) -> None:
    file = tmp_path / "a.scores"
    KnownScores(file).add({b"a" * 16: 1.0, b"b" * 16: 2.0})
    file.write_bytes(file.read_bytes()[:-3])
    known = KnownScores(file)
    assert (len(known), known[b"a" * 16], b"b" * 16 in known) == (1, 1.0, False)
    known.add({b"c" * 16: 3.0})
    assert KnownScores(file)[b"c" * 16] == 3.0


def test_cost_is_three_for_a_gradient_and_one_for_a_score() -> None:
    plain = search(bound(), alone(8), steps=1)
    assert plain["cost"] == [plain["scored"]]
    assert 0 < plain["scored"] <= 8
    with_gradient = search(bound(), direct(2, 8), steps=1)
    gradient = with_gradient["cost"][0] - with_gradient["scored"]
    assert gradient % (3 * 2) == 0
    assert gradient > 0


def test_a_text_asked_for_twice_is_paid_once() -> None:
    meter = Meter(0.5)
    meter.count_scores([b"x", b"y", b"x"], [4, 2, 4])
    meter.count_scores([b"y"], [2])
    with meter.paused():
        meter.count_scores([b"z"], [2])
        meter.count_rows(9, with_gradient=True)
    assert (meter.cost, meter.scored, meter._charged) == (2.0, 2, 3.0)


def test_a_writer_with_memory_writes_the_same() -> None:
    writer = RememberingLM(gpt2())
    arm = alone(8)
    plain = search(bound(), arm, steps=3)
    for _ in range(2):
        again = search(bound(writer), arm, steps=3)
        assert again["texts"] == plain["texts"]
        for name in ("open", "fluency", "term", "cost"):
            # A search without a memory of its own computes only new tokens: equal to rounding.
            assert again[name] == pytest.approx(plain[name], abs=1e-5)


def test_what_is_remembered_is_charged_again() -> None:
    writer = RememberingLM(gpt2())
    writer.seconds_per_token = 1000.0
    taken = [search(bound(writer), alone(4), steps=2)["seconds"][-1] for _ in range(2)]
    assert min(taken) > 1000
    assert taken[0] == pytest.approx(taken[1], abs=60)


def test_every_arm_stays_within_its_budget() -> None:
    assert [most_points(b, 16) for b in (16, 64, 256)] == [4, 16, 16]
    for name in ("LM top-k", "direct", "direct-4", "random/0"):
        row = search(bound(), ARMS[name](16), steps=2)
        assert row["cost"][0] <= 16
        assert row["cost"][-1] <= 16 * 3


def test_the_plan_has_every_arm_at_every_budget() -> None:
    items = [Item(str(i), "image", "a.png") for i in range(40)]
    planned = {(work.arm, work.budget, work.item.name) for work in plan(items)}
    for item in items:
        wanted = {(arm, budget, item.name) for arm in ARMS for budget in (16, 64, 256)}
        assert wanted | {("LM top-k", 512, item.name)} <= planned
    assert sum(arm == "everything" for arm, _, _ in planned) == 5


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


def journal_rows() -> list[dict[str, Any]]:
    """Two problems; LM top-k halves its loss from 16 to 512, the others lie between."""
    losses = {("LM top-k", 16): 4.0, ("LM top-k", 64): 3.0, ("LM top-k", 512): 1.0}
    losses |= {("table", 64): 2.0, ("random/0", 64): 4.5, ("random/1", 64): 5.5}
    return [
        {
            "key": f"{arm}|{budget}|{problem}",
            "arm": arm,
            "budget": budget,
            "problem": problem,
            "kind": "image",
            "loss": loss + extra,
            "terms": {"fluency": 1.0, "image": 0.5},
            "open": [loss] * 8,
            "cost": [budget * 2.0 * step - budget for step in range(1, 9)],
            "seconds": [9.0, *(9.0 + step for step in range(1, 8))],
        }
        for (arm, budget), loss in losses.items()
        for problem, extra in (("a", 0.0), ("b", 1.0))
    ]


def test_the_report_pairs_problems_and_averages_seeds(tmp_path) -> None:
    file = tmp_path / "journal.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in journal_rows()))
    results = read(Journal(file))
    assert results["random", 64]["a"].loss == 5.0
    loss = lambda outcome: outcome.loss  # noqa: E731
    assert differences(results, ("table", 64), ("LM top-k", 64), loss) == [-1.0, -1.0]
    one = results["table", 64]["a"]
    assert (one.cost, one.seconds) == (64.0, 8.0)  # The first step counts as an average one.
    needed = equal_budget(results, ("table", 64), loss)
    assert needed is not None
    assert needed[0] == pytest.approx((64 * 512) ** 0.5)


def test_a_plot_stands_on_the_problems_that_all_have(tmp_path) -> None:
    rows = journal_rows()
    file = tmp_path / "journal.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    assert shared_problems(read(Journal(file))) == {"a", "b"}
    kept = [row for row in rows if row["key"] != "table|64|b"]
    file.write_text("\n".join(json.dumps(row) for row in kept))
    assert shared_problems(read(Journal(file))) == {"a"}


def test_rows_with_few_problems_are_not_well_covered() -> None:
    results = {
        ("a", 64): dict.fromkeys("abcd"),
        ("b", 64): dict.fromkeys("ab"),
        ("c", 64): {"a": 1},
    }
    assert set(well_covered(results)) == {("a", 64), ("b", 64)}  # type: ignore[arg-type]


def test_crossing_beyond_the_curve() -> None:
    assert crossing([16, 64], [4.0, 3.0], 2.0) == float("inf")
    assert crossing([16, 64], [4.0, 3.0], 4.5) == 0.0
    assert crossing([16, 64], [4.0, 3.0], 3.5) == pytest.approx(32.0)


def test_the_page_keeps_what_stands_around_the_tables(tmp_path, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    file, page = tmp_path / "journal.jsonl", tmp_path / "page.md"
    file.write_text("\n".join(json.dumps(row) for row in journal_rows()))
    page.write_text(f"# Above\n\n{BEGIN}\nold\n{END}\n\nBelow.\n")
    write(Journal(file), page)
    assert "| 64 | table |" not in page.read_text()  # Two problems are too few for a row.
    monkeypatch.setattr(budget_report, "_FEWEST", 2)
    write(Journal(file), page)
    text = page.read_text()
    assert text.startswith("# Above\n")
    assert text.endswith("Below.\n")
    assert "old" not in text
    assert "| 64 | table | 2 | 2.50 |" in text
    assert page.with_suffix(".png").stat().st_size > 10_000


def test_the_committed_journal_makes_the_table_of_tones_as_they_ship(tmp_path) -> None:
    page = RESULTS / "search-budget.md"
    journal = Journal(RESULTS / "shipped-sentiment.jsonl.gz")
    assert {row["kind"] for row in journal.rows.values()} == {SHIPPED}
    copy = tmp_path / page.name
    before, _, after = page.read_text("utf-8").partition(SHIPPED_BEGIN)
    copy.write_text(
        f"{before}{SHIPPED_BEGIN}{SHIPPED_END}{after.partition(SHIPPED_END)[2]}", "utf-8"
    )
    write_shipped(journal, copy)
    assert copy.read_text("utf-8") == page.read_text("utf-8")


def test_tones_as_they_ship_are_those_of_captions(monkeypatch) -> None:
    monkeypatch.setattr(problems, "_writer", gpt2)
    monkeypatch.setattr(problems, "_model", lambda _: classifier())
    problems.objective.cache_clear()
    captions = [f"a caption of the number {i}" for i in range(60)]
    shipped = problems.tone_items(captions, SHIPPED)
    of_captions = objective_of(
        CaptionSettings(sentiment="positive"), CaptionModels(gpt2(), clip(), classifier())
    )
    (term,) = problems.objective(SHIPPED).terms
    assert term == of_captions.terms[-1]
    old = problems.objective("sentiment").terms[0]
    assert (old.weight, old.temperature) == (2.0, 1.0)
    assert [item.target for item in shipped] == ["positive", "negative"] * 4
    one = problems.problem(shipped[0], RESULTS)
    assert (dict(one.targets), one.prefix) == ({"sentiment": "positive"}, shipped[0].prefix)
    problems.objective.cache_clear()
