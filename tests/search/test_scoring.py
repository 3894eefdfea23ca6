"""Sentence ends: the found holds what evaluating the whole text says, and nothing else."""

import pytest
import torch

from fuseprompt.methods.autodan import AutoDAN, AutoDANState
from fuseprompt.objective.problem import Problem
from fuseprompt.search.hypotheses import Finished
from fuseprompt.search.scoring import finish_sentences, next_log_probs
from fuseprompt.text.token_classes import SENTENCE_ENDS
from tests.methods.fixtures import PREFIX, method, objective, problems
from tests.tiny import gpt2


def after(steps: int, *, prefix: str = PREFIX) -> AutoDANState:
    search: AutoDAN = method(max_end_nats=-1.0)
    state = search.init(objective().bind([Problem(p.id, p.targets, prefix) for p in problems()]))
    for _ in range(steps):
        state = search.step(state)
    return state


def finished(state: AutoDANState, max_nats: float = 50.0) -> list[list[Finished]]:
    log_probs = next_log_probs(state.bound, state.active)
    return finish_sentences(
        state.bound,
        state.active,
        log_probs,
        state.proposer.classes,
        state.finished,
        max_nats=max_nats,
    )


@pytest.mark.parametrize("prefix", [PREFIX, ""])
def test_a_sentence_has_the_losses_of_its_whole_text(prefix: str) -> None:
    state = after(2, prefix=prefix)
    for problem, found in enumerate(finished(state)):
        assert found
        texts = [entry.text for entry in found]
        assert texts == sorted(texts, key=lambda t: next(e.loss for e in found if e.text == t))
        exact = state.bound.evaluate(texts, [problem] * len(texts))
        for entry, whole in zip(found, exact, strict=True):
            assert abs(entry.loss - whole.loss) <= 1e-5 * max(1.0, abs(whole.loss))
            assert entry.exact.terms == pytest.approx(whole.terms, abs=1e-5, rel=1e-5)


def test_every_beam_with_a_cheap_end_is_finished() -> None:
    state = after(2)
    active, ends = state.active, gpt2().tokenizer.encode_batch(SENTENCE_ENDS)
    costs = {
        (int(problem), text + end): -float(row[token])
        for problem, text, row in zip(
            active.problems, active.texts, next_log_probs(state.bound, active), strict=True
        )
        for end, (token,) in zip(SENTENCE_ENDS, ends, strict=True)
    }
    middle = sorted(costs.values())[len(costs) // 2]
    got = {(p, e.text) for p, found in enumerate(finished(state, middle)) for e in found}
    assert got == {key for key, cost in costs.items() if cost <= middle}
    assert 0 < len(got) < len(costs)


def test_nothing_ends_before_it_has_begun_or_at_too_high_a_price() -> None:
    assert finished(after(0)) == [[], [], []]
    assert finished(after(1), 0.0) == [[], [], []]


def test_what_is_finished_stays() -> None:
    state = after(1)
    old = Finished(-1.0, "An image of old times.", state.bound.evaluate([PREFIX], [0])[0])
    object.__setattr__(state, "finished", ((old,), (), ()))
    first, *_ = finished(state)
    assert first[0] == old
    assert len(first) > 1


def test_equal_beams_of_several_problems_are_computed_once() -> None:
    state = after(0)
    log_probs = next_log_probs(state.bound, state.active)
    assert state.bound.prefixes.num_computed == int(state.active.token_ids.lengths[0])
    assert log_probs.shape[0] == 3
    assert torch.equal(log_probs[0], log_probs[2])
