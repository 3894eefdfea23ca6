"""Constraints on words: whole words, any case, and what is still wanted."""

import pytest

from fuseprompt.objective.problem import Forbid, Problem, Require

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
