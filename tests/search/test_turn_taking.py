"""Turn taking: the primary proposes first, then each secondary."""

import torch

from fuseprompt.objective.fluency import Fluency
from fuseprompt.objective.objective import BoundObjective, Objective, Problem
from fuseprompt.objective.terms import TextSimilarity
from fuseprompt.search.autodan import AutoDAN
from fuseprompt.search.batch import Beams
from fuseprompt.search.candidates import TokenClasses
from fuseprompt.search.engine import minimize
from fuseprompt.search.proposers import LanguageModelProposer, Step
from fuseprompt.search.turn_taking import TurnTaking
from fuseprompt.text.retokenize import PaddedIds
from tests.tiny import gpt2, sentence_encoder


def bound_objective() -> BoundObjective:
    objective = Objective([Fluency(gpt2()), TextSimilarity(sentence_encoder(), weight=5.0)])
    return objective.bind([Problem("0", {"text": "a happy dog"}, "a photo of")])


def step_after(text: str, num_given: int) -> Step:
    ids = gpt2().tokenizer.encode(text)
    token_ids = PaddedIds.from_lists([ids])
    beams = Beams(
        problems=torch.tensor([0]),
        token_ids=token_ids,
        num_given=torch.tensor([num_given]),
        nll_sum=torch.zeros(1, dtype=torch.float64),
        texts=(text,),
        losses=torch.zeros(1),
    )
    return Step(beams, gpt2().next_log_probs(token_ids.ids), lambda _: True)


def test_the_language_model_proposes_at_even_steps_and_the_secondary_at_odd_ones() -> None:
    bound = bound_objective()
    classes = TokenClasses(gpt2().tokenizer, gpt2().vocabulary.shape[0])
    width = 7
    taking = TurnTaking(width).start(bound, classes)
    own = LanguageModelProposer(width).start(bound, classes)
    length = len(gpt2().tokenizer.encode("a photo of"))

    even = step_after("a photo of", length)
    assert torch.equal(taking.propose(even).tokens, own.propose(even).tokens)

    odd = step_after("a photo of", length - 1)
    proposed = taking.propose(odd).tokens
    assert not torch.equal(proposed, own.propose(odd).tokens)
    # Each is one token of the secondary too.
    assert len(proposed) > 0
    assert (bound.terms[0].table.pieces.lengths[proposed] == 1).all()


def test_a_search_with_it_reports_true_losses() -> None:
    objective = bound_objective().objective
    problem = Problem("0", {"text": "a happy dog"}, "a photo of")
    method = AutoDAN(steps=4, proposer=TurnTaking(5))
    (result,) = minimize(objective, method, problem)
    (exact,) = objective.bind([problem]).evaluate([result.text], [0])
    assert abs(result.loss - exact.loss) <= 1e-5 * max(1.0, abs(exact.loss))
