"""Problems, and constraints: whole words, any case, what is wanted, and how far a text is off."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseprompt.errors import ProblemError
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import (
    EndsSentence,
    Forbid,
    MaxChanged,
    MaxWords,
    NoRepeats,
    Problem,
    Prose,
    Require,
    word_changes,
)
from fuseprompt.objective.terms import Fluency, Label
from tests.tiny import classifier, gpt2

ANY = Problem("any")


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("An image of a cat", False),
        ("An image of a CAT.", False),
        ("An image of a catalogue", True),
        ("An image of a bobcat", True),
        ("An image of a cat's paw", False),
        ("An image of a c", True),
        ("An image of a (cat)", False),
    ],
)
def test_forbidden_words_are_whole_words_in_any_case(text: str, allowed: bool) -> None:
    assert Forbid(("dog", "cat")).allows(text, ANY) is allowed


def test_words_are_no_patterns() -> None:
    assert Forbid((".",)).allows("An image", ANY)
    assert not Forbid(("C++",)).allows("written in C++ today", ANY)
    assert Forbid(()).allows("anything", ANY)


def test_required_words_are_counted_until_they_are_there() -> None:
    rule = Require(("dog", "beach"))
    assert rule.missing("An image of a dogma", ANY) == 2
    assert rule.missing("a dog on the bea", ANY) == 2 / 6  # " beach" has six characters
    assert rule.missing("a dog on the b", ANY) == 4 / 6
    assert rule.missing("An image of a Dog on", ANY) == 1
    assert rule.missing("a dog on the beachfront", ANY) == 1
    assert rule.missing("a dog, a beach", ANY) == 0
    assert rule.allows("An image", ANY)


def test_what_is_wanted_is_the_word_or_the_rest_of_it() -> None:
    assert Require(("dog",)).wanted("An image of a", ANY) == [" dog"]
    assert Require(("elephant",)).wanted("An image of an ele", ANY) == ["phant"]
    assert Require(("dog", "cat")).wanted("the dog", ANY) == [" cat"]
    assert Require(("dog",)).wanted("the dog", ANY) == []
    assert Forbid(("dog",)).wanted("the", ANY) == []
    assert Forbid(("dog",)).missing("the", ANY) == 0


@pytest.mark.parametrize("template", ["a text", "{} and {}", "", "{0}"])
def test_a_template_has_one_place_for_the_text(template: str) -> None:
    with pytest.raises(ProblemError, match=r"Problem 'x': a template has one {} where the text"):
        Problem("x", template=template)


def test_what_stands_around_a_text() -> None:
    assert Problem("x").around == ("", "")
    assert Problem("x", template="Say: {} Now.").around == ("Say: ", " Now.")


def test_a_start_begins_with_the_prefix() -> None:
    assert Problem("x", {}, "a dog", "a dog runs").start == "a dog runs"
    with pytest.raises(ProblemError, match=r"start 'dog' does not begin with the prefix 'a'"):
        Problem("x", {}, "a", "dog")


@pytest.mark.parametrize(
    ("text", "more"), [("An image", 0), ("An image a red, old", 0), ("An image a red old cat.", 1)]
)
def test_words_after_the_prefix_are_counted(text: str, more: int) -> None:
    problem = Problem("x", prefix="An image")
    assert MaxWords(3).missing(text, problem) == more
    assert MaxWords(3).allows(text, problem) is (more == 0)
    assert MaxWords(3).wanted(text, problem) == []


OLD = "The quick, brown fox jumps."
CHANGES = [
    (OLD, []),
    ("the QUICK brown fox jumps!", []),
    ("The quick, red fox jumps.", [(2, "brown", "red")]),
    ("The quick, brown fox jumps over.", [(5, "", "over")]),
    ("The quick fox jumps.", [(2, "brown", "")]),
    ("A quick brown old fox leaps", [(0, "the", "a"), (3, "", "old"), (4, "jumps", "leaps")]),
    ("", [(0, "the quick brown fox jumps", "")]),
]


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("a dog", 0),
        ("The dog is a pet Dog.", 1),
        ("dogs and a dog, and dogs", 2),
        ("the man in the van with the man", 1),
        ("An image of an image", 0),
        ("An image of an image, image", 1),
        ("a a a", 0),
    ],
)
def test_a_word_that_is_said_again_is_counted(text: str, more: int) -> None:
    problem = Problem("0", prefix="An image of" if text.startswith("An image") else "")
    assert NoRepeats().missing(text, problem) == more
    assert NoRepeats().allows(text, problem) is (more == 0)


@pytest.mark.parametrize(("new", "changes"), CHANGES)
def test_changes_are_words_replaced_removed_and_added(
    new: str, changes: list[tuple[int, str, str]]
) -> None:
    assert word_changes(OLD, new) == changes
    count = sum(max(len(a.split()), len(b.split())) for _, a, b in changes)
    problem = Problem("x", start=OLD)
    for share in (0.0, 0.2, 0.4, 0.6, 1.0):
        allowed = round(share * 5)  # of five words
        assert MaxChanged(share).allows(new, problem) is (count <= allowed)
        assert MaxChanged(share).missing(new, problem) == max(0, count - allowed)


@given(st.lists(st.sampled_from("abcd")), st.lists(st.sampled_from("abcd")))
def test_changes_lead_from_one_text_to_the_other(old: list[str], new: list[str]) -> None:
    made, at = [], 0
    for index, before, after in word_changes(" ".join(old), " ".join(new)):
        made += [*old[at:index], *after.split()]
        assert old[index : index + len(before.split())] == before.split()
        at = index + len(before.split())
    assert [*made, *old[at:]] == new


def test_how_often_a_forbidden_word_stands_there_is_counted() -> None:
    rule = Forbid(("dog", "cat"))
    assert rule.missing("a dog, a Cat and a catalogue", ANY) == 2
    assert not rule.allows("a dog", ANY)


def test_bounds_are_of_terms_and_decide_by_how_much_they_are_exceeded() -> None:
    with pytest.raises(ProblemError, match=r"Bounds on unknown terms \['smell'\]; the terms are"):
        Objective([Fluency(gpt2())], bounds={"smell": 1.0})
    problem = Problem("x", prefix="An image of")
    text = "An image of a dog."
    (free,) = Objective([Fluency(gpt2())]).bind([problem]).evaluate([text], [0])
    assert free.violation == 0
    rules = [Require(("cat",)), Forbid(("dog",))]
    limits = {"fluency": free.loss - 0.25}
    both = Objective([Fluency(gpt2())], constraints=rules, bounds=limits)
    (bounded,) = both.bind([problem]).evaluate([text], [0])
    assert bounded.loss == free.loss
    # 4/4 of " cat" are missing, one word is forbidden (and so the text), a bound is exceeded.
    assert bounded.violation == pytest.approx(1.0 + 2.0 + 0.25, abs=1e-6)
    # The last bits of a loss depend on the batch that it is computed in.
    for over, is_met in {0.0: True, 5e-6: True, 5e-5: False}.items():
        limits = {"fluency": free.loss - over}
        met = Objective([Fluency(gpt2())], bounds=limits).bind([problem])
        assert (met.evaluate([text], [0])[0].violation == 0) == is_met


def test_a_term_with_weight_0_needs_a_bound() -> None:
    terms = [Fluency(gpt2()), Label(classifier(), weight=0.0)]
    with pytest.raises(ProblemError, match="weight 0 would load a model and ignore it"):
        Objective(terms)
    assert Objective(terms, bounds={"sentiment": 1.0}).weights["sentiment"] == 0.0


@pytest.mark.parametrize(
    ("text", "missing"), [("A cat.", 0.0), ("Why?", 0.0), ("A cat", 1.0), ("A cat,", 1.0)]
)
def test_a_sentence_that_breaks_off_is_no_result(text: str, missing: float) -> None:
    rule = EndsSentence()
    assert rule.missing(text, Problem("0")) == missing
    assert rule.allows(text, Problem("0"))
    assert rule.wanted(text, Problem("0")) == []
    assert EndsSentence(3).missing(text, Problem("0")) == 1.0
    assert EndsSentence(3).missing("Why not now?", Problem("0")) == 0.0


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("I'm a man, and it's the dog of 1987; isn't he well-known?", 0),
        ("X-232568 and - (-x - y.", 7),
        ("User-friendly, a user.", 1),
        ("Know, know and KNOW", 2),
        ("A: k = be/c_d", 5),
    ],
)
def test_signs_and_longer_words_that_come_again_are_counted(text: str, count: int) -> None:
    assert Prose().missing(text, Problem("0")) == count
    assert Prose().allows(text, Problem("0")) == (count == 0)
