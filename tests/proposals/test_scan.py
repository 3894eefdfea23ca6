"""The scan knows what common words do to a unit, and takes a maximum for what it is."""

import pytest
import torch

from fuseprompt.objective.activation import Activation, HiddenStates
from fuseprompt.objective.objective import BoundObjective, Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency
from fuseprompt.proposals.base import Positions, Scorer
from fuseprompt.proposals.scan import Scan
from fuseprompt.text.retokenize import encode_whole
from tests import tiny


def scorer_of(pool: str, num_words: int = 4096) -> tuple[Scorer, BoundObjective, HiddenStates]:
    states = HiddenStates(tiny.sentence_encoder(), 0, pool=pool)
    objective = Objective([Fluency(tiny.gpt2()), Activation(states)])
    bound = objective.bind([Problem("0", {"unit": 3})])
    state = objective.state(Scan(num_words), objective.terms[0])
    return state.bind(bound.terms[0]), bound, states


def test_words_that_the_scan_puts_first_drive_the_unit_in_texts() -> None:
    scorer, bound, states = scorer_of("last")
    tokens = bound.objective.classes().initial_ids
    positions = Positions.append(("two people",), torch.tensor([0]))
    predicted = scorer.word_initial(positions, tokens)[0]
    pieces = bound.objective.primary.tokenizer.token_texts
    texts = [f"two people{pieces[t]}" for t in tokens.tolist()]
    exact = -states.outputs(encode_whole(states.tokenizer, texts))[:, 3]
    ranks = torch.stack([predicted.argsort().argsort(), exact.argsort().argsort()]).double()
    assert float(torch.corrcoef(ranks)[0, 1]) > 0.4


@pytest.mark.parametrize("pool", ["max", "last"])
def test_a_weak_word_leaves_a_maximum_as_it_is(pool: str) -> None:
    scorer, bound, states = scorer_of(pool)
    tokens = bound.objective.classes().initial_ids
    own = -float(states.outputs(encode_whole(states.tokenizer, ["two people"]))[0, 3])
    positions = Positions.append(("two people",), torch.tensor([0]))
    predicted = scorer.word_initial(positions, tokens)[0]
    assert (float(predicted.max()) <= own + 1e-5) == (pool == "max")
    inside = scorer.word_internal(positions, tokens[None, :2])
    torch.testing.assert_close(inside, torch.full((1, 2), own))
    assert scorer.cost == 1.0  # The text was read once for both.


def test_words_that_were_not_read_are_expected_to_do_nothing() -> None:
    scorer, bound, states = scorer_of("last", num_words=5)
    tokens = bound.objective.classes().initial_ids
    positions = Positions.append(("two people",), torch.tensor([0]))
    predicted = scorer.word_initial(positions, tokens)[0]
    own = -states.outputs(encode_whole(states.tokenizer, ["two people"]))[0, 3]
    assert int(((predicted - own).abs() > 1e-6).sum()) == 5
