"""A beam of edits: what one edit at a time cannot do, whole words only, and terms for the best."""

import pytest

from fuseprompt.errors import ProblemError
from fuseprompt.methods import EditBeam
from fuseprompt.objective.continuation import Continuation
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency, Label
from fuseprompt.proposals import LanguageModelOnly
from fuseprompt.search.minimize import minimize
from tests.tiny import classifier, gpt2

START = "An image of a happy dog on a road."


def objective(*, only_exact: bool = True) -> Objective:
    opinion = Continuation(gpt2(), name="opinion", target="opinion", only_exact=only_exact)
    return Objective([Fluency(gpt2()), Label(classifier()), opinion])


def problem(name: str = "0", **more: object) -> Problem:
    targets = {"sentiment": "positive", "opinion": [("{}\nIt is", " good")]}
    return Problem(name, targets, start=START, **more)  # type: ignore[arg-type]


def beam(steps: int = 3, **more: object) -> EditBeam:
    small = {"per_place": 4, "search_width": 12, "num_exact": 4, "beam_width": 3, **more}
    return EditBeam(steps, LanguageModelOnly(), **small)  # type: ignore[arg-type]


def test_each_step_edits_the_best_of_all_texts_before() -> None:
    search = beam()
    state = search.init(objective().bind([problem()]))
    seen: set[str] = set()
    for _ in range(3):
        state = search.step(state)
        (one,) = state.problems
        fresh = set(one.visited) - seen - {START}
        assert len(one.scored) == min(3, len(fresh))
        assert {each.text for each in one.scored} <= fresh
        seen |= fresh
    assert len(seen) == len(one.visited) - 1, "no text was scored twice"


def test_whole_words_are_all_that_changes() -> None:
    (result,) = minimize(objective(), beam(only_words=True), problem())
    for text in (result.text, *(one.text for one in result.alternatives)):
        assert len(text.split()) <= len(START.split())
        assert all(word.strip(".").isalpha() for word in text.split())
    (free,) = minimize(objective(), beam(per_place=8, search_width=64), problem())
    texts = [free.text, *(one.text for one in free.alternatives)]
    assert any(len(text.split()) > 8 or not text.strip(".").isalpha() for text in texts)


def test_no_step_scores_the_start_alone() -> None:
    (result,) = minimize(objective(), beam(0), problem())
    assert (result.text, result.alternatives, result.history) == (START, (), ())


def test_a_term_for_the_best_alone_is_exact_and_not_proposed_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    bound = objective().bind([problem()])
    joint = bound.terms[1].joint
    score = type(joint).score

    def count(self, texts, problems, begun=None):  # type: ignore[no-untyped-def]
        asked.append(len(texts))
        return score(self, texts, problems, begun)

    monkeypatch.setattr(type(joint), "score", count)
    search = beam()
    state = search.step(search.init(bound))
    assert asked[1:] == [4], "only the best four were asked about"
    texts = [one.text for one in state.problems[0].best]
    want = bound.evaluate(texts, [0] * len(texts))
    for one, exact in zip(state.problems[0].best, want, strict=True):
        assert one.exact.terms == pytest.approx(exact.terms, abs=1e-5, rel=1e-5)


def test_a_bound_of_one_problem_is_no_bound_of_another() -> None:
    strict = problem("1", bounds={"fluency": 0.0})
    free, bounded = objective().bind([problem(), strict]).evaluate([START, START], [0, 1])
    assert free.violation == 0.0
    assert bounded.violation == pytest.approx(bounded.terms["fluency"])


def test_a_bound_on_a_term_that_is_not_there_is_refused() -> None:
    with pytest.raises(ProblemError, match=r"'0': bounds on unknown terms \['image'\]; the terms"):
        objective().bind([problem(bounds={"image": 1.0})])
