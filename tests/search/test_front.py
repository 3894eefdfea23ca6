"""Fronts over weights, and alternatives that differ."""

from dataclasses import replace

import pytest

from fuseprompt.errors import ProblemError
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency
from fuseprompt.search import front
from fuseprompt.search.front import _not_beaten
from fuseprompt.search.minimize import Result, Scored, minimize
from tests.methods.fixtures import method, objective, problems
from tests.tiny import gpt2

SMALL = method(steps=3)


def scored(text: str, violation: float = 0.0, **terms: float) -> Scored:
    return Scored(text, 0.0, terms, (len(text),), (text,), violation)


def test_a_front_holds_all_that_nothing_beats_and_no_more() -> None:
    weights = {"image": [0.5, 20.0], "sentiment": [0.1, 5.0]}
    fronts = front(objective(), SMALL, problems(), weights)
    every: list[dict[str, Scored]] = [{} for _ in problems()]
    for image in weights["image"]:
        for sentiment in weights["sentiment"]:
            tried = objective().reweighted({"image": image, "sentiment": sentiment})
            assert tried.weights == {"fluency": 1.0, "image": image, "sentiment": sentiment}
            for known, result in zip(every, minimize(tried, SMALL, problems()), strict=True):
                known.update({one.text: one for one in (result, *result.alternatives)})
    for problem, own, known in zip(problems(), fronts, every, strict=True):
        for text, one in known.items():
            beaten = any(
                all(other.terms[n] <= one.terms[n] for n in one.terms)
                and any(other.terms[n] < one.terms[n] for n in one.terms)
                for other in known.values()
            )
            assert (text in [o.text for o in own]) is not beaten, text
        assert own
        values = [one.terms["fluency"] for one in own]
        assert values == sorted(values)
        for one in own:
            (exact,) = objective().bind([problem]).evaluate([one.text], [0])
            assert one.loss == pytest.approx(exact.loss, abs=1e-5)
    assert any(len(own) > 1 for own in fronts)


def test_one_problem_will_do_and_is_searched_alike() -> None:
    weights = {"image": [1.0, 8.0]}
    together = front(objective(), SMALL, problems(), weights)
    (alone,) = front(objective(), SMALL, problems()[1], weights)
    assert [one.text for one in alone] == [one.text for one in together[1]]


def test_what_misses_a_constraint_is_left_out_if_anything_meets_all() -> None:
    good, bad = scored("good", 0.0, a=2.0, b=2.0), scored("bad", 0.5, a=1.0, b=1.0)
    worse = scored("worse", 0.7, a=0.0, b=0.0)
    assert _not_beaten([bad, good, worse], "a") == (good,)
    assert _not_beaten([worse, bad], "a") == (bad,)
    other = scored("other", 0.0, a=3.0, b=1.0)
    alike = scored("alike", 0.0, a=2.0, b=2.0)
    assert set(x.text for x in _not_beaten([other, good, alike], "a")) == {"other", "good", "alike"}
    beaten = scored("beaten", 0.0, a=2.0, b=2.5)
    assert "beaten" not in [x.text for x in _not_beaten([beaten, good, other], "a")]


def test_what_cannot_be_tried_is_refused() -> None:
    with pytest.raises(ProblemError, match=r"Weights of unknown terms \['smell'\]; the terms are"):
        front(objective(), SMALL, problems(), {"smell": [1.0]})
    with pytest.raises(ProblemError, match=r"Expected weights of \['image'\], got none"):
        front(objective(), SMALL, problems(), {"image": []})
    with pytest.raises(ProblemError, match="weight must be a finite number"):
        front(objective(), SMALL, problems(), {"image": [-1.0]})


def test_models_and_tables_are_shared_between_weights() -> None:
    whole = objective()
    other = whole.reweighted({"fluency": 2.0, "image": 1.0})
    assert other.weights == {"fluency": 2.0, "image": 1.0, "sentiment": 0.5}
    assert whole.weights["image"] == 5.0
    assert other.table(other.terms[0]) is whole.table(whole.terms[0])
    assert other.classes() is whole.classes()


@pytest.fixture(scope="module")
def result() -> Result:
    (found,) = minimize(
        Objective([Fluency(gpt2())]), method(steps=1), Problem("0", prefix="An image")
    )
    return found


def with_texts(result: Result, *texts: str) -> Result:
    best, *others = (scored(f"An image {text}", fluency=float(i)) for i, text in enumerate(texts))
    return replace(result, text=best.text, alternatives=tuple(others))


def test_alternatives_differ_in_their_words(result: Result) -> None:
    own = with_texts(
        result,
        "of a happy dog.",
        "of a Happy, sad dog!",  # four of four words
        "of one red cat.",  # one of four
        "of one red cat, running.",
        "seen at night",
        "seen by people",
    )
    texts = [one.text.removeprefix("An image ") for one in own.diverse(10)]
    assert texts == ["of a happy dog.", "of one red cat.", "seen at night", "seen by people"]
    assert own.diverse(10)[0] is own
    assert [one.text for one in own.diverse(2)] == [one.text for one in own.diverse(10)[:2]]
    assert len(own.diverse(10, most_shared=0.3)) == 3  # "seen" is one of three words
    assert len(own.diverse(10, most_shared=0.0)) == 2
    assert len(own.diverse(10, most_shared=1.0)) == 6
    assert own.diverse(0) == ()
    # Both words of the shorter text are in the longer one.
    assert len(with_texts(result, "of a happy old dog on grass.", "a dog.").diverse(10)) == 1


def test_no_two_share_more_than_asked_for() -> None:
    (found,) = minimize(objective(), method(steps=4), problems()[0])
    for most in (0.0, 0.25, 0.5, 0.75):
        chosen = found.diverse(10, most)
        sets = [
            set(one.text.removeprefix("An image of").lower().strip(".!? ").split())
            for one in chosen
        ]
        for i, a in enumerate(sets):
            for b in sets[:i]:
                assert len(a & b) <= most * min(len(a), len(b))
