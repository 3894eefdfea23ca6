"""Drafts: every text is a beginning of a sample, scored exactly, and the ends get better."""

import re

import pytest
import torch

from fuseprompt import Continuation, Fluency, Objective, Problem, minimize
from fuseprompt.errors import SearchError
from fuseprompt.methods import Drafts
from fuseprompt.objective.problem import Forbid
from tests.tiny import gpt2, llama

SMALL = Drafts(steps=3, num_tokens=5, num_drafts=8, num_new=3, num_exact=4, num_kept=3)


def objective(**more: object) -> Objective:
    terms = [Fluency(gpt2()), Continuation(gpt2(), 2.0), Continuation(llama(), name="other")]
    return Objective(terms, **more)


def problems() -> list[Problem]:
    pairs = [("{} The sky is", " blue"), ("{} A cat", " sat")]
    return [
        Problem("0", {"continuation": " blue"}, template="{} blue"),
        Problem("1", {"continuation": pairs}, template="{} The sky is blue"),
    ]


def test_a_result_is_the_best_text_that_was_scored_and_its_losses_are_exact() -> None:
    for result in minimize(objective(), SMALL, problems()):
        bound = objective().bind([result.problem])
        exact = bound.evaluate([result.text], [0])[0]
        assert result.loss == pytest.approx(exact.loss, abs=1e-5)
        assert result.loss <= min(one.loss for one in result.alternatives)
        losses = [entry.loss for entry in result.history]
        assert losses == sorted(losses, reverse=True)
        assert len(losses) == 3
        assert 2 <= len(result.token_ids) <= 5
        assert result.finished


def test_a_seed_fixes_the_texts_and_another_one_changes_them() -> None:
    first, again, other = (
        [r.text for r in minimize(objective(), SMALL, problems(), seed=seed)] for seed in (0, 0, 1)
    )
    assert first == again != other


def test_a_problem_does_not_depend_on_its_group() -> None:
    together = minimize(objective(), SMALL, problems())
    alone = minimize(objective(), SMALL, problems(), group_size=1)
    assert [r.text for r in together] == [r.text for r in alone]


def test_no_text_has_a_forbidden_word_and_the_prefix_stays() -> None:
    problem = Problem("0", {"continuation": " blue"}, prefix="The sky", template="{} blue")
    plain = minimize(objective(), SMALL, problem)[0]
    texts = [plain.text, *(one.text for one in plain.alternatives)]
    words = {word for text in texts for word in re.findall(r"\w+", text)} - {"The", "sky"}
    assert words
    result = minimize(objective(constraints=[Forbid(tuple(words))]), SMALL, problem)[0]
    others = [result.text, *(one.text for one in result.alternatives)]
    assert all(text.startswith("The sky") and len(text) > 7 for text in [*texts, *others])
    assert not any(Forbid(tuple(words)).missing(text, problem) for text in others)


def test_later_steps_keep_what_the_first_found() -> None:
    one, three = (
        minimize(objective(), Drafts(steps=n, num_tokens=5, num_drafts=8), problems()[:1])[0]
        for n in (1, 3)
    )
    assert three.history[0].text == one.text
    assert three.loss <= one.loss


def test_a_longer_text_than_the_models_have_room_for_is_not_sampled() -> None:
    torch.manual_seed(0)
    result = minimize(objective(), Drafts(steps=1, num_tokens=500, num_drafts=4), problems()[:1])[0]
    assert len(result.token_ids) < min(gpt2().max_length, llama().max_length) // 2


def test_an_objective_without_a_continuation_is_refused() -> None:
    with pytest.raises(SearchError, match=r"asks for none. Add a Continuation term"):
        minimize(Objective([Fluency(gpt2())]), SMALL, Problem("0"))


@pytest.mark.parametrize("name", ["steps", "num_drafts", "num_kept"])
def test_counts_are_checked(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, was: 0"):
        Drafts(**{name: 0})
