"""Sentence ends: the pool holds what evaluating the whole text says, and nothing else."""

import pytest
import torch

from fuseprompt.objective.objective import Problem
from fuseprompt.search.autodan import AutoDAN
from fuseprompt.search.candidates import SENTENCE_ENDS
from fuseprompt.search.endings import pool_sentences
from fuseprompt.search.exact import next_log_probs
from fuseprompt.search.state import AutoDANState, Pooled
from tests.search.fixtures import PREFIX, method, objective, problems
from tests.tiny import gpt2


def after(steps: int, *, prefix: str = PREFIX) -> AutoDANState:
    search: AutoDAN = method(max_end_nats=-1.0)
    state = search.init(objective().bind([Problem(p.id, p.targets, prefix) for p in problems()]))
    for _ in range(steps):
        state = search.step(state)
    return state


def pooled(state: AutoDANState, max_nats: float = 50.0) -> list[list[Pooled]]:
    log_probs = next_log_probs(state.bound, state.beams)
    found = pool_sentences(state, log_probs, max_nats=max_nats, is_complete=lambda _: True)
    return [list(pool) for pool in found]


@pytest.mark.parametrize("prefix", [PREFIX, ""])
def test_a_sentence_has_the_losses_of_its_whole_text(prefix: str) -> None:
    state = after(2, prefix=prefix)
    for problem, pool in enumerate(pooled(state)):
        assert pool
        texts = [entry.text for entry in pool]
        assert texts == sorted(texts, key=lambda t: next(e.loss for e in pool if e.text == t))
        exact = state.bound.evaluate(texts, [problem] * len(texts))
        for entry, whole in zip(pool, exact, strict=True):
            assert abs(entry.loss - whole.loss) <= 1e-5 * max(1.0, abs(whole.loss))
            assert entry.exact.terms == pytest.approx(whole.terms, abs=1e-5, rel=1e-5)


def test_every_beam_with_a_cheap_end_is_in_the_pool() -> None:
    state = after(2)
    beams, ends = state.beams, gpt2().tokenizer.encode_batch(SENTENCE_ENDS)
    costs = {
        (int(problem), text + end): -float(row[token])
        for problem, text, row in zip(
            beams.problems, beams.texts, next_log_probs(state.bound, beams), strict=True
        )
        for end, (token,) in zip(SENTENCE_ENDS, ends, strict=True)
    }
    middle = sorted(costs.values())[len(costs) // 2]
    got = {(p, e.text) for p, pool in enumerate(pooled(state, middle)) for e in pool}
    assert got == {key for key, cost in costs.items() if cost <= middle}
    assert 0 < len(got) < len(costs)


def test_nothing_ends_before_it_has_begun_or_at_too_high_a_price() -> None:
    assert pooled(after(0)) == [[], [], []]
    assert pooled(after(1), 0.0) == [[], [], []]


def test_what_is_in_a_pool_stays() -> None:
    state = after(1)
    old = Pooled(-1.0, "An image of old times.", state.bound.evaluate([PREFIX], [0])[0])
    object.__setattr__(state, "pools", ((old,), (), ()))
    first, *_ = pooled(state)
    assert first[0] == old
    assert len(first) > 1


def test_equal_beams_of_several_problems_are_computed_once() -> None:
    state = after(0)
    log_probs = next_log_probs(state.bound, state.beams)
    assert state.bound.prefixes.num_computed == int(state.beams.token_ids.lengths[0])
    assert log_probs.shape[0] == 3
    assert torch.equal(log_probs[0], log_probs[2])
