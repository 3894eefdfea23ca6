"""How problems are grouped changes no result: not their number, their order or their neighbours."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from fuseprompt.models.hub import load
from fuseprompt.objective.fluency import Fluency
from fuseprompt.objective.objective import BoundObjective, Objective, Problem
from fuseprompt.objective.terms import ImageText
from fuseprompt.search.autodan import AutoDAN
from fuseprompt.search.batch import Candidates
from fuseprompt.search.candidates import TokenClasses
from fuseprompt.search.engine import Result, minimize
from fuseprompt.search.proposers import LanguageModelProposer, ProposalSetting, Proposer, Step
from fuseprompt.search.strategies import BeamSearch
from tests.search.fixtures import PREFIX, method, objective

PHOTOS = Path(__file__).parents[2] / "examples" / "photos"

Seen = dict[tuple[str, int], list[tuple[str, float]]]


@dataclass
class Watched:
    """A proposal setting that writes down each problem's candidates and their losses by step."""

    inner: ProposalSetting
    seen: Seen = field(default_factory=dict, repr=False)

    def start(self, bound: BoundObjective, classes: TokenClasses) -> "Watching":
        return Watching(self.inner.start(bound, classes), bound, self.seen)


@dataclass
class Watching:
    proposer: Proposer
    bound: BoundObjective
    seen: Seen

    @property
    def rounds(self) -> int:
        return self.proposer.rounds

    def propose(self, step: Step) -> Candidates:
        return self.proposer.propose(step)

    def observe(self, step: Step, candidates: Candidates, losses: dict[str, torch.Tensor]) -> None:
        total = sum(self.bound.objective.weights[n] * v for n, v in losses.items())
        problems = step.beams.problems[candidates.rows].tolist()
        for problem, text, loss in zip(problems, candidates.texts, total.tolist(), strict=True):
            key = (self.bound.problems[problem].id, step.number)
            self.seen.setdefault(key, []).append((text, loss))
        self.proposer.observe(step, candidates, losses)


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
    search = method(steps=2, max_end_nats=8.0, search_width=6)
    watched = Watched(search.proposer)
    search = replace(search, proposer=watched)
    return minimize(objective(), search, problems, group_size=group_size), watched.seen


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
    search = AutoDAN(2, LanguageModelProposer(12), BeamSearch(2), num_pooled=2)
    pair, single = (minimize(Objective(terms), search, photos, group_size=size) for size in (2, 1))
    assert_same_results(single, pair)
