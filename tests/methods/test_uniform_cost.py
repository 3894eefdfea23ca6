"""Uniform cost: the best hypotheses of any length are extended next."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from fuseprompt.methods import AutoDAN
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency
from fuseprompt.proposals.language_model import LanguageModelOnly
from fuseprompt.search.hypotheses import Hypotheses
from fuseprompt.text.retokenize import PaddedIds
from tests import tiny
from tests.methods.fixtures import method, objective, problems


def known(hypotheses: Hypotheses) -> set[tuple[int, str]]:
    return set(zip(hypotheses.problems.tolist(), hypotheses.texts, strict=True))


def test_the_best_of_all_lengths_is_extended() -> None:
    """No hypothesis that waits is better than one that is extended, and none is lost."""
    search = replace(method(steps=8), beam_width=2, num_waiting=200)
    state = search.init(objective().bind(problems()[:2]))
    mixed = 0
    while not search.is_done(state):
        before, state = state, search.step(state)
        for number in range(2):
            active, waiting = (
                each.losses[each.problems == number] for each in (state.active, state.waiting)
            )
            assert len(active) <= 2
            assert active.max() <= waiting.min() + 1e-5
            assert len(waiting) <= 200
            ours = state.active[torch.nonzero(state.active.problems == number).flatten().tolist()]
            mixed += len(set(ours.token_ids.lengths.tolist())) > 1
        # What waited still waits, or is extended: there is room for all.
        assert known(before.waiting) <= known(state.active) | known(state.waiting)
        assert known(state.active).isdisjoint(known(state.waiting))
    assert mixed > 2


class Judge:
    """A model that puts out what a text costs."""

    max_length = tiny.MAX_LENGTH
    name = "judge"
    tokenizer = tiny.gpt2().tokenizer
    vocabulary = tiny.gpt2().vocabulary

    costs: ClassVar = {"the in": 0.1, "the of": 0.5, "the of dog": 0.0}

    def outputs(self, token_ids: PaddedIds, *, embeds: Tensor | None = None) -> Tensor:
        texts = self.tokenizer.decode_batch(token_ids.to_lists())
        return torch.tensor([[self.costs.get(text, 1.0)] for text in texts])


@dataclass(frozen=True)
class Cost:
    """What the judge says."""

    model: Judge
    weight: float = 1.0
    name: str = "cost"
    target: str = "cost"

    def encode_target(self, target: object) -> Tensor:
        return torch.zeros(1)

    def compare(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs[:, 0]


@pytest.mark.parametrize("num_waiting", [0, 40])
def test_it_goes_back_where_a_beam_cannot(num_waiting: int) -> None:
    bound = Objective([Fluency(tiny.gpt2(), weight=0.0), Cost(Judge())]).bind(
        [Problem("0", {"cost": None}, "the")]
    )
    every = len(Judge.vocabulary)
    search = AutoDAN(3, LanguageModelOnly(), 1, every, max_end_nats=-1.0, num_waiting=num_waiting)
    state = search.init(bound)
    while not search.is_done(state):
        state = search.step(state)
    texts = [entry.text for entry in state.histories[0]]
    assert texts[0] == "the in"
    assert texts[1:] == ["the of", "the of dog"] if num_waiting else state.active.losses[0] == 1.0
