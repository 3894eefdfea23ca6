"""How problems are grouped changes no result: not their number, their order or their neighbours."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from PIL import Image

from fuseprompt.methods import autodan
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.models.hub import load
from fuseprompt.objective.objective import BoundObjective, Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency, ImageText
from fuseprompt.proposals.language_model import LanguageModelOnly
from fuseprompt.search.hypotheses import Candidates, Hypotheses
from fuseprompt.search.minimize import Result, minimize
from fuseprompt.search.scoring import exact_losses
from tests.methods.fixtures import PREFIX, method, objective

PHOTOS = Path(__file__).parents[2] / "examples" / "photos"

Seen = dict[tuple[str, int], list[tuple[str, float]]]


def assert_same_candidates(one: Seen, other: Seen) -> None:
    assert one.keys() == other.keys()
    for key, candidates in one.items():
        assert sorted(t for t, _ in candidates) == sorted(t for t, _ in other[key]), key
        mine, theirs = dict(candidates), dict(other[key])
        want = torch.tensor([theirs[text] for text in mine])
        torch.testing.assert_close(torch.tensor([*mine.values()]), want, atol=1e-5, rtol=1e-5)


def assert_same_results(one: Sequence[Result], other: Sequence[Result]) -> None:
    theirs = {r.problem.id: r for r in other}
    assert {r.problem.id for r in one} == set(theirs)
    for mine in one:
        its = theirs[mine.problem.id]
        assert mine.text == its.text
        assert mine.token_ids == its.token_ids
        assert mine.terms == pytest.approx(its.terms, abs=1e-5, rel=1e-5)
        assert [a.text for a in mine.alternatives] == [a.text for a in its.alternatives]
        for got, want in zip(mine.history, its.history, strict=True):
            assert (got.step, got.text, got.evaluations) == (want.step, want.text, want.evaluations)
            assert abs(got.loss - want.loss) <= 1e-5 * max(1.0, abs(want.loss))


def eight() -> list[Problem]:
    """Return problems that differ in target, tone and, for some, in prefix and its length."""
    colours = ("red", "blue", "green", "white", "black", "yellow", "orange", "red")
    tones = ("positive", "neutral", "negative")
    prefixes = (PREFIX, PREFIX, "a photo", PREFIX)
    return [
        Problem(
            str(i),
            {"image": Image.new("RGB", (32, 32), colour), "sentiment": tones[i % 3]},
            prefixes[i % 4],
        )
        for i, colour in enumerate(colours)
    ]


def searched(problems: Sequence[Problem], group_size: int) -> tuple[list[Result], Seen]:
    """Return the results, and each problem's candidates with their losses by step."""
    seen: Seen = {}
    steps: dict[str, int] = {}

    def watch(
        bound: BoundObjective, active: Hypotheses, candidates: Candidates
    ) -> tuple[torch.Tensor, float]:
        losses, share = exact_losses(bound, active, candidates)
        rows = active.problems[candidates.rows].tolist()
        for p in set(rows):
            steps[bound.problems[p].id] = steps.get(bound.problems[p].id, 0) + 1
        for p, text, loss in zip(rows, candidates.texts, losses.tolist(), strict=True):
            key = (bound.problems[p].id, steps[bound.problems[p].id])
            seen.setdefault(key, []).append((text, loss))
        return losses, share

    with mock.patch.object(autodan, "exact_losses", watch):
        search = method(steps=2, max_end_nats=8.0, search_width=6)
        return minimize(objective(), search, problems, group_size=group_size), seen


@pytest.fixture(scope="module")
def together() -> tuple[list[Result], Seen]:
    return searched(eight(), 8)


def test_eight_together_are_eight_alone(together: tuple[list[Result], Seen]) -> None:
    results, seen = searched(eight(), 1)
    assert_same_results(results, together[0])
    assert_same_candidates(seen, together[1])


def test_any_order_and_any_group_will_do(together: tuple[list[Result], Seen]) -> None:
    shuffled = [eight()[i] for i in (5, 2, 7, 0, 3, 6, 1, 4)]
    results, seen = searched(shuffled, 3)
    assert_same_results(results, together[0])
    assert_same_candidates(seen, together[1])


def test_the_comparison_itself_notices_a_difference(together: tuple[list[Result], Seen]) -> None:
    results, seen = together
    key = next(iter(seen))
    for wrong in (
        {**seen, key: [(t, loss + 1e-3) for t, loss in seen[key]]},
        {**seen, key: [(t + "s", loss) for t, loss in seen[key]]},
        {k: v for k, v in seen.items() if k != key},
    ):
        with pytest.raises(AssertionError):
            assert_same_candidates(wrong, seen)
    with pytest.raises(AssertionError):
        assert_same_results([replace(results[0], text="other"), *results[1:]], results)


@pytest.mark.offline
def test_two_photos_together_are_two_photos_alone() -> None:
    models = load("offline:lm"), load("offline:image-text")
    terms = [Fluency(models[0]), ImageText(models[1], weight=12.0)]
    photos = [
        Problem(name, {"image": PHOTOS / f"{name}.jpg"}, PREFIX) for name in ("cat", "coffee")
    ]
    search = AutoDAN(2, LanguageModelOnly(), 2, 12, num_finished=2)
    pair, single = (minimize(Objective(terms), search, photos, group_size=size) for size in (2, 1))
    assert_same_results(single, pair)
