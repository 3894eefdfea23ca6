"""The table of stamps: what is compared with what, and what counts as a shared word."""

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from benchmarks.journal import Journal
from benchmarks.photos.stamps_scores import (
    TITLES,
    caption_table,
    complete_rows,
    difference_table,
    loss_table,
    shares_a_word,
)
from benchmarks.photos.stamps_table import ARMS, BASELINES, PROPOSALS, arm_settings
from fuseprompt.evaluation.metrics.base import METRICS, Score, Scores

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def row(arm: str, picture: str, **changes: Any) -> dict[str, Any]:
    found = {"loss": 7.0, "finished": True, "cpu_seconds": 2.0} if arm in ARMS else {}
    texts = {"text": "An image of a squirrel.", "truth": "A squirrel."}
    both = {"arm": arm, "picture": picture, "fluency": 2.0, "image": 0.4}
    return {**both, **texts, **found, **changes}


def all_arms(picture: str, **changes: Any) -> list[dict[str, Any]]:
    return [row(arm, picture, **changes) for arm in (*ARMS, *BASELINES)]


def test_only_pictures_that_every_arm_has_are_compared() -> None:
    rows = [*all_arms("a"), *all_arms("b")[:-1], *all_arms("c")]
    arms = complete_rows(rows)
    assert {tuple(r["picture"] for r in some) for some in arms.values()} == {("a", "c")}
    assert all(r["arm"] == arm for arm, some in arms.items() for r in some)


@pytest.mark.parametrize(
    ("text", "truth", "shared"),
    [
        ("An image of a squirrel.", "A squirrel.", True),
        ("An image of squirrels.", "A squirrel.", True),
        ("An image of a cat on the mat.", "The dog of a man.", False),
        ("An image of a front.", "A dumper. It carries its load in the front.", False),
        ("An image of a thing.", "An image of it.", False),
        ("An image of bees.", "It's a bee, isn't it?", True),
        ("An image of a.", "…", False),
    ],
)
def test_a_word_is_shared_with_the_first_sentence_alone(text, truth, shared) -> None:
    assert shares_a_word({"text": text, "truth": truth}) is shared


def test_tables_have_a_row_for_every_arm_and_say_what_is_missing(monkeypatch) -> None:
    from benchmarks.photos import stamps_scores

    scored = []

    def fake_score(captions, references, **_: Any) -> Scores:
        scored.append((captions, references))
        values = dict.fromkeys(METRICS, Score(0.5)) | {"spice": Score(None, "no CoreNLP")}
        return Scores(2, 1.0, values)

    monkeypatch.setattr(stamps_scores, "score", fake_score)
    monkeypatch.setattr(stamps_scores, "measure", lambda *_: {"distinct_1": Score(0.25)})
    arms = stamps_scores.complete_rows(
        [r for p in ("a", "b") for r in all_arms(p, image=0.3 if p == "a" else 0.5)]
    )
    table = stamps_scores.metric_table(arms, Path("data"))
    assert "| no gradient | 100 % | 50.00 | 50.00 |" in table
    assert "0.250" in table
    assert table.count("no CoreNLP") == 1
    assert scored[0] == (
        {"a": "a squirrel.", "b": "a squirrel."},
        {"a": ("A squirrel.",)} | {"b": ("A squirrel.",)},
    )
    losses = stamps_scores.loss_table(arms).splitlines()
    assert len(losses) == 2 + len(arms)
    assert losses[2] == "| no gradient | 2.00 | 0.400 | 7.00 | 0 | 2.0 |"
    assert losses[-1].endswith("| 2.00 | 0.400 | - | - | - |")


def test_differences_are_paired_with_those_of_the_same_picture() -> None:
    rows = [r for p in "abcd" for r in all_arms(p)]
    rows = [r | {"image": 0.1, "loss": 5.0} if r["arm"] == "sum" else r for r in rows]
    lines = difference_table(complete_rows(rows), "none").splitlines()
    (changed,) = [line for line in lines if line.startswith("| direct gradient")]
    assert "-0.300 [-0.300, -0.300]" in changed
    assert "-2.000 [-2.000, -2.000]" in changed
    assert lines[-1].endswith("| - |")


def test_the_committed_journal_makes_the_tables_of_the_page() -> None:
    page = (RESULTS / "offline-table.md").read_text("utf-8")
    arms = complete_rows(Journal(RESULTS / "offline-table.jsonl").rows.values())
    tables = [loss_table(arms), caption_table(arms)]
    tables += [difference_table(arms, base) for base in ("none", "context-free")]
    for table in tables:
        assert table in page
    shared = [
        f"| {TITLES[a]} | {100 * fmean(map(shares_a_word, r)):.0f} % |" for a, r in arms.items()
    ]
    assert all(line in page for line in shared)


def test_arms_differ_in_the_proposal_alone() -> None:
    from dataclasses import replace

    settings = [arm_settings(arm) for arm in PROPOSALS]
    assert len({s.proposal for s in settings}) == len(PROPOSALS)
    assert all(replace(s, proposal=settings[0].proposal) == settings[0] for s in settings)
    assert (settings[0].beam_width, settings[0].search_width) == (3, 32)
